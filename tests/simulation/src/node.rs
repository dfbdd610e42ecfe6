//! A machine of the cluster: its slots, their shepherds, its agent's incarnations and clock.
//!
//! Shepherds take the agent's commands in order, and what has come in is taken before the first SIGKILL of a stop. Each
//! has a timer on the page with the lease's end that the agent writes: when it passes, it stops its rank, whatever the
//! agent does; when the lease runs again it continues what it stopped, and nothing else.

use crate::application::ProcId;
use crate::arenas::Arena;
use crate::breach::Breach;
use crate::fetches::Fetching;
use crate::setup::{Obedience, SECOND};
use crate::world::{Act, Packet, World};
use ftd_core::{Agent, EpochId, Event, Exit, GroupId, Outcome, Process, Rank, SlotId, Stamp, Standing, WorldId};
use std::collections::{BTreeMap, BTreeSet};

/// What the agent tells its shepherds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// SIGSTOP to every rank.
    Pause,
    /// SIGCONT to every rank.
    Continue,
    /// SIGKILL to every process of this world.
    Stop(WorldId),
    /// Processes of this world that wait before `main` go on.
    Release(WorldId),
}

/// The page that the agent shares with its shepherds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Page {
    /// When the right to compute ends (the run's time); `None`: nobody wrote it, and shepherds go by commands alone.
    pub lease: Option<u64>,
}

/// Why a node's ranks stand still; each reason goes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stopped {
    /// The agent said so.
    pub by_agent: bool,
    /// The shepherds' own timers.
    pub by_lease: bool,
}

pub struct Machine {
    /// Where it is plugged in: what happens to networks, racks and machines happens to places. A machine that comes back
    /// is another node of the same place.
    pub place: usize,
    pub alive: bool,
    /// When its agent was started last.
    pub since: u64,
    /// When it crashed last.
    pub crashed_at: Option<u64>,
    pub agent: Option<Agent>,
    /// Counts agents; what was meant for an earlier one is not for this one.
    pub incarnation: u64,
    /// The clock of this machine is ahead of the run's by this.
    pub offset: u64,
    /// When the agent before this one died, and the epoch that it knew.
    pub predecessor: Option<(u64, EpochId)>,
    /// When the agent is woken.
    pub wake: Option<u64>,
    /// The newest revision of which a watch is on its way.
    pub watched: u64,
    /// When its agent read the record last to see whether its watch has missed something.
    pub reread_at: u64,
    /// The request to the store that is not answered yet.
    pub asked: Option<u64>,
    pub slots: BTreeSet<SlotId>,
    pub procs: Vec<ProcId>,
    pub commands: Vec<Command>,
    pub page: Page,
    pub stopped: Stopped,
    /// The whole machine stands still until then; it may compute for ¾ T after it.
    pub suspended_until: u64,
    /// The agent alone stands still until then.
    pub stalled_until: u64,
    /// The shepherds alone do.
    pub frozen_until: u64,
    /// Its daemon does not hold its lease in the store until then.
    pub lapsed_until: u64,
    pub arena: Arena,
    /// Nothing of an epoch before this one is committed any more.
    pub frozen: EpochId,
    /// Copies that it waits for.
    pub fetches: Vec<Fetching>,
    /// What `ft_restore` gives.
    pub restore: BTreeMap<(EpochId, GroupId), Option<Stamp>>,
    pub ended: Option<(Outcome, Standing)>,
}

impl Machine {
    pub fn new(place: usize, offset: u64, slots: BTreeSet<SlotId>) -> Self {
        Machine {
            place,
            alive: true,
            since: 0,
            crashed_at: None,
            agent: None,
            incarnation: 0,
            offset,
            predecessor: None,
            wake: None,
            watched: 0,
            reread_at: 0,
            asked: None,
            slots,
            procs: Vec::new(),
            commands: Vec::new(),
            page: Page::default(),
            stopped: Stopped::default(),
            suspended_until: 0,
            stalled_until: 0,
            frozen_until: 0,
            lapsed_until: 0,
            arena: Arena::default(),
            frozen: EpochId(0),
            fetches: Vec::new(),
            restore: BTreeMap::new(),
            ended: None,
        }
    }

