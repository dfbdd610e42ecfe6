//! The processes that ftrun has started, and those that it inherits when one of them dies.

use ft_sys::job_time;
use ft_sys::sweep::Sweep;
use std::time::Duration;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With an exit status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

impl End {
    /// For a sentence.
    pub fn words(self) -> String {
        match self {
            End::Status(status) => format!("status {status}"),
            End::Signal(signal) => crate::signals::name(signal),
        }
    }
}

/// Children of this process that have ended since the last call.
pub fn reap() -> Vec<(i32, End)> {
    let end = |status: ft_sys::wait::Status| match status.signal() {
        Some(signal) => End::Signal(signal),
        None => End::Status(status.code().unwrap_or(status.as_raw())),
    };
    std::iter::from_fn(ft_sys::wait::next_ended).map(|(pid, status)| (pid, end(status))).collect()
}

/// Kills everything below this process and waits for it, but not for ever.
pub fn end_all(patience: Duration) {
    let until = job_time::now() + patience;
    let mut sweep = Sweep::default();
    loop {
        sweep.round(&[]);
        reap();
        let none = ft_sys::process::children(std::process::id() as i32).is_empty();
        if none || sweep.is_refused() || job_time::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
