//! How long a `poll` waits.

use nix::poll::PollTimeout;
use std::time::Duration;

/// For `poll`, which counts in milliseconds: rounded up, or the last one before a deadline would be spent spinning. What is
/// too long for it is as long as it can wait.
pub fn at_most(left: Duration) -> PollTimeout {
    let milliseconds = left.as_micros().div_ceil(1000);
    i32::try_from(milliseconds).ok().and_then(|ms| PollTimeout::try_from(ms).ok()).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_nothing_is_no_wait() {
        assert_eq!(at_most(Duration::ZERO), PollTimeout::ZERO);
        assert_eq!(at_most(Duration::from_micros(1)), PollTimeout::from(1_u8));
        assert_eq!(at_most(Duration::from_micros(9_001)), PollTimeout::from(10_u8));
        assert_eq!(at_most(Duration::MAX), PollTimeout::MAX);
    }
}
