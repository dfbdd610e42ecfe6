//! The launcher's words in ftd-core's words.

use ft_wire::cluster::{Cluster, LEAST_PERIODS};
use ft_wire::launcher::JobSpec;
use ftd_core::policy::ModeError;
use ftd_core::{Exit, JobConfig, Level, Members, Micros, NodeId, Policy};
use std::time::Duration;

/// So many heartbeats are sent in the time after which a silent node is given up, where nobody says how many.
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
        heartbeat_period: period(cluster, timeout),
        patience: hurried(ordinary.patience),
        node_timeout: Micros::from_millis(cluster.wait_ms),
        oversubscribe: cluster.oversubscribe,
        ..ordinary
    }
}

/// The one that the job was given. Of one that lets a late datagram be a node's death every agent makes the same.
fn period(cluster: &Cluster, timeout: Micros) -> Micros {
    let fits = |period: &Micros| period.0 > 0 && period.0.saturating_mul(LEAST_PERIODS.into()) <= timeout.0;
    let given = cluster.heartbeat_period_ms.map(|ms| Micros(ms.saturating_mul(1000)));
    given.filter(fits).unwrap_or(Micros(timeout.0 / PERIODS))
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

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::cluster::{Hidden, StoreAddress};

    #[test]
    fn heartbeats_go_as_often_as_the_job_says() {
        let of = |heartbeat_period_ms, heartbeat_ms| {
            let store = StoreAddress { socket: "/s".into(), prefix: String::new() };
            let (secret, nodes) = (Hidden([0; 32]), Vec::new());
            let (me, first, wait_ms, oversubscribe, path_ms) = (0, 2, 0, false, 0);
            let cluster = Cluster {
                me,
                nodes,
                first,
                secret,
                store,
                heartbeat_ms,
                heartbeat_period_ms,
                wait_ms,
                oversubscribe,
                path_ms,
            };
            let terms = terms(&cluster).terms();
            (terms.period.0 / 1000, terms.timeout.0 / 1000)
        };
        assert_eq!(of(Some(20), 2000), (20, 2000));
        assert_eq!(of(Some(500), 2000), (500, 2000), "four fit");
        // A release that says none; and what nobody checked.
        for period in [None, Some(0), Some(501), Some(u64::MAX)] {
            assert_eq!(of(period, 2000), (400, 2000), "{period:?}");
        }
        assert_eq!(of(None, 0), (100, 500));
    }
}
