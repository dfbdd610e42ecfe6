//! One run, said beforehand: the cluster, the job, what the network and the store are like, and the faults.

use crate::breach::Breach;
use crate::faults::Planned;
use crate::net::Weather;
use ftd_core::{Micros, Mode, Policy};
use std::collections::BTreeMap;

/// A millisecond and a second of simulated time.
pub const MS: u64 = 1000;
pub const SECOND: u64 = 1_000_000;

/// What a rank does when it learns that a peer has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temper {
    /// It waits for ever.
    Hangs,
    /// It calls `MPI_Abort`, or exits with a code, after a while.
    Aborts,
}

/// What a rank does with a signal that ends the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obedience {
    /// It has no handler.
    Dies,
    /// Its handler takes a while, and exits with this code.
    Saves(i32),
    /// It ignores the signal.
    Ignores,
}

/// What the run promises beyond the invariants that hold everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promises {
    /// Nobody may be left out (invariant 7).
    pub nobody_out: bool,
    /// The job ends well.
    pub ends_well: bool,
    /// It waits for a node that comes back.
    pub waits: bool,
    /// At no moment is a version given up that partners hold, for one that they do not.
    pub levels: bool,
}

/// Everything that a run depends on.
#[derive(Debug, Clone)]
pub struct Setup {
    /// All randomness.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u32,
    /// Slots of each node; numbered through.
    pub slots: u32,
    /// How many ranks.
    pub ranks: u32,
    /// Failure domains: node `i` is in rack `i % racks`.
    pub racks: u32,
    /// What all agents share.
    pub policy: Policy,
    /// P of DESIGN §5.
    pub patience: u64,
    /// Who survives a failure.
    pub mode: Mode,
    /// Lost slots are replaced.
    pub renewable: bool,
    /// The program's length.
    pub steps: u32,
    /// A checkpoint every so many steps.
    pub every: u32,
    /// Ranks ask after each step whether the next checkpoint is due.
    pub asks: bool,
    /// So long is a step.
    pub pace: u64,
    /// Each rank needs a message of so many neighbours on each side for its next step.
    pub width: u32,
    /// Checkpoint groups; ranks of different groups do not talk.
    pub groups: u32,
    /// What ranks do when a peer has died.
    pub temper: Temper,
    /// How ranks take the signal that ends the job; each as it likes without.
    pub obedience: Option<Obedience>,
    /// What every packet meets.
    pub weather: Weather,
    /// After so long the driver gives a request to the store up.
    pub deadline: u64,
    /// Now and then a copy into the arena takes up to so long.
    pub copying: u64,
    /// A copy takes up to so long to a partner.
    pub shipping: u64,
    /// So many nodes keep copies for another one.
    pub partners: usize,
    /// A node asks another one for a copy for so long.
    pub fetching: u64,
    /// Sending one takes up to so long.
    pub sending: u64,
    /// Agents whose own configuration says another T than the job's.
    pub own_timeouts: BTreeMap<u32, u64>,
    /// A new agent's watch may show the key as it was some time ago.
    pub stale_watch: bool,
    /// A node that was left out comes back as a new one.
    pub returns: bool,
    /// A rule that is broken on purpose.
    pub breach: Option<Breach>,
    /// What must hold beside the invariants.
    pub promises: Promises,
    /// What happens, and when.
    pub faults: Vec<Planned>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            nodes: 3,
            slots: 2,
            ranks: 4,
            racks: 64,
            policy: Policy::default(),
            patience: 30 * SECOND,
            mode: Mode::Reinit,
            renewable: false,
            steps: 200,
            every: 20,
            asks: false,
            pace: 5 * MS,
            width: 1,
            groups: 1,
            temper: Temper::Hangs,
            obedience: None,
            weather: Weather::default(),
            deadline: 500 * MS,
            copying: 4 * MS,
            shipping: 20 * MS,
            partners: 1,
            fetching: SECOND,
            sending: 20 * MS,
            own_timeouts: BTreeMap::new(),
            stale_watch: false,
            returns: true,
            breach: None,
            promises: Promises::default(),
            faults: Vec::new(),
        }
    }
}

impl Setup {
    /// T of DESIGN §5.
    pub fn timeout(&self) -> u64 {
        self.policy.heartbeat_timeout.0
    }

    /// The policy of the agent on `node`.
    pub fn policy_of(&self, node: usize) -> Policy {
        let timeout = self.own_timeouts.get(&(node as u32)).map_or(self.policy.heartbeat_timeout, |own| Micros(*own));
        Policy { heartbeat_timeout: timeout, patience: Micros(self.patience), ..self.policy.clone() }
    }

    /// The checkpoint group of a rank.
    pub fn group(&self, rank: u32) -> u32 {
        rank % self.groups
    }

    /// The failure domain of a place.
    pub fn rack(&self, place: usize) -> usize {
        place % self.racks as usize
    }

    /// After so long without a sign of progress, and without a fault, the job hangs: the longest that the policy lets
    /// anything wait for a cluster that is well.
    pub fn hangs_after(&self) -> u64 {
        let policy = &self.policy;
        let spans = [policy.slot_timeout, policy.exit_timeout, policy.grace, policy.fence_kill, policy.node_timeout];
        let waits = spans.into_iter().map(|span| span.0).max().unwrap_or(0);
        self.patience + waits + 10 * SECOND
    }
}