    /// Whether its ranks stand still.
    pub fn still(&self, now: u64) -> bool {
        self.stopped.by_agent || self.stopped.by_lease || self.suspended_until > now
    }

    /// It loses everything, and its agent with it.
    pub fn crash(&mut self, now: u64) {
        let incarnation = self.incarnation + 1;
        *self = Machine::new(self.place, self.offset, BTreeSet::new());
        self.alive = false;
        self.crashed_at = Some(now);
        self.incarnation = incarnation;
    }

    /// The agent is gone. Shepherds notice, and kill their ranks.
    pub fn lose_agent(&mut self, now: u64) {
        let epoch = self.agent.take().and_then(|agent| agent.record().map(|record| record.epoch));
        self.predecessor = Some((now, epoch.unwrap_or_default()));
        self.incarnation += 1;
        self.wake = None;
        self.asked = None;
        self.fetches.clear();
        self.commands.clear();
    }
}

impl World {
    /// Commands arrive a little later, in order.
    pub fn command(&mut self, node: usize, command: Command) {
        // The agent's own SIGSTOP waits for no shepherd.
        if self.machines[node].frozen_until > self.now && command == Command::Pause {
            return self.stop(node, |stopped| stopped.by_agent = true);
        }
        self.machines[node].commands.push(command);
        let delay = self.rng.range(5, 100);
        self.push(delay, Act::Shepherds { node });
    }

    /// Shepherds read what has come in; a stop's first SIGKILL comes after it.
    pub fn shepherds(&mut self, node: usize) {
        let until = self.machines[node].frozen_until;
        if until > self.now {
            return self.queue.push(until, Act::Shepherds { node });
        }
        for command in std::mem::take(&mut self.machines[node].commands) {
            match command {
                Command::Pause => self.stop(node, |stopped| stopped.by_agent = true),
                Command::Continue => self.stop(node, |stopped| stopped.by_agent = false),
                Command::Release(world) => self.unpark(node, world),
                Command::Stop(world) => {
                    let delay = self.rng.range(10, 200);
                    self.push(delay, Act::Kill { node, world });
                }
            }
        }
    }

    /// The shepherds take nothing in, and look at no clock.
    pub fn freeze(&mut self, node: usize, until: u64) {
        self.machines[node].frozen_until = until;
    }

    fn stop(&mut self, node: usize, change: impl Fn(&mut Stopped)) {
        let machine = &mut self.machines[node];
        change(&mut machine.stopped);
        self.checks.look_at(node);
        if !machine.still(self.now) {
            self.go_all(node);
        }
    }

    fn unpark(&mut self, node: usize, world: WorldId) {
        for id in self.machines[node].procs.clone() {
            let proc = self.ranks.get_mut(id);
            proc.parked &= proc.name.world != world;
        }
        self.checks.look_at(node);
        self.go_all(node);
    }

    /// The agent writes the lease's end on the page.
    pub fn write_lease(&mut self, node: usize, until: u64) {
        let machine = &mut self.machines[node];
        if machine.page.lease != Some(until) {
            machine.page.lease = Some(until);
            self.queue.push(until.max(self.now), Act::Lease { node });
            if until > self.now && machine.stopped.by_lease && machine.frozen_until <= self.now {
                self.stop(node, |stopped| stopped.by_lease = false);
            }
        }
    }

    /// A shepherd's own timer.
    pub fn lease_timer(&mut self, node: usize) {
        let (now, machine) = (self.now, &self.machines[node]);
        if machine.frozen_until > now {
            return self.queue.push(machine.frozen_until, Act::Lease { node });
        }
        let passed = machine.page.lease.is_some_and(|until| until <= now);
        // What runs again since, nobody has told the shepherds.
        if passed || machine.stopped.by_lease {
            self.stop(node, |stopped| stopped.by_lease = passed);
        }
    }

