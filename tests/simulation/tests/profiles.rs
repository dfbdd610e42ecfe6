//! A hundred seeds of every profile.

use ft_simulation::profiles::{ALL, Profile, named};
use ft_simulation::run;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const SEEDS: u64 = 100;

/// What these do ends a job.
const ENDS: [&str; 10] =
    ["cancel", "signals", "deleted-key", "ends", "rounds", "told", "crash-loop", "turns", "tombstone", "lossy"];

/// Seeds that were broken once, beyond the first of their profiles.
const ONCE_BROKEN: [(&str, u64); 19] = [
    ("mixed", 2780),
    ("mixed", 9604),
    ("verifying", 183),
    ("verifying", 2881),
    ("three", 213),
    ("copies", 5591),
    ("joins", 6472),
    ("mixed", 6939),
    ("islands", 180),
    ("crash", 139),
    ("due", 200),
    ("wishes", 25),
    ("reboot", 1006),
    ("ends", 2227),
    ("joins", 306),
    ("joins", 486),
    ("joins", 6216),
    ("dead-joiner", 856),
    ("mixed", 425),
];

/// What is wrong with a profile, if anything.
fn wrong(profile: &Profile) -> Option<String> {
    let mut well = 0;
    let mut broken = (0..SEEDS).filter_map(|seed| match run(&profile.setup(seed), false).result {
        Ok((status, _)) => {
            well += u64::from(status == 0);
            None
        }
        Err(violation) => Some((seed, violation.to_string())),
    });
    match broken.next() {
        Some((seed, sentence)) => Some(format!("ft-sim --profile {} --seed {seed}: {sentence}", profile.name)),
        None if well * 3 < SEEDS && !ENDS.contains(&profile.name) => {
            Some(format!("{}: only {well} of {SEEDS} end well: too harsh", profile.name))
        }
        None => None,
    }
}

#[test]
fn every_profile_holds() {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(profile) = ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    all.lock().unwrap().extend(wrong(profile));
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    assert!(all.is_empty(), "{} profiles:\n{}", all.len(), all.join("\n"));
}

#[test]
fn what_was_broken_once_holds() {
    for (name, seed) in ONCE_BROKEN {
        let profile = named(name).unwrap();
        let broken = run(&profile.setup(seed), false).result.err();
        assert_eq!(broken, None, "ft-sim --profile {name} --seed {seed}");
    }
}

#[test]
fn a_seed_is_replayed_exactly() {
    for profile in ALL {
        let (one, other) = (run(&profile.setup(3), true), run(&profile.setup(3), true));
        assert_eq!((one.result, one.at, one.acts), (other.result, other.at, other.acts), "{}", profile.name);
        assert_eq!(one.history, other.history, "{}", profile.name);
    }
}
