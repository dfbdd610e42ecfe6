//! Who has a processor first (nice values).
//!
//! Over several nodes an agent that gets no processor is a node that gets no heartbeat: so `ftd`, which is root, gives the launcher's part
//! a priority above the ranks', which the agent and the shepherds inherit. Their ranks, what works behind them and what runs other
//! libraries' code are put back to what the user's own processes have. Only root can raise a priority again.

use std::sync::atomic::{AtomicI32, Ordering};

/// How an agent tells its `ft-pmix` and `ft-ship` what the user's own is.
pub const VARIABLE: &str = "FT_NICE";

/// No nice value: nobody was raised.
const NONE: i32 = i32::MIN;

/// The user's own, once it is known.
static USERS: AtomicI32 = AtomicI32::new(NONE);

/// Sets that of the calling thread, and of what it starts from now on. Safe between `fork` and `exec`.
///
/// # Errors
/// It is higher than the present one, and only root may have that.
pub fn set(nice: i32) -> std::io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// That of the calling thread.
pub fn own() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// This process is raised, and the user's own would have this one.
pub fn raised_from(users: i32) {
    USERS.store(users, Ordering::Relaxed);
}

/// The user's own, if this process is raised.
pub fn users() -> Option<i32> {
    Some(USERS.load(Ordering::Relaxed)).filter(|nice| *nice != NONE)
}

/// Puts the calling thread back to the user's own, if this process is raised.
pub fn put_back() {
    if let Some(nice) = users() {
        // Nobody is refused a lower one; a thread that has given way before stays where it is.
        let _ = set(nice.max(own()));
    }
}

/// As [`put_back`], in a process that a raised one has started, if that has said so.
pub fn put_back_as_told() {
    if let Some(nice) = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()) {
        raised_from(nice);
        put_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_a_raised_process_is_put_back_and_no_other_thread_is() {
        // As an ordinary user, too, a test may have others count as raised by having them lower than itself.
        let before = own();
        assert_eq!(users(), None);
        put_back();
        assert_eq!(own(), before);
        raised_from(before.min(15) + 3);
        let there = std::thread::spawn(|| {
            put_back();
            let once = own();
            let _ = set(19);
            put_back();
            (once, own())
        });
        assert_eq!(there.join().unwrap(), (before.min(15) + 3, 19));
        assert_eq!(own(), before);
        assert!(nix::unistd::geteuid().is_root() || set(-20).is_err());
    }
}
