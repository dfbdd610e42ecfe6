//! The launcher's words in ftd-core's words.

use ft_wire::cluster::Cluster;
use ft_wire::launcher::JobSpec;
use ftd_core::policy::ModeError;
use ftd_core::{Exit, JobConfig, Level, Members, Micros, NodeId, Policy};
use std::time::Duration;

/// So many heartbeats are sent in the time after which a silent node is given up.
const PERIODS: u64 = 5;

/// ftd-core's configuration of the job.
///
/// # Errors
/// When the mode is none of this release's.
pub fn job_config(spec: &JobSpec) -> Result<JobConfig, ModeError> {
    let ordinary = Policy::default();
    let (nodes, terms) = match &spec.cluster {
        None => (1, ordinary.clone()),
        Some(cluster) => (cluster.first as usize, terms(cluster)),
    };
    let policy = Policy {
        max_failures: spec.max_failures,
        recover_aborts: spec.recover_aborts,
        grace: Micros::from_millis(spec.grace_ms),
        progress_after: hurried(ordinary.progress_after),
        stop_timeout: hurried(ordinary.stop_timeout),
        inventory_timeout: hurried(ordinary.inventory_timeout),
        report_patience: hurried(ordinary.report_patience),
        init_patience: hurried(ordinary.init_patience),
        ..terms
    };
    let config = JobConfig::single_node(spec.world_size, spec.mode.parse()?, policy);
    let nodes = Members::of((0..nodes as u32).map(NodeId));
    // Where there is nobody to keep copies a version counts as if somebody did, and that is said.
    let safe = if nodes.len() > 1 { Level::Partner } else { Level::Own };
    Ok(JobConfig { nodes, safe, ..config })
}

/// What the agents of several nodes have in common.
fn terms(cluster: &Cluster) -> Policy {
    let ordinary = Policy::default();
    let timeout = match Micros::from_millis(cluster.heartbeat_ms) {
        Micros(0) => ordinary.heartbeat_timeout,
        timeout => timeout,
    };
    Policy {
        heartbeat_timeout: timeout,
        heartbeat_period: Micros(timeout.0 / PERIODS),
        patience: hurried(ordinary.patience),
        node_timeout: Micros::from_millis(cluster.wait_ms),
        oversubscribe: cluster.oversubscribe,
        ..ordinary
    }
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
