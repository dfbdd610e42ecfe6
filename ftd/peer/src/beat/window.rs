//! Which numbers of a sender were taken: each counts once, and those that the network overtook still count.

/// So many numbers before the newest are remembered, one bit for each.
const REMEMBERED: u64 = u64::BITS as u64;

/// The numbers that were taken of one sender.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    incarnation: u64,
    newest: u64,
    /// Bit n: `newest - n` was taken.
    taken: u64,
}

impl Window {
    /// Whether this number of this incarnation is new; it is not, afterwards.
    pub fn take(&mut self, incarnation: u64, number: u64) -> bool {
        if incarnation > self.incarnation {
            *self = Window { incarnation, newest: number, taken: 1 };
            return true;
        }
        if incarnation < self.incarnation {
            return false;
        }
        if number > self.newest {
            let ahead = number - self.newest;
            self.taken = if ahead < REMEMBERED { self.taken << ahead | 1 } else { 1 };
            self.newest = number;
            return true;
        }
        let behind = self.newest - number;
        let bit = if behind < REMEMBERED { 1 << behind } else { return false };
        let fresh = self.taken & bit == 0;
        self.taken |= bit;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_agent_that_has_ended_is_not_heard_any_more() {
        let mut window = Window::default();
        assert!(window.take(1, 9) && window.take(2, 1));
        assert!(!window.take(1, 10) && !window.take(2, 1) && window.take(2, 2));
    }

    proptest! {
        #[test]
        fn no_number_counts_twice(numbers in proptest::collection::vec(1u64..300, 0..200)) {
            let (mut window, mut taken, mut newest) = (Window::default(), BTreeSet::new(), 0);
            for number in numbers {
                // Far behind the newest it may be refused though it is new.
                let expected = !taken.contains(&number) && number + REMEMBERED > newest;
                prop_assert_eq!(window.take(5, number), expected);
                taken.insert(number);
                newest = number.max(newest);
            }
        }
    }
}
