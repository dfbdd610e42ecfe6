//! What waits to be told to a part. Nobody waits for a part that does not listen: what goes to the others is not held up by it.

use ft_wire::part::Order;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// More input than a part allows, or more orders than anybody gives.
const MOST: (usize, usize) = (4 << 20, 1024);
/// As with the kernel's, a signal that waits is not there a third time: once to end the job, and once to end it at once.
const ALIKE: usize = 2;

/// The queue of a part.
#[derive(Debug, Default)]
pub struct Orders {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    orders: VecDeque<Order>,
    bytes: usize,
    over: bool,
}

fn length(order: &Order) -> usize {
    if let Order::Input(bytes) = order { bytes.len() } else { 0 }
}

impl Orders {
    /// A queue, for who gives orders and who carries them.
    pub fn new() -> Arc<Orders> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more. Returns false when there are too many.
    pub fn give(&self, order: Order) -> bool {
        let mut waiting = self.lock();
        let alike = |order: &Order| waiting.orders.iter().filter(|other| *other == order).count();
        if waiting.over || !matches!(order, Order::Input(_)) && alike(&order) >= ALIKE {
            return true;
        }
        waiting.bytes += length(&order);
        waiting.orders.push_back(order);
        self.changed.notify_one();
        waiting.bytes <= MOST.0 && waiting.orders.len() <= MOST.1
    }

    /// The next one.
    pub async fn next(&self) -> Order {
        loop {
            let found = {
                let mut waiting = self.lock();
                let found = waiting.orders.pop_front();
                waiting.bytes -= found.as_ref().map_or(0, length);
                found
            };
            match found {
                Some(order) => return order,
                None => self.changed.notified().await,
            }
        }
    }

    /// Nobody takes any more.
    pub fn end(&self) {
        *self.lock() = Waiting { over: true, ..Waiting::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_fills_the_memory() {
        let orders = Orders::new();
        assert!((0..5000).all(|_| orders.give(Order::Signal(10)) && orders.give(Order::Cancel(2))));
        assert_eq!(orders.lock().orders.len(), 2 * ALIKE);
        assert!((0..64).all(|_| orders.give(Order::Input(vec![0; 64 << 10]))));
        assert!(!orders.give(Order::Input(vec![0; 64 << 10])));
        orders.end();
        assert!(orders.give(Order::Input(vec![0; 5 << 20])) && orders.lock().bytes == 0);
    }

    #[test]
    fn orders_come_as_they_were_given() {
        let orders = Orders::new();
        let given =
            [Order::Signal(1), Order::Input(vec![1]), Order::Input(vec![1]), Order::InputEnd, Order::Cancel(15)];
        let taken = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let all = async {
                let mut taken = Vec::new();
                while taken.len() < given.len() {
                    taken.push(orders.next().await);
                }
                taken
            };
            let giving = async { given.iter().for_each(|order| assert!(orders.give(order.clone()))) };
            tokio::join!(all, giving).0
        });
        assert_eq!(taken, given);
    }
}
