//! The one queue of a run: acts in the order of (time, serial number).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Acts to come. Times are microseconds since the run began.
#[derive(Debug)]
pub struct Queue<A> {
    order: BinaryHeap<Reverse<(u64, u64, u32)>>,
    acts: Vec<Option<A>>,
    free: Vec<u32>,
    serial: u64,
}

impl<A> Queue<A> {
    pub fn new() -> Self {
        Queue { order: BinaryHeap::new(), acts: Vec::new(), free: Vec::new(), serial: 0 }
    }

    pub fn push(&mut self, at: u64, act: A) {
        self.serial += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.acts[place as usize] = Some(act);
                place
            }
            None => {
                self.acts.push(Some(act));
                (self.acts.len() - 1) as u32
            }
        };
        self.order.push(Reverse((at, self.serial, place)));
    }

    /// When the next act is due.
    pub fn next_at(&self) -> Option<u64> {
        self.order.peek().map(|Reverse((at, ..))| *at)
    }

    pub fn pop(&mut self) -> Option<(u64, A)> {
        let Reverse((at, _, place)) = self.order.pop()?;
        self.free.push(place);
        self.acts[place as usize].take().map(|act| (at, act))
    }

    /// How many acts there have been.
    pub fn count(&self) -> u64 {
        self.serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_their_order() {
        let mut queue = Queue::new();
        for (at, act) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.push(at, act);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, act)| act).collect();
        assert_eq!(order, "abcd");
    }
}
