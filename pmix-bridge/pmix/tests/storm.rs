//! Clients killed inside `MPI_Init`, again and again: whatever libpmix makes of it, nothing hangs, and a fresh `ft-pmix`
//! serves the next world.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{Host, Mpi, killed, run, start_rank};
use std::process::Child;
use std::time::{Duration, Instant};

/// Numbers that are the same in each run.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Kills what is left of a world.
fn end_all(mpi: &Mpi, round: u32, ranks: &mut [Child]) {
    for rank in ranks.iter_mut() {
        rank.kill().unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    for rank in ranks.iter_mut() {
        let status = loop {
            if let Some(status) = rank.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "{}: round {round}: a rank does not die", mpi.name);
            std::thread::sleep(Duration::from_millis(1));
        };
        // Open MPI may have ended a survivor by itself.
        assert!(killed(status) || !status.success(), "{}: round {round}: {status}", mpi.name);
    }
}

fn storm(mpi: &Mpi, rounds: u32) {
    let folder = tempfile::tempdir().unwrap();
    let program = mpi.compile(folder.path());
    let mut sequence = Sequence(42);
    let (mut before, mut inside) = (0, 0);
    let (mut reported, mut crashed) = (0, 0);
    let size = 4;
    for round in 0..rounds {
        let tmpdir = folder.path().join(round.to_string());
        let mut host = Host::start(&mpi.host_env, &tmpdir);
        let env = host.register(&tmpdir, size);
        host.may_crash = true;
        let mut ranks: Vec<_> = env.iter().map(|rank| start_rank(mpi, &program, "wait", size, rank)).collect();
        // One rank dies, then, up to 5 ms later, another: both inside the fence or on the way to it.
        let began = Instant::now();
        let first = Duration::from_millis(sequence.next(120));
        let second = first + Duration::from_micros(sequence.next(5000));
        let victims = [sequence.next(4) as usize, sequence.next(4) as usize];
        let mut dead = 0;
        let mut connected = 0;
        let story = run(&mut host, &mut ranks, Duration::ZERO, |story, ranks| {
            for (index, when) in [first, second].into_iter().enumerate() {
                if dead == index && began.elapsed() >= when {
                    ranks[victims[index]].kill().unwrap();
                    dead += 1;
                    connected = story.connected.len();
                }
            }
            // Long enough for what libpmix has to say about it; then the world is ended as the agent would do it.
            dead == 2 && began.elapsed() > second + Duration::from_millis(30)
        });
        if connected == 0 {
            before += 1
        } else {
            inside += 1
        }
        reported += story.lost.len();
        end_all(mpi, round, &mut ranks);
        crashed += u32::from(host.end());
    }
    println!(
        "{}: {before} before and {inside} inside MPI_Init; {reported} lost connections reported, \
         ft-pmix crashed {crashed} times",
        mpi.name
    );
    assert!(inside > 0, "{}: no kill fell into MPI_Init", mpi.name);
    // The same folder's parent, a fresh process: a whole world runs.
    let tmpdir = folder.path().join("after");
    let mut host = Host::start(&mpi.host_env, &tmpdir);
    let env = host.register(&tmpdir, size);
    let mut ranks: Vec<_> = env.iter().map(|rank| start_rank(mpi, &program, "sum", size, rank)).collect();
    let story = run(&mut host, &mut ranks, Duration::ZERO, |_, _| false);
    assert!(story.all_succeeded(), "{}: {story:?}", mpi.name);
    host.kill();
}

#[test]
fn open_mpi_4() {
    if let Some(mpi) = driver::ompi4() {
        storm(&mpi, 20);
    }
}

#[test]
fn open_mpi_5() {
    if let Some(mpi) = driver::ompi5() {
        storm(&mpi, 20);
    }
}

#[test]
fn open_mpi_5_on_its_own_libpmix() {
    if let Some(mpi) = driver::ompi5_own_libpmix() {
        storm(&mpi, 20);
    }
}
