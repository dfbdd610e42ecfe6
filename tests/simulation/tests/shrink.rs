//! A seed that fails is shortened, and still breaks the same rule.

use ft_simulation::{Breach, Setup, profiles, run, shrink};

#[test]
fn the_shortened_schedule_breaks_the_same_rule() {
    let profile = profiles::named("mixed").unwrap();
    let broken = |setup: &Setup| run(setup, false).result.err().map(|violation| std::mem::discriminant(&violation));
    let mut shorter = 0;
    for seed in 0..5 {
        let setup = Setup { breach: Some(Breach::EarlyEmptied), ..profile.setup(seed) };
        let shortest = shrink::shortest(&setup);
        assert_eq!(broken(&shortest), broken(&setup), "seed {seed}");
        assert!(shortest.faults.len() <= setup.faults.len(), "seed {seed}");
        shorter += setup.faults.len() - shortest.faults.len();
    }
    assert!(shorter > 0, "nothing became any shorter");
}
