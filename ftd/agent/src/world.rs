//! One world on this node, and its processes.

use crate::below::Below;
use crate::layout::Layout;
use crate::link::Link;
use ft_sys::memory::SharedMap;
use ft_wire::rank::page;
use ft_wire::shepherd::Start;
use ft_wire::{Epoch, Rank, Slot, World as WorldNumber};
use ftd_core::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One process of a world.
#[derive(Debug)]
pub struct Member {
    /// Its name in ftd-core's words.
    pub process: Process,
    /// Where it runs.
    pub slot: Slot,
    /// The shepherd's direct child.
    pub child: Option<i32>,
    /// The descendant that called `MPI_Init`, or as long as none has, `ft_init`: the rank.
    pub pid: Option<i32>,
    /// It has not called `MPI_Init`, and perhaps never will.
    pub without_mpi: bool,
    /// It has begun with `MPI_Session_init`, which waits for nobody.
    pub by_session: bool,
    /// How often it has joined.
    pub joins: u32,
    /// Page shared with the preload.
    pub page: Option<Arc<SharedMap>>,
    /// Connection to the preload.
    pub link: Option<Link>,
    /// Its MPI has found the server that the environment names, with no preload's help.
    pub served: bool,
    /// Its direct child has ended, and what that left behind has not come to `MPI_Init` in time.
    pub left_alone: bool,
    /// The end was reported to ftd-core.
    pub ended: bool,
    /// The rank, where that is not the shepherd's direct child.
    pub below: Option<Below>,
}

impl Member {
    /// A process that is about to be started.
    pub fn new(process: Process, slot: Slot) -> Self {
        Member {
            process,
            slot,
            child: None,
            pid: None,
            without_mpi: false,
            by_session: false,
            joins: 0,
            page: None,
            link: None,
            served: false,
            left_alone: false,
            ended: false,
            below: None,
        }
    }

    /// The process that called `MPI_Init`.
    pub fn mpi_pid(&self) -> Option<i32> {
        self.pid.filter(|_| !self.without_mpi)
    }

    /// Whether the process said that it ends by its own will, or is known to have done so.
    pub fn exits_by_itself(&self) -> bool {
        if self.without_mpi {
            return self.below.as_ref().is_some_and(Below::has_left);
        }
        self.page.as_ref().is_some_and(|p| p.u32_at(page::EXIT).load(Ordering::Acquire) & page::EXIT_MARK != 0)
    }

    /// The same, with status 0.
    pub fn exits_well(&self) -> bool {
        if self.without_mpi {
            return self.below.as_ref().is_some_and(Below::has_ended_well);
        }
        self.page.as_ref().is_some_and(|p| p.u32_at(page::EXIT).load(Ordering::Acquire) == page::EXIT_MARK)
    }

    /// Whether the process is dying or dead of a signal, as the kernel tells it now.
    pub fn died_of_signal(&self) -> bool {
        let killed = |pid: Option<i32>| pid.is_some_and(|pid| ft_sys::death::signal_of_dying(pid).is_some());
        killed(self.pid) || (!self.outlives_its_wrapper() && !self.has_left_its_wrapper() && killed(self.child))
    }

    /// Whether there may be a process here that starts an MPI alone: nobody has joined, or who did has ended and its wrapper
    /// goes on.
    pub fn may_be_alone(&self) -> bool {
        let over = || self.below.as_ref().is_some_and(Below::is_gone);
        !self.ended && !self.served && (self.mpi_pid().is_none() || over())
    }

    /// The death of a wrapper alone is not its rank's.
    fn outlives_its_wrapper(&self) -> bool {
        let below = self.pid.filter(|pid| self.child != Some(*pid));
        below.is_some_and(|pid| !ft_sys::death::is_dying(pid).unwrap_or(true))
    }

    /// The rank below a wrapper has ended by its own will: of what its wrapper dies then is the wrapper's affair, which its end tells.
    fn has_left_its_wrapper(&self) -> bool {
        let below = self.pid.is_some_and(|pid| self.child != Some(pid));
        below && self.exits_by_itself() && self.below.as_ref().is_some_and(Below::is_gone)
    }

    /// The rank is dying, and did not want to. `status`: what its wait status will be, should somebody have asked.
    pub fn note_death(&mut self, status: Option<i32>) {
        if let Some(below) = &mut self.below {
            below.note(status);
        }
    }

