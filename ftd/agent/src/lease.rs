//! The lease that this node has for computing, where its shepherds see it: what stops and kills the ranks is theirs, so that it
//! happens whatever this agent does (DESIGN §5). A job of one node has none.

use crate::link::Link;
use crate::shepherds::Shepherds;
use ft_sys::individual::Held;
use ft_sys::memory::{SharedMap, allocate, create_sparse_sealed_memfd};
use ft_wire::shepherd::{ToShepherd, lease};
use ftd_core::agent::Leased;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// How often what runs below a shepherd is looked for; a shepherd that is there does it for as long as something runs.
const ROUNDS: u32 = 3;

#[derive(Debug)]
struct Page {
    map: SharedMap,
    fd: OwnedFd,
    written: Leased,
    /// So many words were said to shepherds about it.
    turn: u64,
}

/// The page, and who has been stopped by this agent.
#[derive(Debug, Default)]
pub struct Lease {
    page: Option<Page>,
    stopped: Vec<Held>,
}

impl Lease {
    /// Of a job of so many nodes.
    ///
    /// # Errors
    /// When there is no memory for a page.
    pub fn new(nodes: usize) -> io::Result<Lease> {
        if nodes < 2 {
            return Ok(Lease::default());
        }
        let size = lease::SIZE as u64;
        let fd = create_sparse_sealed_memfd("ft-lease", size)?;
        allocate(&fd, 0, size)?;
        let map = SharedMap::map(&fd, 0, lease::SIZE)?;
        Ok(Lease { page: Some(Page { map, fd, written: Leased::NONE, turn: 0 }), stopped: Vec::new() })
    }

    /// A shepherd is there: it stops its rank without a lease from now on.
    pub fn show(&self, shepherd: &Link) {
        let Some(page) = &self.page else { return };
        match page.fd.try_clone() {
            Ok(fd) => shepherd.send_with(&ToShepherd::Lease, vec![fd]),
            Err(error) => shepherd.give_up(format!("it cannot be shown the node's lease: {error}")),
        }
    }

    /// Writes down how long it runs. Shepherds that wait for it are told.
    pub fn write(&mut self, shepherds: &Shepherds, leased: Leased) {
        let Some(page) = self.page.as_mut().filter(|page| page.written != leased) else { return };
        let before = std::mem::replace(&mut page.written, leased);
        // What is shorter than what a shepherd has seen it would see too late, and what was stopped goes on at a word.
        let passed = || before.until.0 <= ft_sys::process::micros_since_boot();
        let mut tell = leased.until < before.until || passed();
        page.turn += u64::from(tell);
        page.map.u64_at(lease::TURN).store(page.turn, Ordering::Release);
        page.map.u64_at(lease::KILL).store(leased.kill.0, Ordering::Release);
        page.map.u64_at(lease::UNTIL).store(leased.until.0, Ordering::Release);
        if !tell && passed() {
            // It may have passed before this was written.
            tell = true;
            page.turn += 1;
            page.map.u64_at(lease::TURN).store(page.turn, Ordering::Release);
        }
        if tell {
            shepherds.tell_all(&ToShepherd::LookAtLease { turn: page.turn });
        }
    }

    /// There is none: what runs below the shepherds is stopped, should one of them not be there to do it.
    pub fn stop(&mut self, shepherds: &Shepherds) {
        for _ in 0..ROUNDS {
            let below = shepherds.processes().flat_map(ft_sys::process::descendants);
            let running: Vec<Held> = below.filter_map(Held::of).filter(stops).collect();
            if running.is_empty() {
                break;
            }
            self.stopped.extend(running);
        }
    }

    /// There is one again.
    pub fn go_on(&mut self) {
        self.stopped.drain(..).for_each(|process| drop(process.signal(nix::libc::SIGCONT)));
    }

    /// Whoever was stopped is to be killed: nobody goes on.
    pub fn forget_stopped(&mut self) {
        self.stopped.clear();
    }
}

/// Stops a process. One that somebody has stopped already, that one will continue.
fn stops(process: &Held) -> bool {
    let runs = ft_sys::process::condition(process.identity.pid).is_some_and(|its| !matches!(its.state, 'T' | 't'));
    runs && process.signal(nix::libc::SIGSTOP).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::Micros;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn state(pid: i32) -> Option<char> {
        ft_sys::process::condition(pid).map(|its| its.state)
    }

    fn eventually(what: impl Fn() -> bool, text: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < until, "waited in vain for {text}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A shepherd that does nothing, and what stands below it: a command, and another one that somebody has stopped already.
    fn shepherd() -> (Child, Vec<i32>) {
        let mut command = Command::new("bash");
        command.args(["-c", "sleep 100 & sleep 100 & kill -STOP $!; read; kill -KILL %1 %2"]).stdin(Stdio::piped());
        let forks = crate::forks::one();
        let child = command.spawn().unwrap();
        drop(forks);
        let pid = child.id() as i32;
        let below = || ft_sys::process::descendants(pid);
        eventually(|| below().len() == 2 && below().iter().any(|pid| state(*pid) == Some('T')), "two commands");
        (child, below())
    }

    #[test]
    fn a_frozen_shepherd_leaves_nobody_running_and_what_others_stopped_stays_so() {
        let (mut child, below) = shepherd();
        let theirs: Vec<i32> = below.iter().copied().filter(|pid| state(*pid) == Some('T')).collect();
        let [first, second] = below[..] else { panic!("{below:?}") };
        let mut shepherds = Shepherds::default();
        shepherds.expect(0, child.id() as i32);
        let mut lease = Lease::new(2).unwrap();
        lease.stop(&shepherds);
        eventually(|| [first, second].iter().all(|pid| state(*pid) == Some('T')), "both to stand still");
        lease.go_on();
        eventually(
            || below.iter().filter(|pid| state(**pid) == Some('T')).copied().collect::<Vec<_>>() == theirs,
            "ours",
        );
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn what_is_written_is_what_shepherds_see_and_one_node_has_no_page() {
        let mut lease = Lease::new(2).unwrap();
        let leased = Leased { until: Micros(7), kill: Micros(9) };
        lease.write(&Shepherds::default(), leased);
        let page = lease.page.as_ref().unwrap();
        let seen = SharedMap::map(&page.fd, 0, lease::SIZE).unwrap();
        let word = |at| seen.u64_at(at).load(Ordering::Acquire);
        assert_eq!((word(lease::UNTIL), word(lease::KILL)), (7, 9));
        assert!(Lease::new(1).unwrap().page.is_none());
    }
}
