//! The agents of a job, as shipped (`ftd_core::Agent`), in a simulated cluster that does its worst: one thread, one queue,
//! one seed. Every invariant of the design is checked after every step.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.
//!
//! | module | concept |
//! | --- | --- |
//! | `rng`, `queue` | all randomness; all that is to come |
//! | `setup` | one run, said beforehand |
//! | `world` | the queue's acts, and who is to do each |
//! | `net` | the application's network |
//! | `store` | the key, the ways to it, its watches |
//! | `node` | a machine: shepherds, agent incarnations, suspension |
//! | `driver` | effects become acts, acts become events |
//! | `application` | ranks that need each other |
//! | `arenas`, `checkpoints` | copies in memory; how they are made, shipped, frozen and given up |
//! | `fetches` | how they are brought from where the core says |
//! | `faults` | what can happen |
//! | `harm` | whom that may cost the job, and until when |
//! | `profiles`, `rules` | named mixes of faults, drawn from a seed; those that are there for one rule |
//! | `invariants`, `promises` | what must hold; what one run promises besides |
//! | `placed` | invariant 3: where ranks may be |
//! | `levels` | who holds which version: what may be given up, what is owed |
//! | `reasons` | whether what a record says of failures and of the job's end is true |
//! | `computing` | who computes at this instant |
//! | `breach` | rules broken on purpose |
//! | `history` | what happened, readable |
//! | `shrink` | the shortest schedule that still fails |
//! | `scenario` | schedules as text |
//! | `measure` | what one recovery costs in a large cluster |

mod application;
mod arenas;
mod breach;
mod checkpoints;
mod computing;
mod driver;
mod faults;
mod fetches;
mod harm;
mod history;
mod invariants;
mod levels;
mod net;
mod node;
mod placed;
mod promises;
mod queue;
mod reasons;
mod rng;
mod rules;
mod setup;
mod store;
mod world;

pub mod measure;
pub mod profiles;
pub mod scenario;
pub mod shrink;

pub use breach::{Breach, Catch};
pub use invariants::Violation;
pub use setup::Setup;

/// How a run ended, and what happened in it.
pub struct Run {
    /// Exit status and reason of the job, or what was broken.
    pub result: Result<(i32, String), Violation>,
    /// When that was, in simulated microseconds.
    pub at: u64,
    /// Recoveries that the job went through.
    pub recoveries: u64,
    /// Acts of the run.
    pub acts: u64,
    /// What happened, if it was asked for.
    pub history: Vec<String>,
}

/// Runs a job to its end.
pub fn run(setup: &Setup, traced: bool) -> Run {
    let mut world = world::World::new(setup, traced);
    let result = world.run();
    let worlds = world.store.value().map_or(0, |record| record.world.0);
    Run {
        result,
        at: world.now,
        recoveries: worlds.saturating_sub(1),
        acts: world.queue.count(),
        history: world.history.lines().to_vec(),
    }
}
