//! Sentences with numbers in them are right for one as for several.

use ftd_core::binding::{Bind, Map, Policy, Processor, assign};
use ftd_core::plan::Unrecoverable;
use ftd_core::record::Suspect;
use ftd_core::{Cause, FailureSet, Micros};

#[test]
fn a_job_that_cannot_go_on() {
    let of_nodes = |missing, world_size, nodes, shared| {
        let (failures, waited) = (FailureSet::default(), Micros(0));
        Unrecoverable::NoSlot { missing, world_size, failures, waited, nodes, shared }.to_string()
    };
    let no_slot = |missing, world_size| of_nodes(missing, world_size, 1, false);
    let one = no_slot(1, 1);
    assert!(one.contains("its only rank cannot be placed: ") && one.ends_with("no free slot is left for it"), "{one}");
    let two = no_slot(1, 2);
    assert!(two.contains("1 of its 2 ranks cannot be") && two.ends_with("slot is left for 1 of them"), "{two}");
    let several = [false, true].map(|shared| of_nodes(1, 2, 2, shared));
    let remedy = |sentence: &String, shared| sentence.contains("--ft-oversubscribe") != shared;
    assert!(several.iter().all(|sentence| sentence.contains("(--ft-spares)") && sentence.contains("(--ft-wait)")));
    assert!(remedy(&several[0], false) && remedy(&several[1], true), "{several:?}");
    let few = |slots, world_size| Unrecoverable::TooFewSlots { slots, world_size }.to_string();
    assert!(few(1, 2).ends_with("it has 1 slot for 2 ranks") && few(0, 1).ends_with("it has 0 slots for 1 rank"));
    let crashes = |deaths| {
        let (suspect, progress_after, last) = (Suspect::Program, Micros(0), Cause::NodeSilent);
        Unrecoverable::CrashLoop { suspect, deaths, progress_after, history: Vec::new(), last }.to_string()
    };
    let once = "the program died by itself once without a newer complete checkpoint (--ft-max-failures)";
    assert!(crashes(1).contains(once), "{}", crashes(1));
    let twice =
        "the program died by itself 2 times in a row without a newer complete checkpoint between (--ft-max-failures)";
    assert!(crashes(2).contains(twice), "{}", crashes(2));
}

#[test]
fn a_binding_that_cannot_be_had() {
    let two: Vec<Processor> = (0..2).map(|number| Processor { package: 0, domain: 0, core: number, number }).collect();
    let refused = |ranks, cores| {
        let policy = Policy { bind: Bind::Core, map: Map::Slot, cores: Some(cores), ..Policy::DEFAULT };
        assign(&two, &policy, ranks).unwrap_err().to_string()
    };
    let one = "there is no room for 1 rank with 3 cores, none on two sockets, on the 2 cores that may be used here: give it fewer cores";
    assert_eq!(refused(1, 3), one);
    let several = "there is no room for 2 ranks with 2 cores each, none on two sockets, on the 2 cores that may be used here: \
                   start fewer, or give each fewer cores";
    assert_eq!(refused(2, 2), several);
    assert!(
        refused(3, 1).starts_with("to bind 3 ranks to 1 core each takes more than the 2 cores"),
        "{}",
        refused(3, 1)
    );
}
