//! Worlds of real MPI programs below `ft-pmix`.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{Host, Mpi, Story, run, start_rank};
use std::time::Instant;

const KINDS: [fn() -> Option<Mpi>; 3] = [driver::ompi4, driver::ompi5, driver::ompi5_own_libpmix];

/// Runs a world of `size` ranks to its end.
fn world(mpi: &Mpi, what: &str, size: u32) -> Story {
    let folder = tempfile::tempdir().unwrap();
    let program = mpi.compile(folder.path());
    let tmpdir = folder.path().join("pmix");
    let began = Instant::now();
    let mut host = Host::start(&mpi.host_env, &tmpdir);
    let ready = began.elapsed();
    let env = host.register(&tmpdir, size);
    let registered = began.elapsed() - ready;
    let mut ranks: Vec<_> = env.iter().map(|rank| start_rank(mpi, &program, what, size, rank)).collect();
    let story = run(&mut host, &mut ranks, |story, ranks| {
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
        assert_eq!(sorted(story.connected.clone()), all, "{}", mpi.name);
        assert_eq!(sorted(story.finalized.clone()), all, "{}", mpi.name);
        
        assert_eq!(story.lost, [], "{}", mpi.name);
    });
}
