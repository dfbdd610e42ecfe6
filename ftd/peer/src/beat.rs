//! Heartbeats and their answers as datagrams of one length: sealed with a key that only the job's agents have, and each taken once.
//!
//! A datagram names its job, sender and receiver, the incarnation of the sending agent and of the one that it is for, and a number
//! that grows. So one that was recorded is of no use: the receiver has had its number, and the receiver's successor is another
//! incarnation. Who is addressed by an incarnation that is over says which one it is ([`Said::Greeting`]), and the next one counts.

mod window;

pub use window::Window;

use crate::secret::{self, KEY, Secret};
use ftd_core::fence::Beat;
use ftd_core::{EpochId, NodeId, PeerMessage};

/// Bytes of every datagram, which has one form in neighbouring releases.
pub const BYTES: usize = BODY + SEAL;

const BODY: usize = 88;
/// Of the hash: as much as nobody finds by trying, and heartbeats stay small.
const SEAL: usize = 16;
const MAGIC: [u8; 4] = *b"ftdb";
const PURPOSE: &str = "ftd 2026-11-22 heartbeats between the agents of a job";

/// Why a datagram or a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing of ftd's.
    Malformed,
    /// Of another release, with this version.
    Version(u32),
    /// Of another job.
    Foreign,
    /// Without the job's secret.
    Forged,
    /// For another node, or in the receiver's own name.
    Misdirected,
    /// For an agent of this node that has ended.
    Stale,
    /// Taken already, or older than what was.
    Replayed,
    /// Longer than any message.
    Oversized,
    /// One of too many that have not proved themselves yet.
    Crowd,
}

/// From whom a datagram is, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The sending agent; never 0.
    pub incarnation: u64,
    /// The agent that it is for, as far as the sender knows; 0 if it does not.
    pub addressed: u64,
    /// Grows with every datagram of this agent to this node.
    pub number: u64,
}

/// What a datagram says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// [`PeerMessage::Heartbeat`].
    Heartbeat {
        /// Names it.
        beat: Beat,
        /// The sender's epoch.
        epoch: EpochId,
        /// See there.
        unheard: bool,
    },
    /// [`PeerMessage::Acknowledge`].
    Acknowledge {
        /// The heartbeat.
        beat: Beat,
        /// The epoch of both.
        epoch: EpochId,
        /// See there.
        still: bool,
    },
    /// A heartbeat and an answer, which leave for the same node in the same moment.
    Both {
        /// Names the heartbeat.
        beat: Beat,
        /// The heartbeat that is answered.
        answered: Beat,
        /// The epoch of both.
        epoch: EpochId,
        /// The heartbeat's.
        unheard: bool,
        /// The answer's.
        still: bool,
    },
    /// [`PeerMessage::Heard`].
    Heard {
        /// The epoch of both.
        epoch: EpochId,
    },
    /// The sender is this incarnation, and not the one that was addressed.
    Greeting,
}

impl Said {
    /// What of ftd-core's messages goes by datagram; nothing for all others.
    pub fn of(message: &PeerMessage) -> Option<Said> {
        match *message {
            PeerMessage::Heartbeat { beat, epoch, unheard } => Some(Said::Heartbeat { beat, epoch, unheard }),
            PeerMessage::Acknowledge { beat, epoch, still } => Some(Said::Acknowledge { beat, epoch, still }),
            PeerMessage::Heard { epoch } => Some(Said::Heard { epoch }),
            _ => None,
        }
    }

    /// A heartbeat and an answer as one datagram, if they are that, and of one epoch.
    pub fn both(heartbeat: &PeerMessage, answer: &PeerMessage) -> Option<Said> {
        match (heartbeat, answer) {
            (
                PeerMessage::Heartbeat { beat, epoch, unheard },
                PeerMessage::Acknowledge { beat: answered, epoch: of_answer, still },
            ) if epoch == of_answer => {
                Some(Said::Both { beat: *beat, answered: *answered, epoch: *epoch, unheard: *unheard, still: *still })
            }
            _ => None,
        }
    }

