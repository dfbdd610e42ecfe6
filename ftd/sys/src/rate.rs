//! Rates as people write them: bytes a second, as a number with a unit.

/// The slowest that means anything: below that a checkpoint would never come anywhere.
pub const SLOWEST: u64 = 64 << 10;
/// What a rate is, for a sentence that says what was expected.
pub const EXPECTED: &str = "a rate from 64K bytes a second on, for example 200M or 1G (0: no limit)";

/// Reads one: a number, perhaps with K, M, G or T behind it, which are powers of 1024. 0: there is no limit.
pub fn read(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let rate = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (rate == 0 || rate >= SLOWEST).then_some(rate)
}

/// The stricter one of two limits; 0 is none.
pub fn stricter(one: u64, other: u64) -> u64 {
    match (one, other) {
        (0, only) | (only, 0) => only,
        (one, other) => one.min(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_with_a_unit() {
        for (text, rate) in
            [("0", 0), ("65536", SLOWEST), ("64K", SLOWEST), ("200M", 200 << 20), ("1G", 1 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(read(text), Some(rate), "{text}");
        }
        for text in
            ["", "M", "-1", "200", "63K", "200m", "200 M", "1.5G", "200MB", "M200", "99999999999999999999", "99999999T"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn of_two_limits_the_stricter_one_counts() {
        assert_eq!([stricter(0, 0), stricter(7, 0), stricter(0, 7), stricter(7, 5)], [0, 7, 7, 5]);
    }
}
