//! A real shepherd enforces the lease of its node by itself: the test plays its agent, which writes the lease on a page and says
//! nothing more, as one that is slow, stopped or dead.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod job;

use ft_sys::memory::{SharedMap, create_sparse_sealed_memfd};
use ft_sys::process::{condition, kill, micros_since_boot};
use ft_wire::shepherd::{ToAgent, ToShepherd, lease};
use job::{Input, Job, eventually};
use nix::libc;
use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A shepherd that has seen the page.
struct Leased {
    job: Job,
    page: SharedMap,
    turn: u64,
}

const NEVER: u64 = u64::MAX;

fn soon(time: Duration) -> u64 {
    micros_since_boot() + time.as_micros() as u64
}

impl Leased {
    fn start() -> Leased {
        let mut job = Job::start(Input::Null);
        let fd = create_sparse_sealed_memfd("lease", lease::SIZE as u64).unwrap();
        let page = SharedMap::map(&fd, 0, lease::SIZE).unwrap();
        page.u64_at(lease::UNTIL).store(NEVER, Ordering::Release);
        job.agent.send(&ToShepherd::Lease, &[fd.as_fd()]).unwrap();
        Leased { job, page, turn: 0 }
    }

    fn write(&self, until: u64, kill: u64) {
        self.page.u64_at(lease::KILL).store(kill, Ordering::Release);
        self.page.u64_at(lease::UNTIL).store(until, Ordering::Release);
    }

    /// Says that the page was written.
    fn look(&mut self) {
        self.turn += 1;
        self.page.u64_at(lease::TURN).store(self.turn, Ordering::Release);
        self.job.say(&ToShepherd::LookAtLease { turn: self.turn });
    }

    /// Takes the lease away, and waits until nobody runs.
    fn take_away(&mut self) {
        self.write(0, NEVER);
        self.look();
        eventually(|| self.stand_still(), "everybody to stand still");
    }

    fn states(&self) -> Vec<char> {
        self.job.alive().into_iter().filter_map(condition).map(|its| its.state).collect()
    }

    fn stand_still(&self) -> bool {
        let states = self.states();
        !states.is_empty() && states.iter().all(|state| *state == 'T')
    }

    fn here(&self, name: &str) -> std::path::PathBuf {
        self.job.job_dir.parent().unwrap().join(name)
    }

    fn beats(&self) -> u64 {
        fs::metadata(self.here("beats")).map_or(0, |file| file.len())
    }
}

/// A wrapper, a rank below it, and what that has started; all of them do something all the time.
const TREE: &str = "beat() { while :; do echo -n x >> $HERE/beats; read -t 0.001 < /dev/zero; done; }
    (beat & beat) & setsid bash -c \"$(declare -f beat); beat\" & beat";

/// Says when it is continued, and is so before many others.
const NOTES: &str = "trap 'echo x > $HERE/went-on' CONT; for i in $(seq 60); do sleep 100 & done; echo > $HERE/ready;
    while :; do read -t 0.001 < /dev/zero; done";

#[test]
fn nobody_computes_when_the_lease_has_passed_and_all_go_on_when_it_runs_again() {
    let mut leased = Leased::start();
    leased.job.run(1, TREE);
    leased.job.wait_alive(4);
    // Long enough for everything else that wakes a shepherd to have become rare.
    let until = soon(Duration::from_millis(2500));
    leased.write(until, NEVER);
    // The shepherd reads what is written when it looks the next time; the agent that said so is stopped from now on.
    leased.look();
    eventually(|| micros_since_boot() > until - 100_000, "the end of the lease to come near");
    assert!(!leased.stand_still() || micros_since_boot() >= until, "they were stopped too early");
    eventually(|| leased.stand_still(), "everybody to stand still");
    let late = Duration::from_micros(micros_since_boot().saturating_sub(until));
    assert!(late < Duration::from_secs(2), "they were stopped {late:?} too late");
    let beats = leased.beats();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((leased.beats(), leased.stand_still()), (beats, true));
    leased.write(NEVER, NEVER);
    leased.look();
    eventually(|| leased.beats() > beats + 10 && !leased.states().contains(&'T'), "all to go on");
    leased.job.stop(1);
}

#[test]
fn a_lease_that_is_renewed_in_time_stops_nobody() {
    let mut leased = Leased::start();
    leased.job.run(1, TREE);
    leased.job.wait_alive(4);
    for _ in 0..100 {
        leased.write(soon(Duration::from_secs(2)), NEVER);
        leased.look();
        assert!(!leased.states().contains(&'T'));
    }
    leased.job.stop(1);
}

