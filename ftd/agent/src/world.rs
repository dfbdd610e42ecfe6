//! One world on this node, and its processes.

use crate::below::Below;
use crate::link::Link;
use ft_sys::memory::SharedMap;
use ft_wire::rank::page;
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
        killed(self.pid) || (!self.outlives_its_wrapper() && killed(self.child))
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
    /// Its processes here.
    pub members: BTreeMap<Rank, Member>,
    /// Slots that are not known to be empty yet.
    pub occupied: BTreeSet<Slot>,
    /// ftd-core wants to know when no slot is occupied.
    pub stopping: bool,
}

impl World {
    /// A world without processes.
    pub fn new(number: WorldNumber, epoch: Epoch) -> Self {
        World { number, epoch, members: BTreeMap::new(), occupied: BTreeSet::new(), stopping: false }
    }
}
