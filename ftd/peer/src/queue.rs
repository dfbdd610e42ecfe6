//! What waits to be sent to one node. Each message says a state: a newer one stands for the older of its kind, which nobody needs any
//! more. So what waits is bounded, however long the other end does not read.

use crate::codec;
use crate::parcel::{Noted, Sending};
use ftd_core::tree::Direction;
use ftd_core::{NodeId, PeerMessage, Revision};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// So many messages wait at most; there are a dozen kinds, and a few detours of each observed node.
pub const MOST: usize = 128;
/// So many bytes wait at most, besides the newest message.
pub const MOST_BYTES: usize = 32 << 20;
/// So many of them may be of parcels, which are sent again soon: what else there is to say goes for none of them.
pub const MOST_OF_PARCELS: usize = 24 << 20;

/// Messages of one kind, of which the newest counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Everything of which there is one state.
    Plain(std::mem::Discriminant<PeerMessage>),
    /// Each accusation is handed over once: only the same one stands for it.
    Accuse(Revision, BTreeSet<NodeId>),
    /// An answer to what went up is none to what came down.
    Received(Direction),
    /// Of one node to another.
    Relay(NodeId, NodeId, Box<Kind>),
    /// Of a parcel: world, number, piece.
    Piece(u64, u64, u32),
    /// The word that it came, to the agent of this incarnation.
    Noted(u64, u64, u64, u32),
}

impl Kind {
    /// The message's.
    pub fn of(message: &PeerMessage) -> Kind {
        match message {
            PeerMessage::Accuse { revision, accused, .. } => Kind::Accuse(*revision, accused.clone()),
            PeerMessage::Received { direction, .. } => Kind::Received(*direction),
            PeerMessage::Relay { origin, to, message } => Kind::Relay(*origin, *to, Box::new(Kind::of(message))),
            message => Kind::Plain(std::mem::discriminant(message)),
        }
    }

    /// Of what is said of a parcel.
    pub fn of_parcel(sending: &Sending) -> Kind {
        match *sending {
            Sending::Piece(ref piece) => Kind::Piece(piece.world, piece.number, piece.piece),
            Sending::Noted(Noted { incarnation, world, number, piece }) => {
                Kind::Noted(incarnation, world, number, piece)
            }
        }
    }

    fn is_piece(&self) -> bool {
        match self {
            Kind::Piece(..) => true,
            Kind::Relay(.., kind) => kind.is_piece(),
            _ => false,
        }
    }
}

/// Messages that wait, oldest first.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<(Kind, Body)>,
    /// Those that wait, and those of them that are of parcels.
    bytes: usize,
    of_parcels: usize,
    /// The one that is being written.
    written: Option<(Kind, Body)>,
}

/// What is said. A piece of a parcel becomes bytes when its turn comes: who gives it away does not wait for that.
#[derive(Debug, Clone)]
pub enum Body {
    /// These bytes.
    Bytes(Arc<Vec<u8>>),
    /// Of a parcel.
    Parcel(Sending),
    /// The same, for who passes it on.
    Relayed(NodeId, NodeId, Sending),
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::Bytes(Arc::new(bytes))
    }
}

impl Body {
    /// The bytes.
    pub fn bytes(&self) -> Arc<Vec<u8>> {
        match self {
            Body::Bytes(bytes) => bytes.clone(),
            Body::Parcel(sending) => Arc::new(codec::encode_sending(sending)),
            Body::Relayed(origin, to, sending) => Arc::new(codec::encode_relayed(*origin, *to, sending)),
        }
    }

    /// How many there are, but for some.
    fn len(&self) -> usize {
        match self {
            Body::Bytes(bytes) => bytes.len(),
            Body::Parcel(sending) | Body::Relayed(_, _, sending) => match sending {
                Sending::Piece(piece) => piece.data.len(),
                Sending::Noted(_) => 0,
            },
        }
    }
}

/// What had to go for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gone {
    /// It was older, and of the same kind.
    pub superseded: u64,
    /// There was no room for it.
    pub dropped: u64,
}

impl Queue {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// One more.
    pub fn push(&mut self, kind: Kind, body: Body) -> Gone {
        let mut gone = Gone::default();
        if let Some(at) = self.waiting.iter().position(|(known, _)| *known == kind) {
            self.take(at);
            gone.superseded += 1;
        }
        while kind.is_piece() && self.of_parcels + body.len() > MOST_OF_PARCELS {
            let Some(oldest) = self.waiting.iter().position(|(known, _)| known.is_piece()) else { break };
            self.take(oldest);
            gone.dropped += 1;
        }
        while self.waiting.len() >= MOST || self.bytes + body.len() > MOST_BYTES && !self.waiting.is_empty() {
            self.take(0);
            gone.dropped += 1;
        }
        self.count(&kind, body.len());
        self.waiting.push_back((kind, body));
        gone
    }

    /// The next one, which is being written from now on.
    pub fn write_next(&mut self) -> Option<Body> {
        self.written = self.take(0);
        self.written.as_ref().map(|(_, body)| body.clone())
    }

    /// It was written.
    pub fn sent(&mut self) {
        self.written = None;
    }

    /// It was not: it is the next one again, unless a newer one waits.
    pub fn again(&mut self) {
        if let Some((kind, body)) = self.written.take()
            && self.waiting.iter().all(|(known, _)| *known != kind)
        {
            self.count(&kind, body.len());
            self.waiting.push_front((kind, body));
        }
    }

