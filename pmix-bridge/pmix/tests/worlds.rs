//! Worlds of real MPI programs below `ft-pmix`.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{Host, Mpi, Story, run, start_rank};
use std::time::{Duration, Instant};

const KINDS: [fn() -> Option<Mpi>; 3] = [driver::ompi4, driver::ompi5, driver::ompi5_own_libpmix];

/// Runs a world of `size` ranks to its end.
fn world(mpi: &Mpi, what: &str, size: u32) -> Story {
    slow_world(mpi, what, size, Duration::ZERO)
}

/// The same; who finalizes waits for its answer for so long.
fn slow_world(mpi: &Mpi, what: &str, size: u32, finalize: Duration) -> Story {
    let folder = tempfile::tempdir().unwrap();
    let program = mpi.compile(folder.path());
    let tmpdir = folder.path().join("pmix");
    let began = Instant::now();
    let mut host = Host::start(&mpi.host_env, &tmpdir);
    let ready = began.elapsed();
    let env = host.register(&tmpdir, size);
    let registered = began.elapsed() - ready;
    let mut ranks: Vec<_> = env.iter().map(|rank| start_rank(mpi, &program, what, size, rank)).collect();
    let story = run(&mut host, &mut ranks, finalize, |story, ranks| {
        if !story.aborts.is_empty() {
            for rank in ranks {
                rank.kill().unwrap();
                rank.wait().unwrap();
            }
            return true;
        }
        false
    });
    println!(
        "{}: {what}, {size} ranks: {}; ready {ready:?}, registered {registered:?}, ended {:?}",
        mpi.name,
        host.version,
        began.elapsed()
    );
    host.kill();
    story
}

fn each(what: &str, sizes: &[u32], check: impl Fn(&Mpi, u32, &Story)) {
    for mpi in KINDS.iter().filter_map(|kind| kind()) {
        for size in sizes {
            check(&mpi, *size, &world(&mpi, what, *size));
        }
    }
}

#[test]
fn worlds_run_to_their_end() {
    each("sum", &[1, 2, 4], |mpi, size, story| {
        assert!(story.all_succeeded(), "{}: {story:?}", mpi.name);
        assert!(story.output.contains(&format!("sum: {size} ranks")), "{}: {story:?}", mpi.name);
        let all: Vec<_> = (0..size).collect();
        let sorted = |mut ranks: Vec<u32>| {
            ranks.sort_unstable();
            ranks
        };
        assert!(story.fences >= 1, "{}: {story:?}", mpi.name);
        assert_eq!(sorted(story.connected.clone()), all, "{}", mpi.name);
        assert_eq!(sorted(story.finalized.clone()), all, "{}", mpi.name);

        assert_eq!(story.lost, [], "{}", mpi.name);
    });
}

#[test]
fn no_rank_ends_before_the_agent_has_heard_that_it_finalized() {
    for mpi in KINDS.iter().filter_map(|kind| kind()) {
        let story = slow_world(&mpi, "sum", 2, Duration::from_millis(300));
        assert!(story.all_succeeded() && story.finalized.len() == 2, "{}: {story:?}", mpi.name);
        assert_eq!(story.unanswered, [], "{}: {story:?}", mpi.name);
    }
}

#[test]
fn names_are_published_found_and_withdrawn() {
    each("names", &[2], |mpi, _, story| {
        assert!(story.all_succeeded(), "{}: {story:?}", mpi.name);
        assert!(story.output.contains("names: 2 ranks"), "{}: {story:?}", mpi.name);
    });
}

#[test]
fn spawning_is_refused_and_the_world_goes_on() {
    each("spawn", &[2], |mpi, _, story| {
        assert!(story.all_succeeded(), "{}: {story:?}", mpi.name);
        assert_eq!(story.spawns, ["/bin/true"], "{}", mpi.name);
    });
}

#[test]
fn sessions_build_their_communicators() {
    each("session", &[2], |mpi, _, story| assert!(story.all_succeeded(), "{}: {story:?}", mpi.name));
}

#[test]
fn an_abort_is_held_and_nobody_ends_meanwhile() {
    each("abort", &[3], |mpi, size, story| {
        let [(rank, status, _)] = story.aborts.as_slice() else { panic!("{}: {story:?}", mpi.name) };
        assert_eq!((*rank, *status), (size - 1, 7), "{}", mpi.name);
        assert_eq!(story.statuses, vec![None; size as usize], "{}", mpi.name);
    });
}

/// Whether a rank that waits in `MPI_Barrier` calls `sched_yield`.
fn yields(mpi: &Mpi, size: u32) -> bool {
    let story = world(mpi, "sched", size);
    assert!(story.all_succeeded(), "{}: {story:?}", mpi.name);
    story.output.contains("yields")
}

#[test]
fn waiting_ranks_give_the_processor_away_when_there_are_more_ranks_than_processors() {
    let cpus = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    if cpus > 16 {
        println!("skipped: too many processors ({cpus}) to have more ranks than those");
        return;
    }
    for mpi in KINDS.iter().filter_map(|kind| kind()) {
        assert!(yields(&mpi, cpus + 1), "{}", mpi.name);
        assert!(!yields(&mpi, cpus), "{}", mpi.name);
    }
}
