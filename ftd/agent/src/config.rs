//! The launcher's words in ftd-core's words.

use ft_wire::launcher::JobSpec;
use ftd_core::policy::ModeError;
use ftd_core::{Exit, JobConfig, Micros, Policy};
use std::time::Duration;

/// ftd-core's configuration of the job.
///
/// # Errors
/// When the mode is none of this release's.
pub fn job_config(spec: &JobSpec) -> Result<JobConfig, ModeError> {
    let ordinary = Policy::default();
    let policy = Policy {
        max_failures: spec.max_failures,
        recover_aborts: spec.recover_aborts,
        grace: Micros::from_millis(spec.grace_ms),
        progress_after: hurried(ordinary.progress_after),
        stop_timeout: hurried(ordinary.stop_timeout),
        report_patience: hurried(ordinary.report_patience),
        init_patience: hurried(ordinary.init_patience),
        ..ordinary
    };
    Ok(JobConfig::single_node(spec.world_size, spec.mode.parse()?, policy))
}

/// A patience of ftd-core's on the time scale of tests.
fn hurried(patience: Micros) -> Micros {
    let scaled = ft_sys::timescale::scaled(Duration::from_micros(patience.0));
    Micros(u64::try_from(scaled.as_micros()).unwrap_or(patience.0))
}

/// A raw `wait` status as ftd-core wants it.
pub fn exit_of(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code((status >> 8) & 0xff),
        signal => Exit::Signal(signal),
    }
}
