//! The timer that ftd-core asks for.

use crate::job::Time;
use crate::outlet::Outlet;
use ftd_core::Micros;

/// The timer; the latest call counts.
#[derive(Debug)]
pub struct Timer {
    running: Option<tokio::task::AbortHandle>,
    rings: Outlet<()>,
    time: Time,
}

impl Timer {
    /// It does not run.
    pub fn new(rings: Outlet<()>, time: Time) -> Timer {
        Timer { running: None, rings, time }
    }

    /// It rings at this time, or earlier.
    pub fn wake_at(&mut self, at: Micros) {
        let rings = self.rings.clone();
        let wait = self.time.until(at);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            rings.send(());
        });
        if let Some(earlier) = self.running.replace(timer.abort_handle()) {
            earlier.abort();
        }
    }
}
