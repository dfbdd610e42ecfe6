//! A rank below a wrapper: another process waits for it, and then it may be forgotten how it ended.

use ft_sys::individual::Held;
use ft_sys::post_mortem::End;
use ftd_core::{Limit, blame};
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

    /// What is known of its death, when its wrapper has ended; nothing where it has died by its own will, if at all.
    pub fn death(&mut self) -> Option<blame::Below> {
        if !self.dying {
            return None;
        }
        self.note(None);
        Some(blame::Below { exit: self.status.map(crate::config::exit_of), limit: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::Exit;

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
    fn how_it_died_is_known_when_it_was_seen_dying() {
        let mut below = dead("kill -SEGV $$");
        assert_eq!(below.death(), None, "it may be ftd that kills it");
        below.note(Some(11));
        assert_eq!(below.death(), Some(blame::Below { exit: Some(Exit::Signal(11)), limit: None }));
        let mut by_itself = dead("exit 3");
        by_itself.note(Some(3 << 8));
        assert_eq!(by_itself.death(), Some(blame::Below { exit: Some(Exit::Code(3)), limit: None }));
    }

    /// As on a kernel that has forgotten it.
    #[test]
    fn what_nobody_knows_is_not_made_up() {
        let mut below = Below { status: None, ..dead("exit 0") };
        below.dying = true;
        below.held = Arc::new(Held::of(std::process::id() as i32).unwrap());
        assert_eq!(below.death(), Some(blame::Below { exit: None, limit: None }));
    }
}
