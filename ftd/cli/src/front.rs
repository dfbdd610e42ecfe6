//! The process that the user started, and the launcher below it.
//!
//! A launcher becomes the parent of all orphans below it, and ends them. The process that was started may have children that
//! are not the job's: a shell that replaces itself by ftrun leaves it those that it had (`> >(tee log)`, a monitor in the
//! background). So this process divides itself first. The front keeps pid, process group, terminal and such children, and does
//! nothing but wait; the launcher is its child and does not outlive it.

use ft_sys::divide::{self, Carried, Fate, Half};
use ft_sys::process::condition;
use nix::libc;
use nix::sys::signal::{Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Who signals a whole process group reaches the launcher twice, within this time.
const ECHO: Duration = Duration::from_secs(2);

/// Divides this process. In the front it returns when the job is over, with its exit status; in the launcher at once.
///
/// # Errors
/// When there can be no launcher.
pub fn divide() -> io::Result<Option<ExitCode>> {
    divide::default_signal(Signal::SIGCHLD as i32);
    let set = crate::signals::heeded();
    // Before there are two: none is lost. The launcher reads those that come before it can.
    let blocked = divide::with_carrier(set);
    blocked.thread_block()?;
    match divide::divide()? {
        Half::Child => Ok(None),
        Half::Parent { child } => Ok(Some(stand(child, &SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))),
    }
}

/// Stands before the launcher until it ends.
fn stand(launcher: i32, signals: &SignalFd) -> ExitCode {
    loop {
        let Ok(Some(signal)) = signals.read_signal() else { continue };
        if signal.ssi_signo == Signal::SIGCHLD as u32 {
            match divide::fate(launcher) {
                None => {}
                Some(Fate::Exited(status)) => return ExitCode::from(status as u8),
                Some(Fate::Killed(signal)) => {
                    crate::say(&format!("the launcher of this job was killed by {}", crate::signals::name(signal)));
                    return ExitCode::from((128 + signal) as u8);
                }
                // Both were stopped, and this one has just been continued: the launcher is next.
                Some(Fate::Stopped) if divide::is_pending(libc::SIGCONT) => {}
                // It cannot fail. Whoever continues the group, or the front alone, brings both back.
                Some(Fate::Stopped) => drop(raise(Signal::SIGSTOP)),
            }
        } else if signal.ssi_pid == launcher as u32 {
            // It was continued, and may have been stopped again since then: that was told while its SIGCONT was pending.
            if is_stopped(launcher) && !divide::is_pending(libc::SIGCONT) {
                let _ = raise(Signal::SIGSTOP);
            }
        } else if !came_to_the_group(&signal) {
            ft_sys::gate::reach("front.carries", None);
            Carried { signal: signal.ssi_signo as i32, origin: signal.ssi_pid }.send(launcher);
        }
    }
}

fn is_stopped(process: i32) -> bool {
    condition(process).is_some_and(|condition| condition.state == 'T' && condition.tracer == 0)
}

/// Whether the launcher got this signal as well: what its keys mean, the terminal sends to the group that it runs. All else
/// that the kernel sends (a hang-up, a timer that was set before `exec`, a limit) comes to this process alone.
fn came_to_the_group(signal: &siginfo) -> bool {
    let of_keys = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP];
    signal.ssi_code > 0 && of_keys.iter().any(|number| *number as u32 == signal.ssi_signo)
}

/// Brings a front back that was stopped with its launcher; to be called in the launcher when it runs again.
pub fn wake() {
    ft_sys::process::kill(nix::unistd::getppid().as_raw(), Signal::SIGCONT as i32);
}

/// The front as the launcher knows it.
#[derive(Debug, Default)]
pub struct Front {
    is_stopped: bool,
}

impl Front {
    /// Looks whether it runs; what the ranks are to be told, if that is new. Nobody hears of the SIGSTOP that a process gets,
    /// and the user means the job with it.
    pub fn look(&mut self) -> Option<i32> {
        let condition = condition(nix::unistd::getppid().as_raw())?;
        let is_stopped = condition.state == 'T' && condition.tracer == 0;
        let was_stopped = std::mem::replace(&mut self.is_stopped, is_stopped);
        (is_stopped != was_stopped).then_some(if is_stopped { libc::SIGTSTP } else { libc::SIGCONT })
    }

    /// It has been continued, and this is known.
    pub fn goes_on(&mut self) {
        self.is_stopped = false;
    }
}

/// The launcher's memory of signals that may come twice: to it, and through the front.
#[derive(Debug, Default)]
pub struct Echoes {
    heard: Vec<Heard>,
}

#[derive(Debug)]
struct Heard {
    signal: i32,
    origin: u32,
    through_front: bool,
    at: Instant,
}

impl Echoes {
    /// The signal that came; `None` when it is the second half of one that was sent to the whole process group.
    pub fn hear(&mut self, info: &siginfo) -> Option<i32> {
        let carried = Carried::read(info.ssi_signo, info.ssi_pid, info.ssi_ptr);
        let Carried { signal, origin } =
            carried.unwrap_or(Carried { signal: info.ssi_signo as i32, origin: info.ssi_pid });
        let counts =
            signal == Signal::SIGCHLD as i32 || !self.second(signal, origin, carried.is_some(), Instant::now());
        counts.then_some(signal)
    }

    fn second(&mut self, signal: i32, origin: u32, through_front: bool, at: Instant) -> bool {
        self.heard.retain(|heard| at.duration_since(heard.at) < ECHO);
        let half = |h: &Heard| h.signal == signal && h.origin == origin && h.through_front != through_front;
        if let Some(first) = self.heard.iter().position(half) {
            self.heard.remove(first);
            return true;
        }
        self.heard.push(Heard { signal, origin, through_front, at });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_to_the_group_counts_once_and_what_was_sent_twice_counts_twice() {
        let mut echoes = Echoes::default();
        let now = Instant::now();
        assert!(!echoes.second(15, 100, false, now));
        assert!(echoes.second(15, 100, true, now));
        assert!(!echoes.second(15, 100, true, now));
        assert!(!echoes.second(15, 100, true, now), "two to the front are two");
        assert!(!echoes.second(15, 200, false, now), "another sender");
        assert!(!echoes.second(10, 100, false, now), "another signal");
        assert!(!echoes.second(10, 100, true, now + ECHO), "much later");
    }
}