    pub fn kill_world(&mut self, node: usize, world: WorldId) {
        let incarnation = self.machines[node].incarnation;
        if self.setup.breach != Some(Breach::EarlyEmptied) {
            for id in self.machines[node].procs.clone() {
                if self.ranks.get(id).name.world == world {
                    self.put_down(id);
                }
            }
        }
        let delay = self.rng.range(10, 300);
        self.push(delay, Act::Empty { node, incarnation, world });
    }

    /// ftd ends a process: nobody may be blamed for that.
    fn put_down(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        if proc.dead.is_none() {
            let name = proc.name;
            self.check_grace(name);
            self.checks.put_down.insert(name);
            self.die(id, Exit::Signal(9), false);
        }
    }

    /// The shepherds of a dead agent end their ranks.
    pub fn orphans(&mut self, node: usize, incarnation: u64) {
        if self.machines[node].incarnation == incarnation {
            for id in self.machines[node].procs.clone() {
                self.die(id, Exit::Signal(9), false);
            }
            self.machines[node].stopped = Stopped::default();
        }
    }

    pub fn kill_agent(&mut self, node: usize, back_after: u64) {
        let now = self.now;
        let machine = &mut self.machines[node];
        if !machine.alive || machine.agent.is_none() || machine.ended.is_some() {
            return;
        }
        machine.lose_agent(now);
        machine.stalled_until = 0;
        let incarnation = machine.incarnation;
        let delay = self.rng.range(10, 2000);
        self.push(delay, Act::Orphans { node, incarnation });
        self.push(back_after, Act::StartAgent { node, incarnation });
    }

    /// The machine loses its power; what ran on it is gone without a word.
    pub fn crash(&mut self, node: usize) {
        for id in self.machines[node].procs.clone() {
            let proc = self.ranks.get_mut(id);
            proc.dies(Exit::Signal(9), self.now);
            let name = proc.name;
            // Some networks tell their neighbours.
            if self.rng.chance(500) {
                for peer in self.program.neighbours(name.rank).to_vec() {
                    if let Some(other) = self.ranks.named(Process::primary(name.world, Rank(peer))) {
                        let (to, delay) = (self.ranks.get(other).node, self.rng.range(5000, 400_000));
                        self.push(delay, Act::Arrive { to, packet: Packet::Reset { to: other } });
                    }
                }
            }
        }
        self.machines[node].crash(self.now);
        self.checks.look_at(node);
        self.checks.lost(node, self.now);
    }

    /// A new node, with empty arenas and slots that nobody had: on a machine that was in the job, or on another one.
    pub fn join(&mut self, place: Option<usize>) {
        let (node, slots) = (self.machines.len(), self.setup.slots);
        let offset = self.rng.range(0, 10 * SECOND);
        let was = self.machines.iter().position(|machine| Some(machine.place) == place);
        if let Some(same) = was.filter(|_| self.setup.breach == Some(Breach::SameNode)) {
            let machine = &mut self.machines[same];
            machine.lose_agent(self.now);
            machine.ended = None;
            let incarnation = machine.incarnation;
            return self.push(1000, Act::StartAgent { node: same, incarnation });
        }
        let place = place.unwrap_or(node);
        self.machines.push(Machine::new(place, offset, (self.next_slot..self.next_slot + slots).map(SlotId).collect()));
        self.next_slot += slots;
        self.push(1000, Act::StartAgent { node, incarnation: 0 });
    }

    pub fn lose_slot(&mut self, slot: SlotId) {
        let Some(node) = self.machines.iter().position(|node| node.alive && node.slots.contains(&slot)) else { return };
        self.machines[node].slots.remove(&slot);
        let on_it = |id: &ProcId| self.ranks.get(*id).slot == slot;
        let found = self.machines[node].procs.iter().copied().find(on_it);
        if let Some(id) = found {
            let proc = self.ranks.get_mut(id);
            let (process, initialized) = (proc.name, proc.initialized);
            let lived = proc.dead.is_none();
            proc.dies(Exit::Signal(9), self.now);
            self.checks.look_at(node);
            self.reset_peers(process, node);
            // The rank dies of its shepherd's death, and that is seen, as a rule, long before the launcher has swept.
            if lived && initialized && self.rng.chance(900) {
                let (incarnation, delay) = (self.machines[node].incarnation, self.rng.range(1, 300));
                for event in [Event::SlotDying(slot), Event::Dying(process)] {
                    self.push(delay, Act::Tell { node, incarnation, event: Box::new(event) });
                }
            }
        }
        let delay = self.rng.range(300, 8000);
        self.push(delay, Act::SlotGone { node, slot });
    }

