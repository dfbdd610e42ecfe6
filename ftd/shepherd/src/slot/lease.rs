//! The node's lease: without one nothing below this shepherd computes, however its agent is (DESIGN §5).
//!
//! A job of one node has none, and then there is nothing to do here.

use super::*;
use ft_sys::memory::SharedMap;
use ft_wire::shepherd::lease;
use individual::Held;
use nix::sys::mman::{MlockAllFlags, mlockall};
use std::sync::atomic::Ordering;

/// How often processes that were told to stop are looked at until none runs.
const STOPPING: Duration = Duration::from_millis(1);
/// The same when one has not stopped for longer than [`PATIENT`]: the kernel is at work for it.
const STOPPED: Duration = Duration::from_millis(20);
/// Stopping takes less, as a rule.
const PATIENT: Duration = Duration::from_millis(50);

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Lease {
    page: Option<SharedMap>,
    /// Since when there is none.
    without: Option<Instant>,
    /// Those who were stopped for that, and by nobody else before.
    stopped: Vec<Held>,
    /// Somebody was still running at the last look.
    runs: bool,
    /// The job's user wants all of them to go on when they may.
    all_go_on: bool,
    /// What is below was killed.
    killed: bool,
}

impl Lease {
    fn at(&self, word: usize) -> u64 {
        self.page.as_ref().map_or(u64::MAX, |page| page.u64_at(word).load(Ordering::Acquire))
    }

    /// How long it runs.
    fn left(&self) -> Duration {
        left(self.at(lease::UNTIL))
    }

    /// How long until what is stopped is killed.
    fn until_killed(&self) -> Duration {
        if self.killed { Duration::MAX } else { left(self.at(lease::KILL)) }
    }

    /// Stops all below that run.
    fn stop(&mut self) {
        let known: Vec<_> = self.stopped.iter().map(|held| held.identity).collect();
        let below = ft_sys::process::own_descendants().into_iter().filter_map(Held::of);
        let running: Vec<Held> = below.filter(stopped::stops).collect();
        self.runs = !running.is_empty();
        self.stopped.extend(running.into_iter().filter(|held| !known.contains(&held.identity)));
    }

    fn go_on(&mut self) {
        self.stopped.drain(..).for_each(|process| drop(process.signal(nix::libc::SIGCONT)));
    }
}

fn left(until: u64) -> Duration {
    match until {
        u64::MAX => Duration::MAX,
        until => Duration::from_micros(until.saturating_sub(ft_sys::process::micros_since_boot())),
    }
}

impl Slot {
    /// From now on nothing runs here without a lease.
    pub(super) fn take_lease(&mut self, page: OwnedFd) -> Option<ToAgent> {
        // What is looked at in time must not wait for the disk. A user may lock little, and then it is as it is.
        let _ = mlockall(MlockAllFlags::MCL_CURRENT);
        match SharedMap::map(&page, 0, lease::SIZE) {
            Ok(page) => {
                self.lease.page = Some(page);
                None
            }
            Err(error) => Some(ToAgent::Notice(format!("the node's lease cannot be seen by its shepherds: {error}"))),
        }
    }

    /// The agent is gone, and with it everything below. The next one has a page of its own.
    pub fn forget_lease(&mut self) {
        self.lease = Lease::default();
    }

    /// Whether nothing may run here now.
    pub(super) fn is_fenced(&self) -> bool {
        self.lease.left().is_zero()
    }

    /// Those who were stopped for another reason would go on now; they do when they may.
    pub(super) fn go_on_with_lease(&mut self, processes: Vec<Held>) {
        self.lease.stopped.extend(processes);
    }

    /// Job control: the user stops what runs here, or lets it go on. False when there is no lease: what goes on does so with one.
    pub(super) fn job_control(&mut self, signal: i32) -> bool {
        let fenced = self.is_fenced();
        if fenced {
            self.lease.all_go_on = signal == nix::libc::SIGCONT;
            self.lease.stopped.clear();
        }
        !fenced
    }

    /// How long until the lease is to be looked at again, whatever happens.
    pub fn until_lease(&self) -> Duration {
        let left = self.lease.left();
        let Some(since) = self.lease.without.filter(|_| left.is_zero()) else { return left };
        if self.child.is_none() && !self.lease.runs {
            // Nobody is here. What comes waits for the lease.
            return Duration::MAX;
        }
        let often = self.lease.runs && since.elapsed() < PATIENT;
        if often { STOPPING } else { STOPPED.min(self.lease.until_killed()) }
    }

    /// Stops what is below when the lease has passed, again until nothing runs; kills it when there has been none for too long.
    pub fn stop_without_lease(&mut self) {
        if !self.is_fenced() {
            return;
        }
        self.lease.without.get_or_insert_with(Instant::now);
        // Those who were to be killed have been, and what filters have they may pass on.
        if !self.is_told_to_leave() {
            self.lease.stop();
        }
        if self.lease.until_killed().is_zero() {
            self.lease.killed = true;
            if let Some(world) = self.child.as_ref().map(|child| child.world) {
                self.stop(world, false, false);
            }
        }
    }

    /// The agent says that the lease runs again, or has ended. Its newest word is waited for: what it has said before that may have
    /// ended the world, and who is to be killed is not continued before.
    pub(super) fn look_at_lease(&mut self, turn: u64) {
        self.stop_without_lease();
        let newest = self.lease.at(lease::TURN) == turn;
        if newest && !self.is_fenced() && !self.is_told_to_leave() && self.lease.without.take().is_some() {
            self.lease.killed = false;
            self.lease.runs = false;
            self.lease.go_on();
            if std::mem::take(&mut self.lease.all_go_on) {
                ft_sys::process::signal_descendants(nix::libc::SIGCONT);
            }
        }
    }

    fn is_told_to_leave(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.left != Left::All(None))
    }

    /// Those below that were to be killed have been: nobody else is kept from passing on what it has.
    pub(super) fn filters_go_on(&mut self) {
        self.lease.go_on();
    }
}
