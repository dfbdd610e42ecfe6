//! A rank below a wrapper: another process waits for it, and then it may be forgotten how it ended.

use ft_sys::individual::Held;
use ft_sys::post_mortem::End;
use ftd_core::{Exit, Limit};
use std::sync::Arc;

/// The rank, and what is known of its death.
#[derive(Debug)]
pub struct Below {
    held: Arc<Held>,
    dying: bool,
    /// Its raw wait status, as soon as the kernel tells.
    status: Option<i32>,
    /// Why the kernel killed it, if it did.
    limit: Option<Limit>,
}

impl Below {
    /// A rank that lives.
    pub fn new(held: Arc<Held>) -> Below {
        Below { held, dying: false, status: None, limit: None }
    }

    /// The process.
    pub fn held(&self) -> Arc<Held> {
        self.held.clone()
    }

    /// It is dying, not by its own will; what of is asked at once, for its wrapper is killed next, or says what it likes.
    /// `told`: what somebody has asked for earlier.
    pub fn note(&mut self, told: Option<i32>) {
        self.dying = true;
        if self.status.is_none() {
            self.status = told.or_else(|| ft_sys::post_mortem::status(&self.held));
            // Its time is known as long as its body is there; then its shepherd asks who waited for it.
            let at_limit = self.is_killed() && ft_sys::death::is_at_cpu_limit(self.held.identity.pid);
            self.limit = at_limit.then_some(Limit::CpuTime);
        }
    }

    /// Whether it is dying of a signal, as the kernel tells now; that is kept.
    pub fn look(&mut self) -> bool {
        self.status = self.status.or_else(|| ft_sys::post_mortem::status(&self.held));
        self.signal().is_some()
    }

    /// Whether it is being killed, or was.
    pub fn is_dying(&self) -> bool {
        self.dying
    }

    /// Whether it runs no more.
    pub fn is_gone(&self) -> bool {
        !self.held.lives()
    }

    /// The signal that ended it, if it is known that one did.
    pub fn signal(&self) -> Option<i32> {
        self.status.map(|status| status & 0x7f).filter(|signal| *signal != 0)
    }

    /// Whether a process that says nothing of its own end is gone, and not by a signal as far as anybody knows.
    pub fn has_left(&self) -> bool {
        self.end().is_some_and(|end| !matches!(end, End::Status(status) if status & 0x7f != 0))
    }

    /// Whether it is known that it ended with status 0.
    pub fn has_ended_well(&self) -> bool {
        self.end() == Some(End::Status(0))
    }

    /// Whether nobody knows any more how it ended.
    pub fn is_forgotten(&self) -> bool {
        self.end() == Some(End::Unknown)
    }

    fn end(&self) -> Option<End> {
        self.status.map(End::Status).or_else(|| ft_sys::post_mortem::end(&self.held))
    }

    fn is_killed(&self) -> bool {
        self.signal() == Some(nix::libc::SIGKILL)
    }

    /// What its wrapper's end, or its shepherd's word on it, means.
    pub fn exit(&mut self, wrapper: i32, limit: Option<Limit>) -> (Exit, Option<Limit>) {
        let exit = crate::config::exit_of(wrapper);
        if !self.dying {
            return (exit, limit);
        }
        self.note(None);
        let exit = match (self.status.map(crate::config::exit_of), exit) {
            (Some(killed @ Exit::Signal(_)), _) => killed,
            // ftd kills the wrappers of the dead.
            (known, Exit::Signal(nix::libc::SIGKILL)) => known.unwrap_or(Exit::Unseen),
            // A rank that ended without a word to ftd, but not by a signal: what it meant its wrapper may say.
            (_, exit) => exit,
        };
        (exit, limit.or(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(how: &str) -> Below {
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &format!("read; {how}")]).stdin(std::process::Stdio::piped());
        let forks = crate::forks::one();
        let mut child = command.spawn().unwrap();
        drop(forks);
        let below = Below::new(Arc::new(Held::of(child.id() as i32).unwrap()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(below.is_gone());
        below
    }

    #[test]
    fn the_rank_counts_when_it_was_seen_dying_and_else_the_wrapper() {
        let mut below = dead("kill -SEGV $$");
        assert_eq!(below.exit(9, None), (Exit::Signal(9), None), "it may be ftd that kills both");
        below.note(Some(11));
        assert_eq!(below.exit(9, None), (Exit::Signal(11), None));
        assert_eq!(below.exit(0, Some(Limit::Memory)), (Exit::Signal(11), Some(Limit::Memory)));
        let mut by_itself = dead("exit 3");
        by_itself.note(Some(3 << 8));
        assert_eq!((by_itself.exit(7 << 8, None).0, by_itself.exit(9, None).0), (Exit::Code(7), Exit::Code(3)));
    }

    /// As on a kernel that has forgotten it.
    #[test]
    fn what_nobody_knows_is_no_sigkill() {
        let unknown = || Below { status: None, ..dead("exit 0") };
        let exit = |wrapper| {
            let mut below = unknown();
            below.dying = true;
            below.held = Arc::new(Held::of(std::process::id() as i32).unwrap());
            below.exit(wrapper, None).0
        };
        assert_eq!(exit(9), Exit::Unseen);
        assert_eq!(exit(139 << 8), Exit::Code(139), "a shell tells of the signal");
        assert_eq!(exit(15), Exit::Signal(15));
    }
}
