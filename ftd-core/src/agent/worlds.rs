//! The worlds that have processes on this node.

use crate::ids::{Micros, WorldId};
use std::collections::BTreeMap;

/// The worlds that have processes on this node; those that were told to stop, since when.
#[derive(Debug, Clone, Default)]
pub(super) struct Worlds {
    stopping: BTreeMap<WorldId, Option<Micros>>,
}

impl Worlds {
    /// It has processes here from now on.
    pub fn begin(&mut self, world: WorldId) {
        self.stopping.insert(world, None);
    }

    /// All but `except` are told to stop: those that had not been told before.
    pub fn stop(&mut self, except: Option<WorldId>, now: Micros) -> Vec<WorldId> {
        let runs = |(world, stopping): &(&WorldId, &mut Option<Micros>)| Some(**world) != except && stopping.is_none();
        let told = self.stopping.iter_mut().filter(runs).map(|(world, stopping)| {
            *stopping = Some(now);
            *world
        });
        told.collect()
    }

    /// It is empty; false when it was not told to stop: it may be launching anew at this moment.
    pub fn emptied(&mut self, world: WorldId) -> bool {
        let stopping = self.stopping(world);
        if stopping {
            self.stopping.remove(&world);
        }
        stopping
    }

    /// That these are not empty yet is as it should be.
    pub fn linger(&mut self, worlds: &[WorldId], now: Micros) {
        let lingers = self.stopping.iter_mut().filter(|(world, _)| worlds.contains(world));
        lingers.filter_map(|(_, since)| since.as_mut()).for_each(|since| *since = now);
    }

    /// One that was told to stop so long ago.
    pub fn stuck(&self, now: Micros, timeout: Micros) -> Option<WorldId> {
        let stuck = |since: Micros| now.since(since) >= timeout;
        self.stopping.iter().find(|(_, since)| since.is_some_and(stuck)).map(|(world, _)| *world)
    }

    /// Nobody waits for it any more.
    pub fn forget(&mut self, world: WorldId) {
        self.stopping.remove(&world);
    }

    /// Whether this world was told to stop, or is gone altogether: what its processes do is no failure of theirs any more.
    /// (How one ended may be told long after its slot was empty.)
    pub fn ended(&self, world: WorldId) -> bool {
        self.stopping.get(&world).is_none_or(Option::is_some)
    }

    /// Whether this world was told to stop.
    pub fn stopping(&self, world: WorldId) -> bool {
        self.stopping.get(&world).is_some_and(Option::is_some)
    }

    /// Whether one was told to stop, and is still here.
    pub fn any_stopping(&self) -> bool {
        self.stopping.values().any(Option::is_some)
    }

    /// Whether none is left that was not told to stop.
    pub fn all_stopping(&self) -> bool {
        self.stopping.values().all(Option::is_some)
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.stopping.is_empty()
    }

    /// Whether another one than this is still here.
    pub fn others(&self, world: WorldId) -> bool {
        self.stopping.keys().any(|other| *other != world)
    }

    /// Whether an older one than this is still here.
    pub fn older(&self, world: WorldId) -> bool {
        self.stopping.keys().any(|other| *other < world)
    }

    /// When the processes of one will have outlived SIGKILL.
    pub fn deadlines(&self, timeout: Micros) -> impl Iterator<Item = Micros> + '_ {
        self.stopping.values().flatten().map(move |since| since.after(timeout))
    }
}
