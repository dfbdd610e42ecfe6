//! What of a move has moved, and what comes next.

/// A part of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// The parts of one move.
#[derive(Debug)]
pub struct Plan {
    bytes: u64,
    next: u64,
    arrived: u64,
}

impl Plan {
    /// Nothing has moved yet.
    pub fn new(bytes: u64) -> Plan {
        Plan { bytes, next: 0, arrived: 0 }
    }

    /// The next part, of at most so many bytes, if not all are on their way.
    pub fn next(&self, most: u64) -> Option<Part> {
        let bytes = (self.bytes - self.next).min(most);
        (bytes > 0).then_some(Part { offset: self.next, bytes })
    }

    /// The next part is on its way.
    pub fn begun(&mut self, part: Part) {
        self.next = part.offset + part.bytes;
    }

    /// A part has arrived.
    pub fn arrived(&mut self, part: Part) {
        self.arrived += part.bytes;
    }

    /// Bytes that have arrived.
    pub fn bytes_arrived(&self) -> u64 {
        self.arrived
    }

    /// Whether something is on its way.
    pub fn is_under_way(&self) -> bool {
        self.next > self.arrived
    }

    /// Whether everything has arrived.
    pub fn is_done(&self) -> bool {
        self.arrived == self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_whatever_their_lengths() {
        for (bytes, most) in [(0, 1), (1, 1), (10, 3), (4096, 1 << 20), ((1 << 20) + 1, 1 << 20)] {
            let mut plan = Plan::new(bytes);
            let mut end = 0;
            while let Some(part) = plan.next(most) {
                assert!(part.offset == end && part.bytes <= most && !plan.is_done());
                end += part.bytes;
                plan.begun(part);
                assert!(plan.is_under_way());
                plan.arrived(part);
            }
            assert!(end == bytes && plan.is_done() && !plan.is_under_way());
        }
    }

    #[test]
    fn what_was_not_begun_comes_again() {
        let mut plan = Plan::new(10);
        assert_eq!(plan.next(4), plan.next(4));
        plan.begun(Part { offset: 0, bytes: 4 });
        assert_eq!(plan.next(100), Some(Part { offset: 4, bytes: 6 }));
        assert!(!plan.is_done() && plan.bytes_arrived() == 0);
    }
}
