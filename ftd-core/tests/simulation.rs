//! Random runs of a small cluster: deaths of ranks, agents, nodes, slots and servers, partitions, pauses, an unreachable
//! store, at any step. `FTD_SEED=n` repeats one run with its trace; `FTD_SIM_RUNS=n` runs that many, `FTD_SIM_FIRST=n`
//! from that seed on.

mod cluster;

use cluster::{Broken, Cluster, Fault, Rng, Setup};
use ftd_core::{Micros, Policy, SlotId};

const RUNS: u64 = 1200;

/// A run and how it ended.
fn run(seed: u64, broken: Broken, traced: bool) -> (Result<(i32, String), String>, Cluster) {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xf7d);
    let setup = setup(&mut rng, seed, broken);
    let (nodes, slots, ranks) = (u64::from(setup.nodes), u64::from(setup.slots), u64::from(setup.ranks));
    let mut cluster = Cluster::new(setup);
    cluster.traced = traced;
    let faults = rng.range(0, 8);
    let mut at = 0;
    for _ in 0..faults {
        // Often soon after the one before, to hit a recovery.
        at = if rng.chance(500) { at + rng.range(0, 30_000) } else { rng.range(0, 2_000_000) };
        let fault = fault(&mut rng, nodes, slots, ranks);
        let passing = matches!(fault, Fault::Cut { .. } | Fault::Isolate { .. } | Fault::StoreDown);
        cluster.fault_in(at, fault);
        if passing && rng.chance(700) {
            cluster.fault_in(at + rng.range(1000, 2_000_000), Fault::Heal);
        }
    }
    if rng.chance(100) {
        let when = rng.range(0, 2_000_000);
        cluster.fault_in(when, Fault::Cancel { signal: 15 });
    }
    cluster.fault_in(10_000_000, Fault::Heal);
    cluster.run_until(300_000_000, Cluster::over);
    let verdict = cluster.verdict().and_then(|(status, reason)| judge(status, reason, cluster.own_wish));
    (verdict, cluster)
}

/// A cluster, its job and its network.
fn setup(rng: &mut Rng, seed: u64, broken: Broken) -> Setup {
    let nodes = rng.range(3, 6) as u32;
    let slots = rng.range(1, 3) as u32;
    let spare = if rng.chance(600) { slots * rng.range(1, u64::from(nodes) - 1) as u32 } else { 0 };
    Setup {
        seed,
        nodes,
        slots,
        ranks: (nodes * slots - spare).max(1),
        policy: Policy {
            observers: rng.range(1, 3) as usize,
            max_failures: 50,
            recover_aborts: rng.chance(100),
            fence_kill: Micros::from_secs(rng.range(2, 60)),
            ..Policy::default()
        },
        renewable: rng.chance(500),
        steps: rng.range(50, 600),
        every: rng.range(5, 60),
        drop: if rng.chance(500) { rng.range(0, 100) } else { 0 },
        double: rng.range(0, 200),
        slow_network: if rng.chance(300) { rng.range(20, 700) } else { 0 },
        slow_store: if rng.chance(300) { rng.range(20, 700) } else { 0 },
        late_writes: 300,
        nervous: rng.chance(500),
        broken,
        ..Setup::default()
    }
}

fn fault(rng: &mut Rng, nodes: u64, slots: u64, ranks: u64) -> Fault {
    let node = rng.range(0, nodes - 1) as usize;
    let rank = rng.range(0, ranks - 1) as u32;
    let signal = [9, 11, 6][rng.range(0, 2) as usize];
    match rng.range(0, 18) {
        0..=4 => Fault::KillRank { rank, signal },
        5..=6 => Fault::KillAgent { node },
        7..=8 => Fault::KillNode { node },
        9 => Fault::KillServer { node },
        10 => Fault::LoseSlot { slot: SlotId(rng.range(0, nodes * slots - 1) as u32) },
        11..=12 => Fault::Suspend { node, us: rng.range(1000, 3_000_000) },
        13 => {
            let to = (node + rng.range(1, nodes - 1) as usize) % nodes as usize;
            Fault::Cut { from: node, to }
        }
        14..=15 => Fault::Isolate { node, store: rng.chance(500) },
        16 => Fault::StoreDown,
        _ if rng.chance(100) => Fault::AbortRank { rank, code: 3 * (rank % 2) as i32 },
        _ if rng.chance(100) => Fault::ExitRank { rank, code: 4 },
        _ => Fault::KillRank { rank, signal: 9 },
    }
}

/// Whether this was a way to end that the faults explain.
fn judge(status: i32, reason: String, own_wish: bool) -> Result<(i32, String), String> {
    let own = reason.contains("MPI_Abort") || reason.contains("exited with") || reason.contains("cancelled");
    let legitimate = status == 0
        || (own && own_wish)
        || reason.contains("cannot be placed")
        || reason.contains("for 50 ")
        || reason.contains("every node is dead")
        || reason.contains("was left out")
        || reason.contains("has not answered")
        || reason.contains("the job cannot start");
    if legitimate { Ok((status, reason)) } else { Err(format!("the job ended with {status}: {reason}")) }
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn jobs_continue_or_end_with_a_reason_and_never_break_an_invariant() {
    if let Some(seed) = environment("FTD_SEED") {
        let (verdict, cluster) = run(seed, Broken::Nothing, true);
        cluster.trace.iter().for_each(|line| println!("{line}"));
        println!("seed {seed}: {verdict:?} with {:?}", cluster.setup);
        assert!(verdict.is_ok(), "seed {seed}: {verdict:?}");
        return;
    }
    let runs = environment("FTD_SIM_RUNS").unwrap_or(RUNS);
    let (mut well, mut recoveries, mut failed) = (0, 0, Vec::new());
    let mut ends = std::collections::BTreeMap::new();
    let first = environment("FTD_SIM_FIRST").unwrap_or(0);
    for seed in first..first + runs {
        if failed.len() == 5 {
            break;
        }
        let (verdict, cluster) = run(seed, Broken::Nothing, false);
        match verdict {
            Err(error) => failed.push(format!("FTD_SEED={seed}: {error}")),
            Ok((0, _)) => well += 1,
            Ok((_, reason)) => *ends.entry(reason.chars().take(60).collect::<String>()).or_insert(0) += 1,
        }
        recoveries += cluster.record.map_or(0, |record| record.world.0.saturating_sub(1));
    }
    println!("{runs} runs, {recoveries} recoveries, {well} ended well; other ends: {ends:#?}");
    assert!(failed.is_empty(), "{} of at most {runs} runs failed:\n{}", failed.len(), failed.join("\n"));
    assert!(well * 2 > runs, "only {well} of {runs} jobs ended well: the runs are too harsh to show anything");
}

/// The simulation finds rules that are broken on purpose.
fn finds(broken: Broken, known: &[&str]) {
    let mut complaints = (0..3000).filter_map(|seed| run(seed, broken, false).0.err());
    assert!(
        complaints.any(|error| known.iter().any(|complaint| error.contains(complaint))),
        "{broken:?} was not found"
    );
}

#[test]
fn a_node_that_does_not_stop_when_cut_off_is_found() {
    finds(Broken::NoPause, &["computes on"]);
}

#[test]
fn an_inventory_with_half_a_copy_is_found() {
    finds(Broken::PartialInventory, &["restored 0 as", "does not hold"]);
}

#[test]
fn a_world_that_is_not_empty_is_found() {
    finds(Broken::EarlyEmptied, &["still"]);
}

#[test]
fn a_store_that_does_not_compare_is_found() {
    finds(Broken::BlindStore, &["was written after"]);
}