#[test]
fn those_that_fork_and_leave_are_stopped_as_well() {
    // Each process lives for a fraction of a millisecond, in a session of its own.
    let chain = "perl -MPOSIX -e 'open F, \">>$ENV{HERE}/beats\"; $end = time + 20;
        while (time < $end) { if (fork()) { POSIX::_exit(0) } POSIX::setsid(); syswrite F, \"x\" }' & exec sleep 100";
    let mut leased = Leased::start();
    leased.job.run(1, chain);
    eventually(|| leased.beats() > 100, "the chain");
    leased.write(0, NEVER);
    leased.look();
    let ended = || {
        let before = leased.beats();
        std::thread::sleep(Duration::from_millis(50));
        leased.beats() == before
    };
    eventually(ended, "the end of the chain");
    leased.job.stop(1);
}

#[test]
fn what_somebody_else_has_stopped_stays_so_and_what_somebody_lets_go_on_does_not() {
    let mut leased = Leased::start();
    leased.job.run(1, &format!("sleep 100 & echo $! > $HERE/inner; {NOTES}"));
    let inner: i32 = leased.job.wait_file("inner").trim().parse().unwrap();
    kill(inner, libc::SIGSTOP);
    eventually(|| condition(inner).is_some_and(|its| its.state == 'T'), "the stop");
    leased.take_away();
    // The job's user types fg; then a debugger lets all go on.
    for _ in 0..20 {
        leased.job.say(&ToShepherd::Signal(libc::SIGCONT));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(leased.stand_still() && !leased.here("went-on").exists(), "job control lets nobody compute");
    for pid in leased.job.alive() {
        kill(pid, libc::SIGCONT);
    }
    eventually(|| leased.stand_still(), "all to be stopped again");
    leased.write(NEVER, NEVER);
    leased.look();
    eventually(|| !leased.states().contains(&'T'), "what the user has let go on meanwhile");
    leased.job.stop(1);

    leased.job.run(2, "sleep 100 & echo $! > $HERE/second; wait");
    let inner: i32 = leased.job.wait_file("second").trim().parse().unwrap();
    kill(inner, libc::SIGSTOP);
    eventually(|| condition(inner).is_some_and(|its| its.state == 'T'), "the stop");
    leased.take_away();
    leased.write(NEVER, NEVER);
    leased.look();
    eventually(|| leased.states().contains(&'S'), "its parent to go on");
    assert_eq!(condition(inner).unwrap().state, 'T', "who has stopped it continues it");
    leased.job.stop(2);
}

#[test]
fn nobody_starts_without_a_lease() {
    let mut leased = Leased::start();
    leased.write(0, NEVER);
    let start = leased.job.order(1, "echo ran > $HERE/ran; exec sleep 100");
    leased.job.say(&ToShepherd::Start(start));
    std::thread::sleep(Duration::from_millis(100));
    assert!(leased.job.alive().is_empty() && !leased.here("ran").exists());
    leased.write(NEVER, NEVER);
    leased.look();
    assert!(matches!(leased.job.hear(), ToAgent::Started { world: 1, rank: 3, .. }));
    leased.job.wait_file("ran");
    leased.job.stop(1);
}

#[test]
fn who_is_to_be_killed_is_not_continued_before() {
    let mut leased = Leased::start();
    for world in 1..=5 {
        leased.job.run(world, NOTES);
        leased.job.wait_file("ready");
        fs::remove_file(leased.here("ready")).unwrap();
        leased.take_away();
        // Both are there when the shepherd looks: there is a lease for the next world.
        let shepherd = leased.job.shepherd.id() as i32;
        kill(shepherd, libc::SIGSTOP);
        eventually(|| condition(shepherd).is_some_and(|its| its.state == 'T'), "the shepherd to stand still");
        // … and a word that it has not read yet.
        leased.look();
        leased.write(NEVER, NEVER);
        leased.job.say(&ToShepherd::Stop { world, over: false, refused: false });
        leased.look();
        kill(shepherd, libc::SIGCONT);
        while leased.job.hear() != (ToAgent::Emptied { world }) {}
        assert_eq!(leased.job.alive(), [0; 0]);
        assert!(!leased.here("went-on").exists(), "world {world}");
    }
}

#[test]
fn what_has_had_no_lease_for_too_long_is_killed() {
    let mut leased = Leased::start();
    let pid = leased.job.run(1, TREE);
    leased.job.wait_alive(4);
    leased.write(0, soon(Duration::from_millis(300)));
    leased.look();
    eventually(|| leased.stand_still(), "everybody to stand still");
    // Nobody says anything.
    let heard = [leased.job.hear(), leased.job.hear()];
    assert!(heard.contains(&ToAgent::Emptied { world: 1 }), "{heard:?}");
    let ended =
        |said: &ToAgent| matches!(said, ToAgent::Exited { world: 1, pid: p, status: libc::SIGKILL, .. } if *p == pid);
    assert!(heard.iter().any(ended), "{heard:?}");
    assert_eq!(leased.job.alive(), [0; 0]);
    // The slot is as good as before.
    leased.write(NEVER, NEVER);
    leased.job.run(2, "exit 0");
}
