//! Numbers in sentences.

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

#[cfg(test)]
mod tests {
    use super::*;

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
