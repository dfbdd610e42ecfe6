//! The timer that ftd-core asks for.

use crate::alarm::Alarm;
use crate::job::Time;
use crate::outlet::Outlet;
use ftd_core::Micros;
use std::io;
use std::sync::Arc;

/// The timer; the latest call counts.
#[derive(Debug)]
pub struct Timer {
    alarm: Arc<Alarm>,
    rings: Outlet<()>,
    time: Time,
}

impl Timer {
    /// It does not run.
    ///
    /// # Errors
    /// When there is no descriptor for it.
    pub fn new(rings: Outlet<()>, time: Time) -> io::Result<Timer> {
        let alarm = Arc::new(Alarm::new()?);
        let (rung, tell) = (alarm.clone(), rings.clone());
        tokio::spawn(async move { while rung.rings().await.is_ok() && tell.send(()) {} });
        Ok(Timer { alarm, rings, time })
    }

    /// It rings at this time, or earlier.
    pub fn wake_at(&mut self, at: Micros) {
        if let Err(error) = self.alarm.set(self.time.until(at)) {
            tracing::error!(%error, "the timer cannot be set");
            self.rings.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc::unbounded_channel;

    #[tokio::test]
    async fn it_rings_at_the_time_of_the_latest_call_and_for_one_that_is_past_at_once() {
        let (say, mut heard) = unbounded_channel();
        let mut timer = Timer::new(Outlet::new(move |(), _| say.send(()).is_ok()), Time::World).unwrap();
        let now = || Time::World.now();
        timer.wake_at(now().after(Micros::from_secs(3600)));
        let at = now().after(Micros::from_millis(20));
        timer.wake_at(at);
        heard.recv().await.unwrap();
        assert!(now() >= at, "{:?} before", at.since(now()));
        timer.wake_at(Micros(1));
        heard.recv().await.unwrap();
        let more = tokio::time::timeout(Duration::from_millis(50), heard.recv()).await;
        assert!(more.is_err(), "once");
    }
}
