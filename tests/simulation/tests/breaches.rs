//! Each rule that is broken on purpose is noticed within a thousand seeds of its own profile.

use ft_simulation::{Breach, profiles};

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

/// Nobody is left out for nothing, also where somebody was left out for something before.
#[test]
fn a_false_accusation_is_caught_after_an_island_as_well() {
    let profile = profiles::named("after-islands").unwrap();
    for breach in ["AloneAccuses", "NothingAnew"].map(|name| Breach::named(name).unwrap()) {
        let caught = (0..100).find_map(|seed| breach.caught(profile, seed));
        assert!(caught.is_some_and(|sentence| sentence.starts_with("invariant 7")), "{breach}");
    }
}
