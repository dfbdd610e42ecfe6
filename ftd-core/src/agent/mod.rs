//! The agent's state machine: [`Agent::step`] takes the time and one event and returns what is to be done.
//!
//! An event only notes what is known (`intake`); then guards are evaluated, in a fixed order, each of which acts
//! when its condition holds and its work is not done yet. So no order of events is special, and a newer record simply
//! makes the guards see other conditions. The stages of one epoch on one node:
//!
//! | [`Stage`] | waits for | then |
//! | --- | --- | --- |
//! | `Gathering` | all slots of all nodes | `Cas` of epoch 1 |
//! | `Restarted` | its own proposal: this agent's predecessor is dead | `Cas` of the next epoch |
//! | `Emptying` | `WorldEmptied` of every older world, all slots up (bounded) | `Drain`, `TakeInventory` |
//! | `Draining` | `Drained` (bounded) | `Launch` |
//! | `Parked` | every node emptied and acknowledged by its observers | `Release` |
//! | `Computing` | a failure, an own end, or the clean end of all ranks | `Cas` of the next epoch |
//! | `Joining` | a record that has this node as a member | |
//! | `Ending` | `WorldEmptied` of every world | `End` |
//! | `Over` | nothing | |
//!
//! From every stage but the last two a newer record leads to `Emptying`, and one with an outcome, or without this node,
//! to `Ending`. Beside the stages run the batch of failures not yet agreed (`Batch`), the ends that are held (`Hold`), and
//! the [fence](crate::fence).
//!
//! `state` is what an agent knows, `run` what of it belongs to one epoch and is replaced whole; `step` has the order of
//! the guards. Which of these act, and on what: `intake` on events, `failures` on what has failed, `agree` on records, `execute` on the stages,
//! `gather` before the first record, `holds` on ends by a process's own will, `silence` on leases and silent nodes,
//! `fetch` on copies that lie elsewhere, `asked` on due checkpoints, `join` on new nodes, `leave` on a job that is told
//! to end, `tell` and `last_block` on what peers and people are told.

mod agree;
mod asked;
mod block;
mod copies;
mod event;
mod execute;
mod failures;
mod fetch;
mod gather;
mod gathered;
mod held;
mod holds;
mod incomplete;
mod intake;
mod join;
mod joining;
mod last_block;
mod leave;
mod leaving;
mod questions;
mod run;
mod short;
mod silence;
mod state;
mod step;
mod store;
mod tell;

pub use crate::word::Joiners;
pub use event::{Effect, Event, JobConfig};
pub use silence::Leased;
pub use state::{Agent, Predecessor, Stage};

use run::{Local, LocalEnd, Run};
use state::{Batch, Progress, Verdict};