    /// The same in ftd-core's words; nothing for what concerns only the sockets.
    pub fn messages(self) -> impl Iterator<Item = PeerMessage> {
        let (first, second) = match self {
            Said::Heartbeat { beat, epoch, unheard } => (Some(PeerMessage::Heartbeat { beat, epoch, unheard }), None),
            Said::Acknowledge { beat, epoch, still } => (Some(PeerMessage::Acknowledge { beat, epoch, still }), None),
            Said::Both { beat, answered, epoch, unheard, still } => (
                Some(PeerMessage::Acknowledge { beat: answered, epoch, still }),
                Some(PeerMessage::Heartbeat { beat, epoch, unheard }),
            ),
            Said::Heard { epoch } => (Some(PeerMessage::Heard { epoch }), None),
            Said::Greeting => (None, None),
        };
        first.into_iter().chain(second)
    }

    fn parts(self) -> Parts {
        let none = Beat::default();
        match self {
            Said::Heartbeat { beat, epoch, unheard } => {
                Parts { kind: 1, flags: flags(unheard, false), beats: [beat, none], epoch }
            }
            Said::Acknowledge { beat, epoch, still } => {
                Parts { kind: 2, flags: flags(still, false), beats: [beat, none], epoch }
            }
            Said::Heard { epoch } => Parts { kind: 3, flags: 0, beats: [none; 2], epoch },
            Said::Greeting => Parts { kind: 4, flags: 0, beats: [none; 2], epoch: EpochId::default() },
            Said::Both { beat, answered, epoch, unheard, still } => {
                Parts { kind: 5, flags: flags(unheard, still), beats: [beat, answered], epoch }
            }
        }
    }

    fn of_parts(parts: Parts) -> Option<Said> {
        let Parts { kind, flags, beats: [beat, answered], epoch } = parts;
        let (first, second) = (flags & 1 == 1, flags & 2 == 2);
        if flags > 3 || (second && kind != 5) {
            return None;
        }
        match kind {
            1 => Some(Said::Heartbeat { beat, epoch, unheard: first }),
            2 => Some(Said::Acknowledge { beat, epoch, still: first }),
            3 => Some(Said::Heard { epoch }),
            4 => Some(Said::Greeting),
            5 => Some(Said::Both { beat, answered, epoch, unheard: first, still: second }),
            _ => None,
        }
    }
}

/// What a datagram says, as it stands in it.
struct Parts {
    kind: u8,
    flags: u8,
    beats: [Beat; 2],
    epoch: EpochId,
}

/// The protocol's number, as it stands in a datagram.
fn version() -> [u8; 2] {
    u16::try_from(ft_wire::version()).unwrap_or(u16::MAX).to_le_bytes()
}

fn flags(first: bool, second: bool) -> u8 {
    u8::from(first) | u8::from(second) << 1
}

/// Seals a job's datagrams, and opens them.
#[derive(Clone)]
pub struct Sealer {
    key: [u8; KEY],
    job: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    /// For the agents of this job.
    pub fn new(secret: &Secret, job: &str) -> Sealer {
        Sealer { key: secret.key(PURPOSE, job), job: secret::digest(job) }
    }

