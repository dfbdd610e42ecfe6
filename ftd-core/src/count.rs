//! Numbers and sizes in sentences.

/// `1 rank`, `2 ranks`.
pub fn counted(number: impl Into<u64>, what: &str) -> String {
    match number.into() {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// `once`, `2 times`.
pub fn times(number: impl Into<u64>) -> String {
    match number.into() {
        1 => "once".into(),
        number => format!("{number} times"),
    }
}

/// A size, as people read it: `512 B`, `1.5 KiB`, `2.0 GiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_the_largest_unit_of_which_there_is_one() {
        let said = [0, 1023, 1024, 1 << 20, (1 << 30) - 1, 1_263_219_507].map(size);
        assert_eq!(said, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1024.0 MiB", "1.2 GiB"]);
    }

    #[test]
    fn one_is_one_and_all_others_are_several() {
        let said = [0u32, 1, 2, 21].map(|number| (counted(number, "rank"), times(number)));
        let said = said.each_ref().map(|(counted, times)| (counted.as_str(), times.as_str()));
        assert_eq!(
            said,
            [("0 ranks", "0 times"), ("1 rank", "once"), ("2 ranks", "2 times"), ("21 ranks", "21 times")]
        );
    }
}
