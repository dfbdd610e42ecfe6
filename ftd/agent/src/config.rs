//! The launcher's words in ftd-core's words.

use ft_wire::launcher::JobSpec;
use ftd_core::policy::ModeError;
use ftd_core::{Exit, JobConfig, Micros, Policy};

/// ftd-core's configuration of the job.
///
/// # Errors
/// When the mode is none of this release's.
pub fn job_config(spec: &JobSpec) -> Result<JobConfig, ModeError> {
    let policy = Policy {
        max_failures: spec.max_failures,
        recover_aborts: spec.recover_aborts,
        grace: Micros::from_millis(spec.grace_ms),
        ..Policy::default()
    };
    Ok(JobConfig::single_node(spec.world_size, spec.mode.parse()?, policy))
}

/// A raw `wait` status as ftd-core wants it.
pub fn exit_of(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code((status >> 8) & 0xff),
        signal => Exit::Signal(signal),
    }
}
