//! The near end of the link to a part: what waits to be told to it, and what it says. Nobody waits for a part that does not listen: what goes to
//! the others is not held up by it.

use ft_wire::cluster::Cluster;
use ft_wire::link_end::{LinkEnd, LinkEndError};
use ft_wire::part::{Carried, FromPart, Mark, Order, ToPart};
use std::collections::VecDeque;
use std::rc::Rc;

/// More input than a part allows, or more orders than anybody gives.
const MOST: (usize, usize) = (4 << 20, 1024);
/// So much of the input goes together, where it waits.
const TOGETHER: usize = 64 << 10;
/// As with the kernel's, a signal that waits is not there a third time: once to end the job, and once to end it at once.
const ALIKE: usize = 2;

/// See the module.
#[derive(Debug)]
pub struct Link {
    end: LinkEnd,
    /// The node's number and the job's nodes, before the part knows them and may start.
    go: Option<(u32, Option<Rc<Cluster>>)>,
    orders: VecDeque<Order>,
    bytes: usize,
}

fn length(order: &Order) -> usize {
    if let Order::Input(bytes) = order { bytes.len() } else { 0 }
}

impl Link {
    /// To the part on the node of that number, with a window of so many bytes, over which so many have come. What it is told first is the cluster.
    pub fn new(window: u32, came: u64, me: u32, cluster: Option<Rc<Cluster>>) -> Link {
        Link { end: LinkEnd::new(window, came), go: Some((me, cluster)), orders: VecDeque::new(), bytes: 0 }
    }

    /// One order more. Returns false when there are too many.
    pub fn give(&mut self, order: Order) -> bool {
        let alike = |order: &Order| self.orders.iter().filter(|other| *other == order).count();
        if !matches!(order, Order::Input(_)) && alike(&order) >= ALIKE {
            return true;
        }
        self.bytes += length(&order);
        match (self.orders.back_mut(), order) {
            (Some(Order::Input(last)), Order::Input(more)) if last.len() + more.len() <= TOGETHER => last.extend(more),
            (_, order) => self.orders.push_back(order),
        }
        self.bytes <= MOST.0 && self.orders.len() <= MOST.1
    }

    /// Whether the part has not been told yet that it may start.
    pub fn waits(&self) -> bool {
        self.go.is_some()
    }

    /// What is to be sent now, if anything is.
    pub fn next_word(&mut self) -> Option<Carried> {
        if self.end.is_free()
            && let Some(frame) = self.next_frame()
        {
            self.end.say(frame);
        }
        self.end.next_word()
    }

    /// Whether all that it was told is under way.
    pub fn is_free(&self) -> bool {
        self.end.is_free()
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let word = match self.go.take() {
            Some((me, cluster)) => {
                let cluster = cluster.map(|cluster| Box::new(Cluster { me, ..(*cluster).clone() }));
                ToPart::Go { cluster }
            }
            None => {
                let order = self.orders.pop_front()?;
                self.bytes -= length(&order);
                ToPart::Order(order)
            }
        };
        ft_wire::encode(&word, 0).ok()
    }

    /// What comes over the link.
    pub fn hear(&mut self, word: Carried) {
        self.end.hear(word);
    }

    /// What the part says next, if that is here.
    ///
    /// # Errors
    /// [`LinkEndError`]: it is no message.
    pub fn next_said(&mut self) -> Result<Option<FromPart>, LinkEndError> {
        self.end.next_said()
    }

    /// Nothing more comes from there.
    pub fn has_ended(&self) -> bool {
        self.end.has_ended()
    }

    /// The connection below is, or will be, another one: how far this end is.
    pub fn mark(&mut self) -> Mark {
        self.end.mark()
    }

    /// So far is the other end. Returns what is to be sent again.
    ///
    /// # Errors
    /// [`LinkEndError`]: it cannot be so far.
    pub fn agree(&mut self, theirs: Mark) -> Result<Vec<Carried>, LinkEndError> {
        self.end.agree(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::FrameBuffer;

    fn link() -> Link {
        Link::new(16 << 10, 0, 0, None)
    }

    #[test]
    fn nobody_fills_the_memory() {
        let mut link = link();
        assert!((0..5000).all(|_| link.give(Order::Signal(10)) && link.give(Order::Cancel(2))));
        assert_eq!(link.orders.len(), 2 * ALIKE);
        assert!((0..64 << 10).all(|_| link.give(Order::Input(vec![0; 64]))));
        assert!(link.orders.len() < 100, "{} orders", link.orders.len());
        assert!(!link.give(Order::Input(vec![0; 64 << 10])));
    }

    #[test]
    fn orders_come_as_they_were_given_behind_the_word_that_starts_the_part() {
        let mut link = link();
        let given = [
            Order::Signal(1),
            Order::Input(vec![1]),
            Order::Signal(2),
            Order::Input(vec![2]),
            Order::InputEnd,
            Order::Cancel(15),
        ];
        given.iter().for_each(|order| assert!(link.give(order.clone())));
        assert!(link.waits());
        let (mut heard, mut said) = (FrameBuffer::default(), Vec::new());
        while let Some(word) = link.next_word() {
            let Carried::Bytes(bytes) = word else { panic!("{word:?}") };
            heard.push(&bytes);
        }
        while let Some((body, _)) = heard.next_frame().unwrap() {
            said.push(ft_wire::decode::<ToPart>(&body).unwrap());
        }
        let all: Vec<ToPart> = [ToPart::Go { cluster: None }].into_iter().chain(given.map(ToPart::Order)).collect();
        assert!(said == all && !link.waits() && link.is_free());
    }
}
