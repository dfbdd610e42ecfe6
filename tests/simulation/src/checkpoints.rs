//! Checkpoints on their way: copied, hashed, shipped to a partner in another rack, frozen, given up.

use crate::application::ProcId;
use crate::arenas::Copied;
use crate::breach::Breach;
use crate::driver;
use crate::invariants::Violation;
use crate::world::{Act, Packet, World};
use ftd_core::{EpochId, Event, GroupId, Level, NodeId, Rank, Stamp, Version, partners};

impl World {
    /// A rank has copied a version whole; its checksum is made behind it.
    pub fn copied(&mut self, node: usize, process: ProcId, rank: Rank, stamp: Stamp, value: u64) {
        if let Some(copy) = self.machines[node].arena.find_mut(rank, stamp, Level::Own) {
            (copy.copied, copy.value) = (Copied::Whole, value);
            let delay = self.rng.range(20, 2000);
            self.push(delay, Act::Hash { node, process, stamp });
        }
    }

    pub fn hash(&mut self, node: usize, process: ProcId, stamp: Stamp) {
        let (name, machine) = (self.ranks.get(process).name, &mut self.machines[node]);
        if machine.frozen > stamp.epoch || machine.agent.is_none() {
            return;
        }
        let Some(copy) = machine.arena.find_mut(name.rank, stamp, Level::Own) else { return };
        if copy.copied == Copied::Whole {
            copy.copied = Copied::Hashed;
            self.holds(node, name.rank, stamp);
            self.local(node, Event::Committed { process: name, version: stamp.version, level: Level::Own });
            self.ship_soon(node, name.rank, stamp);
        }
    }

    /// The bytes are safe as long as this node is there.
    pub fn holds(&mut self, node: usize, rank: Rank, stamp: Stamp) {
        let group = GroupId(self.setup.group(rank.0));
        self.checks.holds(group, rank, stamp, node, self.now);
    }

    pub fn ship_soon(&mut self, node: usize, rank: Rank, stamp: Stamp) {
        let delay = self.rng.range(self.setup.shipping / 2, self.setup.shipping);
        self.push(delay, Act::Ship { node, rank, stamp });
    }

    /// Who keeps copies for this node.
    fn partners_of(&self, node: usize) -> Vec<usize> {
        let members = driver::members(self.machines[node].agent.as_ref());
        let rack = |node: NodeId| self.setup.rack(self.machines[node.0 as usize].place);
        let partners = partners(rack, &members, NodeId(node as u32), self.setup.partners);
        partners.into_iter().map(|node| node.0 as usize).collect()
    }

    /// Sends a version to the partner, until that has it or it is needed no more.
    pub fn ship(&mut self, node: usize, rank: Rank, stamp: Stamp) {
        let machine = &mut self.machines[node];
        let epoch = machine.frozen.max(stamp.epoch);
        let Some(copy) = machine.arena.find_mut(rank, stamp, Level::Own).filter(|copy| !copy.shipped) else { return };
        let value = copy.value;
        for to in self.partners_of(node) {
            self.send_once(node, to, Packet::Ship { from: node, rank, stamp, value, epoch });
        }
        self.push(150_000, Act::Ship { node, rank, stamp });
    }

    pub fn take_copy(&mut self, node: usize, from: usize, rank: Rank, stamp: Stamp, value: u64, epoch: EpochId) {
        let machine = &mut self.machines[node];
        if machine.agent.is_none() {
            return;
        }
        let ended = machine.frozen > epoch;
        if ended && self.setup.breach != Some(Breach::LateCopies) {
            return;
        }
        if !machine.arena.needs(GroupId(self.setup.group(rank.0)), stamp) {
            return;
        }
        if !machine.arena.take(rank, stamp, value, Level::Partner) {
            return;
        }
        if ended {
            let violation =
                format!("n{node} takes {} of {rank} from n{from}, which is of an ended epoch", stamp.version);
            self.violated(Violation::Commit(violation));
        }
        self.holds(node, rank, stamp);
        self.send_reliably(node, from, Packet::Shipped { rank, stamp });
    }

    pub fn shipped(&mut self, node: usize, rank: Rank, stamp: Stamp) {
        let Some(copy) = self.machines[node].arena.find_mut(rank, stamp, Level::Own) else { return };
        copy.shipped = true;
        // One of an ended world may not have been waited for yet.
        let of_rank = self.ranks.of(&self.machines[node]).map(|(_, proc)| proc.name).filter(|name| name.rank == rank);
        let Some(id) = of_rank.max_by_key(|name| name.world).and_then(|name| self.ranks.named(name)) else { return };
        let (process, epoch) = (self.ranks.get(id).name, self.ranks.get(id).epoch);
        let group = GroupId(self.setup.group(rank.0));
        let restored = self.machines[node].restore.get(&(epoch, group)).copied().flatten();
        let process = (stamp.epoch == epoch || restored == Some(stamp)).then_some(process);
        if let Some(process) = process {
            self.local(node, Event::Committed { process, version: stamp.version, level: Level::Partner });
        }
    }

