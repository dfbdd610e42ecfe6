//! The processes of the world that is released, as far as files are concerned.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

/// Who may have files open.
#[derive(Debug)]
pub struct Writers {
    /// With a descriptor of each; without one it was gone when it was to be watched.
    known: BTreeMap<i32, Option<OwnedFd>>,
    /// Processes of which nobody has said yet that they run. They may, and die.
    awaited: usize,
    /// They are being killed.
    ending: bool,
    /// The shepherds: what the processes start stays below these, whoever of them ends first.
    roots: BTreeSet<i32>,
}

/// Nothing can be said before a world was launched by this agent: that of the one before it is being killed.
impl Default for Writers {
    fn default() -> Self {
        Writers { known: BTreeMap::new(), awaited: 0, ending: true, roots: BTreeSet::new() }
    }
}

impl Writers {
    /// Those of a world of so many processes, which are about to be started.
    pub fn of_world(processes: usize) -> Self {
        Writers { awaited: processes, ending: false, ..Writers::default() }
    }

    /// One of them runs.
    pub fn started(&mut self, pid: i32) {
        self.awaited = self.awaited.saturating_sub(1);
        self.roots.extend(ft_sys::process::parent_of(pid).filter(|parent| *parent > 1));
        self.joined(pid);
    }

    /// A process below one of them is the rank.
    pub fn joined(&mut self, pid: i32) {
        self.known.entry(pid).or_insert_with(|| ft_sys::process::pidfd_open(pid).ok());
    }

    /// A process ended with status 0.
    pub fn ended_well(&mut self, pid: i32) {
        self.known.remove(&pid);
    }

    /// The processes below which all others are.
    pub fn roots(&self) -> BTreeSet<i32> {
        self.roots.clone()
    }

    /// Those whose end the agent is told of.
    pub fn pids(&self) -> BTreeSet<i32> {
        self.known.keys().copied().collect()
    }

    /// They are about to be killed.
    pub fn world_ends(&mut self) {
        self.ending = true;
    }

    /// Whether up to now none of them was closing files because it died: the kernel marks a process as exiting before it
    /// closes the first.
    pub fn all_alive(&self) -> bool {
        !self.ending && self.awaited == 0 && self.known.iter().all(|(pid, pidfd)| lives(*pid, pidfd.as_ref()))
    }
}

fn lives(pid: i32, pidfd: Option<&OwnedFd>) -> bool {
    let Some(pidfd) = pidfd else { return false };
    // In this order: a number that was that of the process before the second question was its at the first.
    !ft_sys::death::is_past_user_code(pid).unwrap_or(true)
        && poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn one_that_is_awaited_or_dead_makes_everything_uncertain() {
        assert!(!Writers::default().all_alive());
        let mut writers = Writers::of_world(1);
        assert!(!writers.all_alive());
        let forks = crate::forks::one();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        drop(forks);
        let pid = child.id() as i32;
        writers.started(pid);
        assert!(writers.all_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!writers.all_alive());
        writers.ended_well(pid);
        assert!(writers.all_alive());
        writers.joined(pid);
        assert!(!writers.all_alive(), "one that was gone when it was to be watched");
        writers.ended_well(pid);
        writers.world_ends();
        assert!(!writers.all_alive());
    }
}
