//! What one end of a link has sent and the other one has not passed on, as far as is known: over another connection it may have to be sent
//! again. It is never more than the window.

use crate::part::{Carried, Mark};
use std::collections::VecDeque;

/// See the module. Bytes are counted from the link's beginning.
#[derive(Debug, Default)]
pub struct Unpassed {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes before the first piece.
    before: u64,
    /// Bytes of `before` and all pieces.
    sent: u64,
    /// Bytes that the other end has passed on.
    passed: u64,
    /// Bytes of the other end's that this one has said that it has passed on.
    taken: u64,
    /// Nothing more comes from here.
    ended: bool,
    /// What is to be sent again: bytes from here on.
    missing: Option<u64>,
}

impl Unpassed {
    /// From where the two ends have agreed that they are: the other one's mark, and this one's.
    pub fn from(theirs: Mark, ours: Mark) -> Unpassed {
        let (before, passed) = (theirs.came, theirs.passed);
        Unpassed { before, sent: before, passed, taken: ours.passed, ..Unpassed::default() }
    }

    /// In so many pieces it lies here.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// This is being sent.
    pub fn note(&mut self, word: &Carried) {
        match word {
            Carried::Bytes(bytes) => {
                self.sent += bytes.len() as u64;
                self.pieces.push_back(bytes.clone());
            }
            Carried::Taken(count) => self.taken += u64::from(*count),
            Carried::End => self.ended = true,
            Carried::Ask | Carried::Here => {}
        }
    }

    /// The other end has passed on so much more.
    pub fn passed_on(&mut self, bytes: u64) {
        self.passed = (self.passed + bytes).min(self.sent);
        while let Some(piece) = self.pieces.front().filter(|piece| self.before + piece.len() as u64 <= self.passed) {
            self.before += piece.len() as u64;
            self.pieces.pop_front();
        }
    }

    /// How much of the other end's was said to be passed on.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Nothing more comes from here.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The other end is so far. Returns what it has passed on beyond what was known; nothing, where it cannot be that far, or where that
    /// is not here any more.
    pub fn go_back_to(&mut self, theirs: Mark) -> Option<u64> {
        let known = self.passed;
        if theirs.came < self.before {
            return None;
        }
        if !(known..=self.sent).contains(&theirs.passed) || !(theirs.passed..=self.sent).contains(&theirs.came) {
            return None;
        }
        self.passed_on(theirs.passed - known);
        self.missing = Some(theirs.came);
        Some(theirs.passed - known)
    }

    /// What is to be sent again, once.
    pub fn again(&mut self) -> Vec<Carried> {
        let Some(from) = self.missing.take() else { return Vec::new() };
        let (mut at, mut words) = (self.before, Vec::new());
        for piece in &self.pieces {
            let skip = usize::try_from(from.saturating_sub(at)).unwrap_or(usize::MAX).min(piece.len());
            at += piece.len() as u64;
            if skip < piece.len() {
                words.push(Carried::Bytes(piece[skip..].to_vec()));
            }
        }
        words.extend(self.ended.then_some(Carried::End));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[Carried]) -> Vec<u8> {
        let one = |word: &Carried| if let Carried::Bytes(bytes) = word { bytes.clone() } else { Vec::new() };
        words.iter().flat_map(one).collect()
    }

    #[test]
    fn what_did_not_arrive_is_sent_again_and_nothing_twice() {
        let mut sent = Unpassed::default();
        for piece in [vec![1, 2, 3], vec![4, 5], vec![6, 7, 8, 9]] {
            sent.note(&Carried::Bytes(piece));
        }
        sent.note(&Carried::Taken(11));
        assert_eq!(sent.taken(), 11);
        sent.passed_on(3);
        assert!(sent.again().is_empty(), "nobody has asked");
        assert_eq!(sent.go_back_to(Mark { came: 6, passed: 4 }), Some(1));
        assert_eq!(bytes(&sent.again()), [7, 8, 9]);
        assert!(sent.again().is_empty());
        // It was lost again, and the end as well.
        sent.note(&Carried::End);
        assert_eq!(sent.go_back_to(Mark { came: 5, passed: 5 }), Some(1));
        let again = sent.again();
        assert_eq!((bytes(&again), again.last()), (vec![6, 7, 8, 9], Some(&Carried::End)));
        assert_eq!(sent.go_back_to(Mark { came: 9, passed: 9 }), Some(4));
        assert_eq!(sent.again(), [Carried::End]);
    }

    #[test]
    fn who_goes_on_where_others_have_agreed_sends_what_came_after_that() {
        let (theirs, ours) = (Mark { came: 100, passed: 60 }, Mark { came: 7, passed: 5 });
        let mut sent = Unpassed::from(theirs, ours);
        sent.note(&Carried::Bytes(vec![1, 2, 3]));
        sent.note(&Carried::Taken(2));
        assert_eq!((sent.taken(), sent.pieces()), (7, 1));
        sent.passed_on(30);
        assert_eq!(sent.go_back_to(Mark { came: 99, passed: 80 }), None);
        assert_eq!(sent.go_back_to(Mark { came: 101, passed: 95 }), Some(5));
        assert_eq!(bytes(&sent.again()), [2, 3]);
    }

    #[test]
    fn an_end_that_cannot_be_so_far_is_not_believed() {
        let mut sent = Unpassed::default();
        sent.note(&Carried::Bytes(vec![0; 10]));
        sent.passed_on(10);
        for (came, passed) in [(11, 10), (10, 11), (9, 10), (10, 9)] {
            assert_eq!(sent.go_back_to(Mark { came, passed }), None);
        }
        assert_eq!(sent.go_back_to(Mark { came: 10, passed: 10 }), Some(0));
    }
}