    pub fn take_inventory(&mut self, node: usize, epoch: EpochId) {
        // What is verified after it is known what is restored is too late.
        let machine = &self.machines[node];
        if machine.frozen != epoch || machine.restore.keys().any(|(of, _)| *of == epoch) {
            return;
        }
        let half = self.setup.breach == Some(Breach::HalfCopies);
        let inventory = self.machines[node].arena.inventory(half);
        self.checks.inventory(node, epoch, &inventory, self.now);
        self.local(node, Event::InventoryTaken { epoch, inventory });
    }

    /// It takes long: some of it is verified.
    pub fn list_verified(&mut self, (node, incarnation): (usize, u64), epoch: EpochId) {
        if self.machines[node].frozen == epoch
            && let Some((first, late)) = self.checks.reads_on((node, incarnation), epoch)
        {
            // Of what it had not verified then it has some now.
            let (mut inventory, mut unread) = (first.clone(), late.clone());
            unread.holdings.retain(|_| self.rng.chance(500));
            inventory.holdings.extend(late.holdings.difference(&unread.holdings));
            return self.local(node, Event::InventorySoFar { epoch, inventory, unread });
        }
        // Or everything is, and has just been said.
        if self.machines[node].frozen != epoch || self.checks.has_listed(node, epoch) {
            return;
        }
        let half = self.setup.breach == Some(Breach::HalfCopies);
        let all = self.machines[node].arena.inventory(half);
        let (mut inventory, mut unread) = (all.clone(), all);
        inventory.holdings.retain(|_| self.rng.chance(500));
        unread.holdings.retain(|holding| !inventory.holdings.contains(holding));
        self.checks.inventory(node, epoch, &inventory, self.now);
        self.checks.so_far((node, incarnation), epoch, (&inventory, &unread));
        self.local(node, Event::InventorySoFar { epoch, inventory, unread });
    }

    /// What the ranks of a group are given in this epoch.
    pub fn restore(&mut self, node: usize, epoch: EpochId, group: GroupId, stamp: Option<Stamp>) {
        self.check_restore(node, epoch, group, stamp);
        let setup = &self.setup;
        let machine = &mut self.machines[node];
        machine.restore.insert((epoch, group), stamp);
        let of_group = |rank: Rank| setup.group(rank.0) == group.0;
        let keep = |old: Stamp| old.epoch >= epoch || stamp.is_some_and(|stamp| old <= stamp);
        machine.arena.retain(of_group, |copy| keep(copy.stamp));
        machine.arena.begin_anew(group);
        // The partner may be gone: what is restored is shipped again.
        let again: Vec<Rank> = machine
            .arena
            .hashed()
            .filter(|(rank, copy)| of_group(*rank) && Some(copy.stamp) == stamp && copy.level == Level::Own)
            .map(|(rank, _)| rank)
            .collect();
        for (rank, stamp) in again.into_iter().filter_map(|rank| Some((rank, stamp?))) {
            if let Some(copy) = self.machines[node].arena.find_mut(rank, stamp, Level::Own) {
                copy.shipped = false;
            }
            self.ship_soon(node, rank, stamp);
        }
        self.go_all(node);
    }

    /// What no epoch will restore is given up.
    pub fn keep(&mut self, node: usize, group: GroupId, stamps: &[Stamp]) {
        let Some(newest) = stamps.last() else { return };
        self.check_keep(node, group, stamps);
        let setup = &self.setup;
        let of_group = |rank: Rank| setup.group(rank.0) == group.0;
        let needed = |copy: &crate::arenas::Copy| {
            copy.stamp > *newest || stamps.contains(&copy.stamp) || copy.copied != Copied::Hashed
        };
        self.machines[node].arena.retain(of_group, needed);
        self.machines[node].arena.give_up(group, *newest, stamps);
    }

    /// What is older is given up.
    pub fn retire(&mut self, node: usize, group: GroupId, complete: Version) {
        self.check_retire(node, group, complete);
        let setup = &self.setup;
        let of_group = |rank: Rank| setup.group(rank.0) == group.0;
        let keep = |copy: &crate::arenas::Copy| copy.stamp.version >= complete || copy.copied != Copied::Hashed;
        self.machines[node].arena.retain(of_group, keep);
        // Whatever epoch committed it.
        self.machines[node].arena.give_up(group, Stamp { version: complete, epoch: EpochId(0) }, &[]);
    }
}
