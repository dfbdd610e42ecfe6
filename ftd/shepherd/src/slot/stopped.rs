//! A script whose rank was killed does not go on with its next command, which may remove what the next world needs.
//!
//! The kernel tells whoever holds a process that it has ended before it tells its parent. At a death by a signal, after which
//! the world will be over, whoever stands above the rank is stopped at once, until that is decided. An end that was the rank's
//! own is its script's affair, and so is every one after the job was told to end.

use super::*;
use individual::Held;
use std::collections::BTreeSet;

/// So long the decision may take, which is a matter of milliseconds. When none comes the script goes on: no stop is for ever.
const UNDECIDED: Duration = Duration::from_secs(2);
/// … and so long after a signal that Slurm has sent: a kill that follows one may be that of the whole job.
const AFTER_A_SIGNAL: Duration = Duration::from_secs(10);

/// Those that stand above the rank, as it joined.
#[derive(Debug, Default)]
pub(super) struct Above {
    /// The nearest first.
    scripts: Vec<Held>,
    /// The rank's end was seen.
    seen: bool,
}

/// Those who were stopped here, and by nobody else before. Who stood above the rank may be gone before it is decided what becomes
/// of them; what else was stopped goes on then all the same.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    processes: Vec<Held>,
    /// They go on then.
    until: Option<Instant>,
}

impl Above {
    /// Of this rank.
    pub(super) fn of(rank: i32) -> Above {
        let (me, mut above) = (std::process::id() as i32, individual::ancestors(rank));
        let own = above.iter().position(|pid| *pid == me).unwrap_or_default();
        above.truncate(own);
        Above { scripts: above.into_iter().skip(1).filter_map(Held::of).collect(), ..Above::default() }
    }
}

impl Joined {
    /// The rank, or, once it has ended, the nearest of those above it, which may work on what has come of it.
    pub(super) fn nearest(&self) -> Option<&Held> {
        std::iter::once(&self.held).chain(&self.above.scripts).find(|process| process.lives())
    }
}

impl Stopped {
    /// Whether nobody is held so.
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Stops these first, then all others below. Whoever cleans up when this process is killed now is to let them go on: those above
    /// the rank are noted as such, the others are before they are stopped.
    fn stop(&mut self, scripts: Vec<Held>, notes: &mut Notes, undecided: Duration) {
        self.processes.extend(scripts.into_iter().filter(stops));
        // A command that has just been started is no more to come to its end than the next one.
        let others: Vec<Held> =
            ft_sys::process::own_descendants().into_iter().filter_map(Held::of).filter(runs).collect();
        notes.stopped(self.processes.iter().chain(&others).map(|process| process.identity).collect());
        self.processes.extend(others.into_iter().filter(stops));
        self.until = Some(job_time::now() + scaled(undecided));
    }

    fn go_on(&mut self, notes: &mut Notes) {
        self.until = None;
        self.processes.drain(..).for_each(|process| drop(process.signal(nix::libc::SIGCONT)));
        notes.stopped(BTreeSet::new());
    }
}

/// Whether nobody has stopped a process.
fn runs(process: &Held) -> bool {
    ft_sys::process::condition(process.identity.pid).is_some_and(|its| !matches!(its.state, 'T' | 't'))
}

/// Stops a process. One that somebody has stopped already, that one will continue.
pub(super) fn stops(process: &Held) -> bool {
    runs(process) && process.signal(nix::libc::SIGSTOP).is_ok()
}

impl Slot {
    /// What tells of the rank's end, while that is of interest: of one with a script above it.
    pub fn rank(&self) -> Option<BorrowedFd<'_>> {
        let joined = self.joined.as_ref().filter(|joined| !joined.above.seen && !joined.above.scripts.is_empty())?;
        Some(joined.held.as_fd())
    }

    /// The rank has ended. Nothing else is done before this.
    pub fn rank_ended(&mut self) {
        let emptying = self.is_emptying();
        let Some(joined) = self.joined.as_mut().filter(|joined| !joined.held.lives()) else { return };
        joined.above.seen = true;
        let killed =
            ft_sys::post_mortem::status(&joined.held).map(|status| status & 0x7f).filter(|signal| *signal != 0);
        // A task's rank may have gone on after a signal: what kills it then is another one.
        let told = |signal: i32| if self.task.is_some() { self.told.contains(&signal) } else { !self.told.is_empty() };
        if killed.is_some_and(|signal| !told(signal)) && !emptying {
            let undecided = if self.told.is_empty() { UNDECIDED } else { AFTER_A_SIGNAL };
            self.stopped.stop(std::mem::take(&mut joined.above.scripts), &mut self.notes, undecided);
            ft_sys::gate::reach("shepherd.script-stopped", Some(self.number));
        }
    }

    /// It is decided what becomes of those above the rank, and they have been killed if they are to be.
    pub(super) fn scripts_go_on(&mut self) {
        if self.is_fenced() {
            let stopped = std::mem::take(&mut self.stopped);
            return self.go_on_with_lease(stopped.processes);
        }
        self.stopped.go_on(&mut self.notes);
    }

    /// How long until nothing is waited for any more.
    pub fn until_undecided(&self) -> Duration {
        self.stopped.until.map_or(Duration::MAX, job_time::until)
    }

    /// Lets scripts go on about which nobody decides.
    pub fn go_on_undecided(&mut self) {
        if self.until_undecided().is_zero() {
            self.scripts_go_on();
        }
    }
}
