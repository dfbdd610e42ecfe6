//! Each rule that is broken on purpose is noticed within a thousand seeds of its own profile.

use ft_simulation::Breach;

#[test]
fn every_breach_is_caught() {
    let missed: Vec<Breach> = Breach::ALL.into_iter().filter(|breach| breach.search(1000).is_none()).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