    pub fn slot_gone(&mut self, node: usize, slot: SlotId) {
        let ranks = &self.ranks;
        self.machines[node].procs.retain(|id| ranks.get(*id).slot != slot);
        self.local(node, Event::SlotLost(slot));
    }

    /// A machine that was suspended runs again.
    pub fn resumed(&mut self, node: usize) {
        self.checks.look_at(node);
        if !self.machines[node].still(self.now) {
            self.go_all(node);
        }
    }

    /// The job is told to end; or the rank of this slot has a signal.
    pub fn signal(&mut self, node: usize, slot: Option<SlotId>, signal: i32) {
        for id in self.machines[node].procs.clone() {
            let proc = self.ranks.get(id);
            if proc.dead.is_some() || slot.is_some_and(|slot| proc.slot != slot) {
                continue;
            }
            let at_random =
                [Obedience::Dies, Obedience::Dies, Obedience::Saves(0), Obedience::Saves(3), Obedience::Ignores];
            let drawn = self.fate.pick(&at_random);
            match self.setup.obedience.unwrap_or(drawn) {
                Obedience::Dies => self.die(id, Exit::Signal(signal), false),
                Obedience::Saves(code) => {
                    let most = if self.setup.obedience.is_some() { SECOND } else { 15 * SECOND };
                    let delay = self.fate.range(0, most);
                    self.push(delay, Act::Leave(id, code));
                }
                Obedience::Ignores => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{MS, Setup};

    /// A job of three nodes that has computed for a while.
    fn running() -> World {
        let mut world = World::new(&Setup { steps: 10_000, ..Setup::default() }, false);
        assert!(world.run_until(SECOND, World::computing));
        world
    }

    fn steps(world: &World, node: usize) -> u32 {
        world.ranks.of(&world.machines[node]).map(|(_, proc)| proc.step).max().unwrap_or(0)
    }

    #[test]
    fn shepherds_stop_their_ranks_when_the_lease_ends_whatever_the_agent_does() {
        let mut world = running();
        world.machines[1].stalled_until = 10 * SECOND;
        let end = world.now + 50 * MS;
        world.write_lease(1, end);
        world.run_until(49 * MS, |_| false);
        assert!(!world.machines[1].still(world.now));
        world.run_until(2 * MS, |_| false);
        assert!(world.machines[1].still(world.now), "the lease is over");
        let before = steps(&world, 1);
        world.run_until(100 * MS, |_| false);
        assert_eq!(steps(&world, 1), before);
        // The agent is heard again, and writes another end: they go on at once.
        let again = world.now + SECOND;
        world.write_lease(1, again);
        assert!(!world.machines[1].still(world.now));
        world.run_until(100 * MS, |_| false);
        assert!(steps(&world, 1) > before);
    }

    #[test]
    fn a_new_lease_continues_nothing_that_the_agent_stopped() {
        let mut world = running();
        world.command(0, Command::Pause);
        let end = world.now + MS;
        world.write_lease(0, end);
        world.run_until(2 * MS, |_| false);
        let again = world.now + SECOND;
        world.write_lease(0, again);
        assert!(world.machines[0].still(world.now));
    }

    #[test]
    fn what_came_with_a_stop_is_obeyed_before_the_first_kill() {
        let mut world = running();
        world.command(0, Command::Pause);
        world.run_until(MS, |_| false);
        world.command(0, Command::Stop(WorldId(1)));
        world.command(0, Command::Continue);
        let (end, mut ran) = (world.now + MS, false);
        while world.now < end && world.advance() {
            ran |= !world.machines[0].still(world.now) && world.ranks.lives_on(&world.machines[0]);
        }
        assert!(ran);
    }
}
