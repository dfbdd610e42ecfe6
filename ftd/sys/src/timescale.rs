//! One time scale for tests. A scenario that would wait for half a minute of a real job's patience divides all of ftd's
//! waits by the same number: `FT_TEST_TIME_SCALE=10`, heeded only where gates are armed as well (`FT_GATE_DIR`).

use std::sync::OnceLock;
use std::time::Duration;

/// The time that is waited for what takes `ordinary` in a user's job.
pub fn scaled(ordinary: Duration) -> Duration {
    static SCALE: OnceLock<u32> = OnceLock::new();
    ordinary / *SCALE.get_or_init(|| scale(|name| std::env::var(name).ok()))
}

fn scale(variable: impl Fn(&str) -> Option<String>) -> u32 {
    let wanted = variable("FT_GATE_DIR").and_then(|_| variable("FT_TEST_TIME_SCALE"));
    wanted.and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_have_another_time() {
        let with = |gates: bool, value: &str| {
            scale(|name| match name {
                "FT_GATE_DIR" => gates.then(|| "/tmp".to_string()),
                "FT_TEST_TIME_SCALE" => Some(value.to_string()),
                _ => None,
            })
        };
        assert_eq!((with(true, "10"), with(false, "10"), with(true, "0"), with(true, "x")), (10, 1, 1, 1));
        assert_eq!(scaled(Duration::from_secs(3)), Duration::from_secs(3));
    }
}
