//! Waiting by the job's time: while the job is stopped, or this process does not run, nothing becomes overdue.

use crate::alarm::Alarm;
use ft_sys::job_time::{self, LOOK};
use ft_sys::timescale::scaled;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at the time as often as all who wait need it.
#[derive(Debug, Clone)]
pub struct Looks {
    alarm: Arc<Alarm>,
    /// When this one has put off the alarm last.
    put_off: Instant,
}

impl Looks {
    /// Nobody looks yet.
    ///
    /// # Errors
    /// When there is no descriptor for the alarm.
    pub fn new() -> io::Result<Looks> {
        let alarm = Arc::new(Alarm::new()?);
        alarm.set(scaled(LOOK))?;
        Ok(Looks { alarm, put_off: Instant::now() })
    }

    /// For one that runs anyway: as long as it does so often enough, nobody is woken to look at the time.
    pub fn looks(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.put_off) >= scaled(LOOK) / 2 {
            let _ = job_time::now();
            self.put_off = now;
            // It rings as it was to.
            let _ = self.alarm.set(scaled(LOOK));
        }
    }

    /// Looks when nobody else has; for ever.
    pub async fn often(self) {
        loop {
            let rung = self.alarm.rings().await.and_then(|()| self.alarm.set(scaled(LOOK)));
            let _ = job_time::now();
            if let Err(error) = rung {
                tracing::error!(%error, "the alarm for looks at the time");
                tokio::time::sleep(scaled(LOOK)).await;
            }
        }
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
