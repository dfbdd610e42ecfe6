//! Lengths of time, for people.

/// Milliseconds as a person reads them: `3.2 s`, `2 min 5 s`, `1 h 0 min`, `2 d 3 h`.
pub fn shown(ms: u64) -> String {
    match ms / 1000 {
        0..60 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
        3600..86_400 => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_units_are_shown() {
        let shown = [0, 59_999, 60_000, 3_599_999, 3_600_000, 86_399_999, 183_600_000].map(shown);
        assert_eq!(shown, ["0.0 s", "59.9 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "23 h 59 min", "2 d 3 h"]);
    }
}
