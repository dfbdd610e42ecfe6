//! Each rule that is broken on purpose is noticed within a thousand seeds of its own profile.

use ft_simulation::Breach;

#[test]
fn every_breach_is_caught() {
    let caught = |breach: &Breach| match breach.search(1000) {
        Some((seed, sentence)) => {
            println!(
                "{breach}: ft-sim --profile {} --breach {breach} --seed {seed}: {sentence}",
                breach.caught_by().profile
            );
            true
        }
        None => false,
    };
    let missed: Vec<Breach> = Breach::all().filter(|breach| !caught(breach)).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
