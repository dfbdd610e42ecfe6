//! Waiting by the job's time: while the job is stopped, or this process does not run, nothing becomes overdue.

use ft_sys::job_time::{self, LOOK};
use ft_sys::timescale::scaled;
use std::time::Duration;

/// Looks at the time as often as all who wait need it; for ever.
pub async fn look_often() {
    loop {
        tokio::time::sleep(scaled(LOOK)).await;
        let _ = job_time::now();
    }
}

/// So much of the job's time passes.
pub async fn passed(time: Duration) {
    let until = job_time::now().checked_add(time);
    loop {
        let left = until.map_or(Duration::MAX, job_time::until);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(scaled(LOOK))).await;
    }
}

/// What comes within so much of the job's time.
pub async fn within<T>(time: Duration, what: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        it = what => Some(it),
        () = passed(time) => None,
    }
}
