//! What can happen to a cluster, and when.

use crate::application::ProcId;
use crate::net::{Barrier, Set};
use crate::setup::Setup;
use crate::store::Trouble;
use crate::world::{Act, World};
use ftd_core::{Event, Exit, OwnEnd, Rank, SlotId};

/// What lasts so long does not end.
pub const FOREVER: u64 = 1_000_000_000;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    KillRank {
        rank: u32,
        signal: i32,
    },
    /// From now on the rank dies by itself in every world, before a newer checkpoint.
    Crashes {
        rank: u32,
    },
    /// From now on a rank dies by itself in every world, before a newer checkpoint: each time another one.
    CrashInTurn,
    ExitRank {
        rank: u32,
        code: i32,
    },
    /// The rank's next process that comes there ends with status 0 instead of calling `MPI_Init`, or within it.
    Absent {
        rank: u32,
        within: bool,
    },
    AbortRank {
        rank: u32,
        code: i32,
    },
    KillServer {
        node: usize,
    },
    KillAgent {
        node: usize,
        back_after: u64,
    },
    KillNodes(Set),
    /// The machine dies, and is on again after a while under its old id.
    Reboot {
        node: usize,
        back_after: u64,
    },
    /// The machine dies, and comes back after a while as a new node.
    Replace {
        node: usize,
        back_after: u64,
    },
    /// The copies that it keeps for others are not what their hashes say any more.
    Rot {
        node: usize,
    },
    /// A machine that was not in the job is given to it, as a new node.
    Join,
    LoseSlot {
        slot: u32,
    },
    /// The whole machine stands still.
    Suspend {
        node: usize,
        span: u64,
    },
    /// The agent alone stands still.
    Stall {
        node: usize,
        span: u64,
    },
    /// The node's lease in the store (its daemon's) is not renewed for so long, and nothing else happens.
    Lapse {
        node: usize,
        span: u64,
    },
    /// The shepherds alone stand still.
    Freeze {
        node: usize,
        span: u64,
    },
    Net {
        barrier: Barrier,
        span: u64,
    },
    Store {
        trouble: Trouble,
        span: u64,
    },
    DeleteKey,
    Cancel {
        signal: i32,
    },
    /// Every task is sent it; the ranks may go on.
    Signal {
        signal: i32,
    },
    /// Networks are well again.
    Heal,
}

/// A fault and when it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub at: u64,
    pub fault: Fault,
}

impl Planned {
    /// When it is over, or stands for good.
    pub fn ends(&self) -> u64 {
        if self.fault.span() >= FOREVER {
            return self.at;
        }
        let spread = match self.fault {
            Fault::Net { barrier: Barrier::Ports { spread, .. } | Barrier::Links { spread, .. }, .. } => spread,
            Fault::Store { trouble: Trouble::Loses { by, .. } | Trouble::LosesWrites { by, .. }, .. } => by,
            Fault::Store { trouble: Trouble::Slow(_, high) | Trouble::LateAnswers(_, high), .. } => high,
            Fault::Store { trouble: Trouble::Watches { up_to, .. }, .. } => up_to,
            _ => 0,
        };
        self.at + self.fault.span() + spread
    }
}

impl Fault {
    /// How long it lasts.
    pub fn span(&self) -> u64 {
        match *self {
            Fault::Suspend { span, .. } | Fault::Stall { span, .. } | Fault::Freeze { span, .. } => span,
            Fault::Net { span, .. } | Fault::Store { span, .. } | Fault::Lapse { span, .. } => span,
            Fault::KillAgent { back_after, .. }
            | Fault::Reboot { back_after, .. }
            | Fault::Replace { back_after, .. } => back_after,
            _ => 0,
        }
    }

    /// The same for another time.
    pub fn lasting(mut self, time: u64) -> Self {
        match &mut self {
            Fault::Suspend { span, .. } | Fault::Stall { span, .. } | Fault::Freeze { span, .. } => *span = time,
            Fault::Net { span, .. } | Fault::Store { span, .. } | Fault::Lapse { span, .. } => *span = time,
            Fault::KillAgent { back_after, .. }
            | Fault::Reboot { back_after, .. }
            | Fault::Replace { back_after, .. } => *back_after = time,
            _ => {}
        }
        self
    }
}

impl Setup {
    /// When the last fault is over.
    pub fn quiet_from(&self) -> u64 {
        self.faults.iter().map(Planned::ends).max().unwrap_or(0)
    }
}

impl World {
    /// The newest living process of a rank.
    fn living(&self, rank: u32) -> Option<ProcId> {
        let all = self.machines.iter().filter(|machine| machine.alive).flat_map(|machine| self.ranks.of(machine));
        let of_rank = all.filter(|(_, proc)| proc.name.rank == Rank(rank) && proc.dead.is_none());
        of_rank.max_by_key(|(_, proc)| proc.name.world).map(|(id, _)| id)
    }

