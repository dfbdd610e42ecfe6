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
//! | `Joining` | a record that has this node as a member, as long as somebody of the job answers | |
//! | `Ending` | `WorldEmptied` of every world | `End` |
//! | `Over` | nothing | |
//!
//! From every stage but the last two a newer record leads to `Emptying`, and one with an outcome, or without this node,
//! to `Ending`. Beside the stages run the failures not yet agreed, the ends that are held, and the [fence](crate::fence).
//!
//! What an agent knows is [`Agent`], whose fields are rooms. Each owns its state; `run` is what belongs to one epoch, and is
//! replaced whole.
//!
//! | field | file | knows |
//! | --- | --- | --- |
//! | `record`, `run` | `run`; in it `stage`, `copies`, `missed`, `questions`, `short`, `unfit` | the epoch: its stage, its processes, its checkpoints |
//! | `memory` | `memory` | what outlives it |
//! | `slots`, `worlds` | `local_slots`, `worlds` | this node's slots, and who is there |
//! | `batch` | `batch` | failures that are known and not agreed |
//! | `holds` | `held` | ends that are held, and looks at processes |
//! | `store` | `store` | what the store was asked, and has said |
//! | `fence`, `standstill` | [`fence`](crate::fence), `standstill` | the lease, who is silent; whether the ranks stand still |
//! | `gather`, `joining` | `gathered`, in it `unanswered`; `joining` | the job before its first record; nodes that come in |
//! | `tree`, `changed` | [`tree`](crate::tree) | what all nodes have said |
//! | `passing` | `passing` | signals that came for the ranks, which these may go on after |
//! | `end`, `telling` | `end`, `telling`, `block` | how the job is to end; what people are still to be told |
//! | `out` | `outbox` | what is to be done |
//! | `resting` | `resting` | whether the guards need not be asked |
//!
//! What it does stands in files of their own. `step` has the order of the guards. On what they are told act: `intake` on events,
//! `deaths` and `causes` on processes, `saved` on checkpoints, `answers` on the store's, `listen` on other agents. On
//! conditions: **`failures` decides what has failed**, `agree` what is proposed, `waits` what is waited for before that,
//! `execute` brings an epoch about, `fetch` its copies, `gather` the first one, `absent` looks at who is missing there; `holds` looks at ends by a process's own will,
//! `silence` at leases and silent nodes, `incomplete` at worlds that never begin, `asked` at due checkpoints, `join` at new
//! nodes, `signals` at those that came for the ranks, `leave` and `conclude` at the job's end, `storeless` at what waits for a store that is away; `tell` and `last_block` say what peers
//! and people are told, and `rests` whether any of this is asked.

mod absent;
mod agree;
mod answers;
mod asked;
mod batch;
mod block;
mod causes;
mod conclude;
mod copies;
mod deaths;
mod end;
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
mod listen;
mod local_slots;
mod memory;
mod missed;
mod outbox;
mod passing;
mod questions;
mod resting;
mod rests;
mod run;
mod saved;
mod short;
mod signals;
mod silence;
mod stage;
mod standstill;
mod state;
mod step;
mod store;
mod storeless;
mod tell;
mod telling;
mod unanswered;
mod unfit;
mod waits;
mod worlds;

pub use crate::word::Joiners;
pub use event::{Effect, Event, JobConfig, Patience, Standing};
pub use silence::Leased;
pub use stage::Stage;
pub use state::{Agent, Predecessor};

use run::{Local, LocalEnd, Run};
