//! A timer of the kernel's. The runtime's own wheel turns in steps of a millisecond and wakes the process once more for each of its
//! levels: of an agent that has nothing to do but its heartbeats every third wake was that.

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// Rings once each time that it is set. It goes on while the machine is suspended.
#[derive(Debug)]
pub struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// Not set.
    ///
    /// # Errors
    /// When there is no descriptor for it.
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Alarm(crate::ready::readable(fd)?))
    }

    /// It rings after so long, and not when it was to ring before.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        // None at all would be "never".
        let after = after.max(Duration::from_nanos(1));
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let new = Itimerspec { it_interval: once, it_value };
        rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &new)?;
        Ok(())
    }

    /// Waits until it rings.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    pub async fn rings(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut [0; 8])?));
            // It may have been set anew meanwhile.
            if let Ok(read) = read {
                ready.clear_ready();
                return read.map(drop);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn it_rings_when_it_was_set_to_last_and_no_sooner() {
        let alarm = Alarm::new().unwrap();
        for before in [LONG, Duration::ZERO] {
            alarm.set(before).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let begun = Instant::now();
            alarm.set(SHORT).unwrap();
            alarm.rings().await.unwrap();
            assert!(begun.elapsed() >= SHORT, "after {:?}", begun.elapsed());
        }
        alarm.set(Duration::ZERO).unwrap();
        alarm.rings().await.unwrap();
        let again = tokio::time::timeout(Duration::from_millis(50), alarm.rings()).await;
        assert!(again.is_err(), "it rings once");
    }

    #[tokio::test]
    async fn who_waits_hears_it_also_when_it_is_set_anew_meanwhile() {
        let alarm = std::sync::Arc::new(Alarm::new().unwrap());
        alarm.set(LONG).unwrap();
        let theirs = alarm.clone();
        let waits = tokio::spawn(async move { theirs.rings().await });
        tokio::time::sleep(SHORT).await;
        assert!(!waits.is_finished());
        alarm.set(SHORT).unwrap();
        waits.await.unwrap().unwrap();
    }
}
