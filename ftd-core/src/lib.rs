//! What `ftd` decides, and nothing of how it is done: epochs, failure sets, the planner, the choice of the checkpoint to
//! restore, blame, and the agent's state machine.
//!
//! Everything here is pure: no I/O, no clock, no threads, no randomness. Time is an argument in microseconds. The real
//! agent (`ft-agent`) is a driver around [`Agent::step`], and so is the simulation in `tests/`; both drive the same code.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.
//!
//! | module | concept |
//! | --- | --- |
//! | [`ids`] | names: ranks, worlds, epochs, slots, nodes, processes |
//! | [`record`] | the agreed state of a job: [`EpochRecord`] |
//! | [`placement`] | which rank is on which slot, run-length |
//! | [`slots`] | which slots there are, where, in which state, run-length |
//! | [`members`] | which nodes there are, run-length |
//! | [`failure`] | what died, where, why: [`FailureSet`] |
//! | [`policy`] | what the user chose, and every time-out |
//! | [`plan`](mod@plan) | the next record from the last one and the failures |
//! | [`crowd`] | slots beyond those of a node's own |
//! | [`inventory`] | frozen checkpoints and the version to restore |
//! | [`partners`](mod@partners) | who keeps copies of a node's checkpoints |
//! | [`holdings`] | what of the inventories goes up the tree, and what is restored |
//! | [`due`] | when the next checkpoint pays |
//! | [`blame`] | whose a death is; ends that are held until that is known |
//! | [`heard`], [`owed`], [`passed_on`] | signals that ranks were given, those that they are owed, and ends that answer them |
//! | [`ring`] | who observes whom |
//! | [`fence`] | until when a node may compute (`fence/lease.rs`); who writes that a silent one is given up (`fence/accusations.rs`) |
//! | `fence/watch.rs` | **when a silent node is given up** |
//! | [`tree`], [`word`] | what needs a word from every node, and what follows from it |
//! | [`ranks`] | sets of ranks, run-length |
//! | [`breach`] | rules that a simulated run can break |
//! | [`message`] | what agents of one job tell each other |
//! | [`joined`] | who has called `MPI_Init`, with which MPI |
//! | [`report`] | what people are told |
//! | [`count`](mod@count) | numbers in sentences |
//! | [`agent`] | the state machine that an agent is |
//! | `agent/failures.rs` | **what has failed: the failure set of the next epoch** |

pub mod agent;
pub mod binding;
pub mod blame;
pub mod breach;
pub mod count;
pub mod crowd;
pub mod due;
pub mod failure;
pub mod fence;
pub mod heard;
pub mod holdings;
pub mod ids;
pub mod inventory;
pub mod joined;
pub mod members;
pub mod message;
pub mod owed;
pub mod partners;
pub mod passed_on;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod ranks;
pub mod record;
pub mod report;
pub mod ring;
pub mod slots;
pub mod tree;
pub mod word;

pub use agent::{Agent, Effect, Event, JobConfig, Patience, Predecessor, Standing};
pub use blame::{Ended, Exit, Limit, Sight};
pub use count::{counted, size, times};
pub use failure::{Cause, Collateral, Failure, FailureSet, OwnEnd, Subject};
pub use ids::{EpochId, GroupId, Micros, NodeId, Process, Rank, Revision, Role, SlotId, Version, WorldId};
pub use inventory::{Choice, Groups, Holding, Inventory, Level, Stamp};
pub use joined::Family;
pub use members::Members;
pub use message::PeerMessage;
pub use partners::partners;
pub use placement::Placement;
pub use plan::{Cluster, Unrecoverable, plan};
pub use policy::{Mode, Policy, Terms};
pub use record::{EpochRecord, HistoryEntry, Outcome, Strategy, Streak, Suspect};
pub use report::{Episode, Notice, PhaseTimes, Recovery, Report};
pub use slots::{SlotEntry, SlotState, Slots};