    /// The rank is gone from below its wrapper, and nobody knows any more how it ended: what the wrapper says counts.
    pub fn died_unseen(&self) -> bool {
        self.without_mpi && self.below.as_ref().is_some_and(Below::is_forgotten)
    }

    /// The signal that killed it below its wrapper, whatever that makes of it.
    pub fn signal_below(&self) -> Option<i32> {
        self.below.as_ref().and_then(Below::signal)
    }

    /// The rank died below the wrapper whose end is told now, and it was not its own will.
    pub fn died_below(&self) -> bool {
        !self.exits_by_itself() && self.below.as_ref().is_some_and(Below::is_gone)
    }

    /// What the kernel tells of the process now. Once its shepherd has waited for it, that is nothing but that it is gone:
    /// how it ended is in the shepherd's word, which is on its way.
    pub fn vitals(&self) -> Vitals {
        let gone = |pid: i32| ft_sys::death::is_dying(pid).unwrap_or(false);
        let below_a_wrapper = self.pid.filter(|pid| self.child != Some(*pid));
        if self.died_of_signal() || (below_a_wrapper.is_some_and(gone) && !self.exits_by_itself()) {
            Vitals::Killed
        } else if self.child.is_some_and(gone) && !self.outlives_its_wrapper() {
            Vitals::Leaving
        } else {
            Vitals::Alive
        }
    }
}

/// Whether a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vitals {
    /// It does.
    Alive,
    /// It is dying or dead, and did not want to.
    Killed,
    /// It is dead or on its way out, and its exit will say why.
    Leaving,
}

/// One world on this node.
#[derive(Debug)]
pub struct World {
    /// Its number.
    pub number: WorldNumber,
    /// The epoch that released it.
    pub epoch: Epoch,
    /// Which rank is where.
    pub layout: Arc<Layout>,
    /// Its processes here.
    pub members: BTreeMap<Rank, Member>,
    /// Slots that are not known to be empty yet.
    pub occupied: BTreeSet<Slot>,
    /// ftd-core wants to know when no slot is occupied.
    pub stopping: bool,
    /// Those that wait to be started until it is released.
    pub parked: Vec<(Slot, Start)>,
}

impl World {
    /// A world without processes.
    pub fn new(number: WorldNumber, epoch: Epoch, layout: Arc<Layout>) -> Self {
        let (members, occupied) = (BTreeMap::new(), BTreeSet::new());
        World { number, epoch, layout, members, occupied, stopping: false, parked: Vec::new() }
    }

    /// Its first process here that has not ended, or its first.
    pub fn first(&self) -> Option<Process> {
        let members = || self.members.values();
        members().find(|member| !member.ended).or_else(|| members().next()).map(|member| member.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_sys::individual::Held;
    use ftd_core::WorldId;
    use std::process::{Child, Command, Stdio};

    /// Its input is still open.
    fn started(script: &str) -> Child {
        let _forks = crate::forks::one();
        Command::new("bash").args(["-c", &format!("read; {script}")]).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// Ends it, and leaves its body.
    fn ended(child: &mut Child) {
        let held = Held::of(child.id() as i32).unwrap();
        drop(child.stdin.take());
        while held.lives() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_kills_a_script_whose_rank_has_left_is_not_what_the_rank_died_of() {
        for (mark, of_signal) in [(page::EXIT_MARK, false), (0, true)] {
            let (mut script, mut rank) = (started("kill -TERM $$"), started("exit 0"));
            let mut member = Member::new(Process::primary(WorldId(1), ftd_core::Rank(0)), 0);
            (member.child, member.pid) = (Some(script.id() as i32), Some(rank.id() as i32));
            member.below = Some(Below::new(Arc::new(Held::of(rank.id() as i32).unwrap())));
            let page = ft_sys::memory::create_memfd("page", page::SIZE as u64).unwrap();
            let page = SharedMap::map(&page, 0, page::SIZE).unwrap();
            page.u32_at(page::EXIT).store(mark, Ordering::Release);
            member.page = Some(Arc::new(page));
            assert!(!member.died_of_signal());
            ended(&mut rank);
            rank.wait().unwrap();
            ended(&mut script);
            assert_eq!(member.died_of_signal(), of_signal, "mark {mark}");
            assert_eq!(matches!(member.vitals(), Vitals::Killed), of_signal, "mark {mark}");
            script.wait().unwrap();
        }
    }
}