    /// The datagram.
    pub fn seal(&self, envelope: Envelope, said: Said) -> [u8; BYTES] {
        let Parts { kind, flags, beats: [beat, answered], epoch } = said.parts();
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&version());
        (bytes[6], bytes[7]) = (kind, flags);
        bytes[8..16].copy_from_slice(&self.job.to_le_bytes());
        bytes[16..20].copy_from_slice(&envelope.from.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&envelope.to.0.to_le_bytes());
        let beats = [beat.incarnation, beat.sequence, epoch.0, answered.incarnation, answered.sequence];
        let words = [envelope.incarnation, envelope.addressed, envelope.number].into_iter().chain(beats);
        for (place, word) in bytes[24..BODY].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let seal = blake3::keyed_hash(&self.key, &bytes[..BODY]);
        bytes[BODY..].copy_from_slice(&seal.as_bytes()[..SEAL]);
        bytes
    }

    /// What a datagram says, if an agent of this job made it.
    ///
    /// # Errors
    /// Why it is nothing.
    pub fn open(&self, bytes: &[u8]) -> Result<(Envelope, Said), Refusal> {
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        if bytes.len() < 6 || bytes[..4] != MAGIC {
            return Err(Refusal::Malformed);
        }
        // What follows may have another form.
        match u16::from_le_bytes([bytes[4], bytes[5]]) {
            theirs if ft_wire::is_neighbour(theirs.into()) => {}
            theirs => return Err(Refusal::Version(theirs.into())),
        }
        if bytes.len() != BYTES {
            return Err(Refusal::Malformed);
        }
        if word(8) != self.job {
            return Err(Refusal::Foreign);
        }
        let mut seal = [0; KEY];
        seal[..SEAL].copy_from_slice(&bytes[BODY..]);
        let mut expected = *blake3::keyed_hash(&self.key, &bytes[..BODY]).as_bytes();
        expected[SEAL..].fill(0);
        // Compared in constant time.
        if blake3::Hash::from_bytes(expected) != blake3::Hash::from_bytes(seal) {
            return Err(Refusal::Forged);
        }
        let envelope = Envelope {
            from: NodeId(half(16)),
            to: NodeId(half(20)),
            incarnation: word(24),
            addressed: word(32),
            number: word(40),
        };
        let beat = Beat { incarnation: word(48), sequence: word(56) };
        let answered = Beat { incarnation: word(72), sequence: word(80) };
        let parts = Parts { kind: bytes[6], flags: bytes[7], beats: [beat, answered], epoch: EpochId(word(64)) };
        Ok((envelope, Said::of_parts(parts).ok_or(Refusal::Malformed)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealer(byte: u8, job: &str) -> Sealer {
        Sealer::new(&Secret::new([byte; KEY]), job)
    }

    fn said() -> impl Strategy<Value = Said> {
        let numbers = (any::<[u64; 4]>(), any::<u64>(), any::<bool>(), any::<bool>(), 0..5);
        numbers.prop_map(|([incarnation, sequence, other, last], epoch, flag, still, kind)| {
            let (beat, epoch) = (Beat { incarnation, sequence }, EpochId(epoch));
            let answered = Beat { incarnation: other, sequence: last };
            match kind {
                0 => Said::Heartbeat { beat, epoch, unheard: flag },
                1 => Said::Acknowledge { beat, epoch, still: flag },
                2 => Said::Heard { epoch },
                3 => Said::Both { beat, answered, epoch, unheard: flag, still },
                _ => Said::Greeting,
            }
        })
    }

    fn envelope() -> impl Strategy<Value = Envelope> {
        any::<(u32, u32, u64, u64, u64)>().prop_map(|(from, to, incarnation, addressed, number)| Envelope {
            from: NodeId(from),
            to: NodeId(to),
            incarnation,
            addressed,
            number,
        })
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened(envelope in envelope(), said in said()) {
            let sealed = sealer(1, "7.0").seal(envelope, said);
            prop_assert_eq!(sealer(1, "7.0").open(&sealed), Ok((envelope, said)));
            prop_assert_eq!(sealer(2, "7.0").open(&sealed), Err(Refusal::Forged));
            prop_assert_eq!(sealer(1, "7.1").open(&sealed), Err(Refusal::Foreign));
        }

        #[test]
        fn a_changed_bit_is_noticed(envelope in envelope(), said in said(), at in 0..BYTES, bit in 0u32..8) {
            let mut sealed = sealer(1, "7.0").seal(envelope, said);
            sealed[at] ^= 1u8 << bit;
            prop_assert!(sealer(1, "7.0").open(&sealed).is_err());
        }

        #[test]
        fn any_bytes_are_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..2 * BYTES), magic in any::<bool>()) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 6 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..6].copy_from_slice(&version());
            }
            prop_assert!(sealer(1, "7.0").open(&bytes).is_err());
        }
    }

    #[test]
    fn another_release_is_known_by_its_number_whatever_its_form() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([9, 0, 1, 2, 3]);
        assert_eq!(sealer(1, "7.0").open(&bytes), Err(Refusal::Version(9)));
        assert_eq!(sealer(1, "7.0").open(&bytes[..5]), Err(Refusal::Malformed));
    }
}
