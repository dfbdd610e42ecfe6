//! A schedule that fails is made shorter: faults are left out one by one, and shortened, as long as the same rule is
//! broken.

use crate::faults::Planned;
use crate::setup::{MS, Setup};
use std::mem::{Discriminant, discriminant};

/// So many runs at the most.
const MOST_RUNS: u32 = 300;

fn broken(setup: &Setup) -> Option<Discriminant<crate::Violation>> {
    crate::run(setup, false).result.err().map(|violation| discriminant(&violation))
}

/// The shortest schedule found that breaks the same rule.
pub fn shortest(setup: &Setup) -> Setup {
    let Some(rule) = broken(setup) else { return setup.clone() };
    let mut shortest = setup.clone();
    let mut runs = 0;
    loop {
        let better = candidates(&shortest).into_iter().find(|candidate| {
            runs += 1;
            runs <= MOST_RUNS && broken(candidate) == Some(rule)
        });
        match better {
            Some(better) => shortest = better,
            None => return shortest,
        }
    }
}

/// Schedules a little simpler than this one.
fn candidates(setup: &Setup) -> Vec<Setup> {
    let mut all = Vec::new();
    for index in 0..setup.faults.len() {
        let mut fewer = setup.clone();
        fewer.faults.remove(index);
        all.push(fewer);
    }
    let weather = crate::net::Weather::default();
    if setup.weather != weather {
        all.push(Setup { weather, ..setup.clone() });
    }
    if setup.stale_watch {
        all.push(Setup { stale_watch: false, ..setup.clone() });
    }
    if setup.width > 1 {
        all.push(Setup { width: 1, ..setup.clone() });
    }
    for index in 0..setup.faults.len() {
        let Planned { at, fault } = setup.faults[index];
        let span = fault.span();
        if span >= 20 * MS {
            let mut shorter = setup.clone();
            shorter.faults[index] = Planned { at, fault: fault.lasting(span / 4 * 3 / MS * MS) };
            all.push(shorter);
        }
    }
    all
}

/// The schedule, readable.
pub fn describe(setup: &Setup) -> String {
    let (nodes, slots, ranks, racks) = (setup.nodes, setup.slots, setup.ranks, setup.racks);
    let (observers, groups, steps) = (setup.policy.observers, setup.groups, setup.steps);
    let mut text = format!(
        "{nodes} nodes of {slots} slots in {racks} racks, {ranks} ranks in {groups} groups, {observers} observers, \
         {steps} steps of {} ms with a checkpoint every {}, patience {} s, {:?}",
        setup.pace / MS,
        setup.every,
        setup.patience / 1_000_000,
        setup.weather
    );
    for Planned { at, fault } in &setup.faults {
        text.push_str(&format!("\n  at {:>7.1} ms: {fault:?}", *at as f64 / 1000.0));
    }
    text
}
