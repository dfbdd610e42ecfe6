//! The timer that ftd-core asks for.

use crate::job::now;
use crate::outlet::Outlet;
use ftd_core::Micros;
use std::time::Duration;

/// The timer; the latest call counts.
#[derive(Debug)]
pub struct Timer {
    running: Option<tokio::task::AbortHandle>,
    rings: Outlet<()>,
}

impl Timer {
    /// It does not run.
    pub fn new(rings: Outlet<()>) -> Timer {
        Timer { running: None, rings }
    }

    /// It rings at this time.
    pub fn wake_at(&mut self, at: Micros) {
        let rings = self.rings.clone();
        let wait = Duration::from_micros(at.0.saturating_sub(now().0));
        let timer = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            rings.send(());
        });
        if let Some(earlier) = self.running.replace(timer.abort_handle()) {
            earlier.abort();
        }
    }
}
