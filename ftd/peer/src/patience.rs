//! How long an endpoint waits for what. None of it is the caller's wait.

use std::time::Duration;

/// For a connection to be made: the other node is there or it is not.
pub const DIAL: Duration = Duration::from_secs(1);
/// For hello and proofs, together. A frozen agent's kernel takes connections, and nobody answers.
pub const HANDSHAKE: Duration = Duration::from_secs(1);
/// For the other end to take another byte of a message, or to send another byte of one that it began. An agent that stood still for
/// that long has long been left out of its job.
pub const STALLED: Duration = Duration::from_secs(3);
/// For acknowledgements of the other end's kernel; a line that was cut while nothing waits to be written is noticed by this.
pub const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
/// Before the first try after one that failed; doubled with each.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Before any later one.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Of the node with the higher number, before it dials: mostly the other one does, and one connection is enough.
pub const COURTESY: Duration = Duration::from_millis(200);
/// The same where the two have never had a connection: a job begins, and waits for what this one has to say.
pub const FIRST_COURTESY: Duration = Duration::from_millis(2);
/// After the machine had no descriptor left for a connection.
pub const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

/// The same on the time scale of tests.
pub fn scaled(ordinary: Duration) -> Duration {
    ft_sys::timescale::scaled(ordinary)
}

/// Before the n-th try; 0 is the first.
pub fn pause(tries: u32) -> Duration {
    match tries {
        0 => Duration::ZERO,
        tries => (FIRST_PAUSE * 2u32.saturating_pow((tries - 1).min(16))).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let pauses: Vec<u128> = [0, 1, 2, 3, 6, 7, 8, u32::MAX].map(|tries| pause(tries).as_millis()).to_vec();
        assert_eq!(pauses, [0, 50, 100, 200, 1600, 2000, 2000, 2000]);
    }
}