    #[allow(clippy::too_many_lines, reason = "a table: one entry for each fault")]
    pub fn fault(&mut self, fault: Fault) {
        self.note(|| format!("fault: {fault:?}"));
        self.last_fault = self.now;
        let now = self.now;
        match fault {
            Fault::KillRank { rank, signal } => {
                if let Some(id) = self.living(rank) {
                    self.die(id, Exit::Signal(signal), false);
                }
            }
            Fault::Crashes { rank } => {
                self.crashing.insert(Rank(rank));
            }
            Fault::CrashInTurn => self.crash_in_turn = true,
            Fault::Absent { rank, within } => _ = self.absent.insert(Rank(rank), within),
            Fault::ExitRank { rank, code: 0 } => self.wish(rank, OwnEnd::NoFinalize),
            Fault::ExitRank { rank, code } => self.wish(rank, OwnEnd::ExitCode(code)),
            Fault::AbortRank { rank, code } => self.wish(rank, OwnEnd::Abort(code)),
            Fault::KillServer { node } => self.at(node).for_each(|node| self.lose_server(node)),
            Fault::KillAgent { node, back_after } => self.at(node).for_each(|node| self.kill_agent(node, back_after)),
            Fault::KillNodes(places) => self.crash_all(places),
            Fault::Reboot { node, back_after } => self.at(node).for_each(|node| self.reboot(node, back_after)),
            Fault::Replace { node, back_after } => {
                self.crash_all(Set::one(node));
                self.push(back_after, Act::Return { place: node });
            }
            Fault::Rot { node } => self.at(node).for_each(|node| self.rot(node)),
            Fault::Join => self.join(None),
            Fault::LoseSlot { slot } => self.lose_slot(SlotId(slot)),
            Fault::Suspend { node, span } => self.at(node).for_each(|node| self.suspend(node, span)),
            Fault::Stall { node, span } => self.at(node).for_each(|node| {
                let machine = &mut self.machines[node];
                machine.stalled_until = machine.stalled_until.max(now + span);
            }),
            Fault::Lapse { node, span } => self.at(node).for_each(|node| {
                let machine = &mut self.machines[node];
                machine.lapsed_until = machine.lapsed_until.max(now + span);
            }),
            Fault::Freeze { node, span } => self.at(node).for_each(|node| self.freeze(node, now + span)),
            Fault::Net { barrier, span } => self.net.raise(barrier, now, now + span),
            Fault::Store { trouble, span } => self.store.trouble(trouble, now, now + span),
            Fault::DeleteKey => self.store.delete(),
            Fault::Cancel { signal } => {
                self.cancelled.get_or_insert((signal, now));
                for node in 0..self.machines.len() {
                    self.local(node, Event::Cancel { signal });
                }
            }
            Fault::Signal { signal } => {
                self.signalled.push((signal, now));
                for node in 0..self.machines.len() {
                    for slot in self.machines[node].slots.clone() {
                        self.local(node, Event::Signalled { slot, signal });
                    }
                }
            }
            Fault::Heal => {
                self.net.heal();
                self.store.heal();
            }
        }
    }

    /// The nodes of a place: the one that is there, and those that it was.
    fn at(&self, place: usize) -> std::vec::IntoIter<usize> {
        let nodes = self.machines.iter().enumerate().filter(|(_, machine)| machine.place == place);
        nodes.map(|(node, _)| node).collect::<Vec<_>>().into_iter()
    }

    fn crash_all(&mut self, places: Set) {
        let doomed = (0..self.machines.len()).filter(|node| places.has(self.machines[*node].place));
        doomed.collect::<Vec<_>>().into_iter().for_each(|node| self.crash(node));
    }

    fn reboot(&mut self, node: usize, back_after: u64) {
        if self.machines[node].alive && self.machines[node].ended.is_none() {
            self.crash(node);
            let incarnation = self.machines[node].incarnation;
            self.push(back_after, Act::StartAgent { node, incarnation });
        }
    }

    fn lose_server(&mut self, node: usize) {
        let world = self.ranks.of(&self.machines[node]).map(|(_, proc)| proc.name.world).max();
        if let Some(world) = world {
            self.local(node, Event::WorldServerLost(world));
        }
    }

    fn suspend(&mut self, node: usize, span: u64) {
        let machine = &mut self.machines[node];
        machine.suspended_until = machine.suspended_until.max(self.now + span);
        self.checks.look_at(node);
        self.push(span, Act::Resume { node });
        // What may run on until its lease is over stands then.
        self.push(span + self.setup.timeout() / 4 * 3 + 1, Act::Resume { node });
    }

    /// A rank ends by its own wish.
    fn wish(&mut self, rank: u32, end: OwnEnd) {
        let Some(id) = self.living(rank) else { return };
        let name = self.ranks.get(id).name;
        self.ranks.wishes.push((name, end, self.now));
        match end {
            OwnEnd::Abort(code) => self.call_abort(id, code),
            OwnEnd::ExitCode(code) => self.die(id, Exit::Code(code), true),
            OwnEnd::NoFinalize => self.die(id, Exit::Code(0), true),
            OwnEnd::Script(signal) => self.die(id, Exit::Code(128 + signal), true),
        }
    }
}
