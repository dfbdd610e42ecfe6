//! The system calls that ftd's processes need, behind safe functions. Small enough to live inside a rank.

pub mod cgroup;
pub mod channel;
pub mod death;
pub mod divide;
pub mod gate;
pub mod helper;
pub mod identity;
pub mod individual;
pub mod job_dir;
pub mod lease;
pub mod litter;
pub mod made;
pub mod memory;
pub mod notes;
pub mod oom;
pub mod peer;
pub mod proc;
pub mod process;
pub mod pulse;
pub mod segments;
pub mod slice;
pub mod spawn;
pub mod stray;
pub mod sweep;
pub mod timescale;
pub mod wait;
