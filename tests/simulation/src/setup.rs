//! One run, said beforehand: the cluster, the job, what the network and the store are like, and the faults.

use crate::breach::Breach;
use crate::faults::Planned;
use crate::net::{Set, Weather};
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

/// What the configuration of one agent says of the fence's terms, where that is not what the job's says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// T.
    pub timeout: Option<u64>,
    /// P.
    pub patience: Option<u64>,
    /// k.
    pub observers: Option<usize>,
}

/// What the run promises beyond the invariants that hold everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promises {
    /// Nobody may be left out (invariant 7).
    pub nobody_out: bool,
    /// One node may be, and no more.
    pub one_out: bool,
    /// The job ends well.
    pub ends_well: bool,
    /// It waits for a node that comes back.
    pub waits: bool,
    /// A node that dies is out of the job so soon.
    pub prompt: Option<u64>,
    /// Every member knows a record so soon.
    pub told: Option<u64>,
    /// No more epochs than this.
    pub epochs: Option<u64>,
    /// If the job ends with a rank's own end it is this one's.
    pub ended_by: Option<u32>,
    /// Who is told to end has its grace.
    pub grace: bool,
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
    /// These are one failure domain, whatever their numbers.
    pub together: Set,
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
    /// So many of a thousand processes have memory that takes up to so long to tear down: for so long nobody can tell how they ended.
    pub reaping: (u64, u64),
    /// So many of a thousand nodes need up to so long to verify what they hold when an epoch begins.
    pub verifying: (u64, u64),
    /// A copy takes up to so long to a partner.
    pub shipping: u64,
    /// So many nodes keep copies for another one.
    pub partners: usize,
    /// A node asks another one for a copy for so long.
    pub fetching: u64,
    /// Sending one takes up to so long.
    pub sending: u64,
    /// Agents whose own configuration says something else than the job's.
    pub own: BTreeMap<u32, Own>,
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
            together: Set::Some(0),
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
            reaping: (50, 200 * MS),
            verifying: (0, 0),
            shipping: 20 * MS,
            partners: 1,
            fetching: SECOND,
            sending: 20 * MS,
            own: BTreeMap::new(),
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
        let own = self.own.get(&(node as u32)).copied().unwrap_or_default();
        Policy {
            heartbeat_timeout: own.timeout.map_or(self.policy.heartbeat_timeout, Micros),
            patience: Micros(own.patience.unwrap_or(self.patience)),
            observers: own.observers.unwrap_or(self.policy.observers),
            ..self.policy.clone()
        }
    }

    /// The checkpoint group of a rank.
    pub fn group(&self, rank: u32) -> u32 {
        rank % self.groups
    }

    /// The failure domain of a place.
    pub fn rack(&self, place: usize) -> usize {
        if self.together.has(place) { usize::MAX } else { place % self.racks as usize }
    }

    /// Whether what waits for the store, or for those who are to take a node in, gives up within the time of a run.
    pub fn is_store_given_up(&self) -> bool {
        self.policy.store_timeout.0 <= 10 * SECOND
    }

    /// After so long without a sign of progress, and without a fault, the job hangs: the longest that the policy lets
    /// anything wait for a cluster that is well.
    pub fn hangs_after(&self) -> u64 {
        let policy = &self.policy;
        let spans = [policy.slot_timeout, policy.exit_timeout, policy.grace, policy.fence_kill, policy.node_timeout];
        let waits = spans.into_iter().map(|span| span.0).max().unwrap_or(0);
        // A store that never comes back is given up after all that; where that takes minutes no profile has one. Who waits to be taken in asks twice whether anybody is there.
        let store = policy.store_timeout.0 + policy.end_timeout.0.max(2 * 15 * SECOND);
        let store = if self.is_store_given_up() { store } else { 0 };
        self.patience + waits.max(self.reaping.1) + store + 10 * SECOND
    }
}