    /// Nothing of it is sent; how many there were.
    pub fn clear(&mut self) -> u64 {
        self.again();
        (self.bytes, self.of_parcels) = (0, 0);
        std::mem::take(&mut self.waiting).len() as u64
    }

    fn count(&mut self, kind: &Kind, bytes: usize) {
        self.bytes += bytes;
        self.of_parcels += if kind.is_piece() { bytes } else { 0 };
    }

    fn take(&mut self, at: usize) -> Option<(Kind, Body)> {
        let (kind, body) = self.waiting.remove(at)?;
        self.bytes -= body.len();
        self.of_parcels -= if kind.is_piece() { body.len() } else { 0 };
        Some((kind, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::EpochId;

    fn offer_noted(epoch: u64) -> PeerMessage {
        PeerMessage::OfferNoted { epoch: EpochId(epoch), copies: None }
    }

    fn push(queue: &mut Queue, message: &PeerMessage, body: u8) -> Gone {
        queue.push(Kind::of(message), vec![body].into())
    }

    fn bodies(queue: &mut Queue) -> Vec<u8> {
        std::iter::from_fn(|| queue.write_next()).map(|body| body.bytes()[0]).collect()
    }

    #[test]
    fn the_newest_state_stands_for_the_older_ones_in_its_own_place() {
        let mut queue = Queue::default();
        let ask = |epoch| PeerMessage::AskForRecord { epoch: EpochId(epoch) };
        assert_eq!(push(&mut queue, &ask(1), 1), Gone::default());
        push(&mut queue, &offer_noted(1), 2);
        assert_eq!(push(&mut queue, &ask(2), 3), Gone { superseded: 1, dropped: 0 });
        assert_eq!(bodies(&mut queue), [2, 3]);
    }

    #[test]
    fn what_is_not_the_same_state_waits_beside_it() {
        let mut queue = Queue::default();
        let accuse = |nodes: &[u32]| PeerMessage::Accuse {
            epoch: EpochId(1),
            revision: Revision(4),
            accused: nodes.iter().copied().map(NodeId).collect(),
        };
        let received = |direction| PeerMessage::Received { epoch: EpochId(1), direction, number: 1 };
        let relay = |origin, message| PeerMessage::Relay { origin: NodeId(origin), to: NodeId(9), message };
        let all = [
            accuse(&[1]),
            accuse(&[2]),
            received(Direction::Up),
            received(Direction::Down),
            offer_noted(1),
            relay(1, Box::new(offer_noted(1))),
            relay(2, Box::new(offer_noted(1))),
            relay(1, Box::new(received(Direction::Up))),
        ];
        for (body, message) in (0..).zip(&all) {
            assert_eq!(push(&mut queue, message, body), Gone::default(), "{message:?}");
        }
        assert_eq!(push(&mut queue, &accuse(&[2]), 9), Gone { superseded: 1, dropped: 0 });
        assert_eq!(bodies(&mut queue), [0, 2, 3, 4, 5, 6, 7, 9]);
    }

    #[test]
    fn what_waits_is_bounded_and_the_oldest_goes() {
        let relay = |origin| Kind::Relay(NodeId(origin), NodeId(0), Box::new(Kind::of(&offer_noted(1))));
        let mut queue = Queue::default();
        let dropped: u64 = (0..1000).map(|origin| queue.push(relay(origin), vec![0].into()).dropped).sum();
        assert_eq!((queue.len(), dropped), (MOST, 1000 - MOST as u64));
        let mut queue = Queue::default();
        let dropped: u64 =
            (0..9).map(|origin| queue.push(relay(origin), vec![origin as u8; 10 << 20].into()).dropped).sum();
        assert_eq!((queue.len(), dropped), (3, 6));
        assert_eq!(bodies(&mut queue), [6, 7, 8]);
    }

    #[test]
    fn of_parcels_less_may_wait_and_no_message_goes_for_them() {
        let mut queue = Queue::default();
        push(&mut queue, &offer_noted(1), 0);
        let relayed = |number| Kind::Relay(NodeId(1), NodeId(2), Box::new(Kind::Piece(1, number, 0)));
        let own = |number| Kind::Piece(1, number, 0);
        let put = |number: u8| {
            let kind = if number.is_multiple_of(2) { own(u64::from(number)) } else { relayed(u64::from(number)) };
            queue.push(kind, vec![number; 1 << 20].into()).dropped
        };
        assert_eq!((1..=60).map(put).sum::<u64>(), 36);
        let expected: Vec<u8> = std::iter::once(0).chain(37..=60).collect();
        assert_eq!(bodies(&mut queue), expected);
        assert_eq!((queue.bytes, queue.of_parcels), (0, 0));
    }

    #[test]
    fn what_could_not_be_sent_is_next_unless_there_is_a_newer_one() {
        let mut queue = Queue::default();
        push(&mut queue, &offer_noted(1), 1);
        assert_eq!(queue.write_next().unwrap().bytes()[0], 1);
        push(&mut queue, &PeerMessage::SlotsNoted { nodes: 1 }, 2);
        queue.again();
        assert_eq!(queue.write_next().unwrap().bytes()[0], 1);
        push(&mut queue, &offer_noted(2), 3);
        queue.again();
        assert_eq!(bodies(&mut queue), [2, 3]);
        queue.sent();
        queue.again();
        assert!(queue.is_empty());
    }
}
