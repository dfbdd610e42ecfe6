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

/// Version of the datagrams' form.
pub const VERSION: u16 = 1;
/// Bytes of every datagram.
pub const BYTES: usize = BODY + SEAL;

const BODY: usize = 72;
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

    /// The same in ftd-core's words; nothing for what concerns only the sockets.
    pub fn message(self) -> Option<PeerMessage> {
        match self {
            Said::Heartbeat { beat, epoch, unheard } => Some(PeerMessage::Heartbeat { beat, epoch, unheard }),
            Said::Acknowledge { beat, epoch, still } => Some(PeerMessage::Acknowledge { beat, epoch, still }),
            Said::Heard { epoch } => Some(PeerMessage::Heard { epoch }),
            Said::Greeting => None,
        }
    }

    fn parts(self) -> (u8, bool, Beat, EpochId) {
        match self {
            Said::Heartbeat { beat, epoch, unheard } => (1, unheard, beat, epoch),
            Said::Acknowledge { beat, epoch, still } => (2, still, beat, epoch),
            Said::Heard { epoch } => (3, false, Beat::default(), epoch),
            Said::Greeting => (4, false, Beat::default(), EpochId::default()),
        }
    }

    fn of_parts(kind: u8, flag: u8, beat: Beat, epoch: EpochId) -> Option<Said> {
        let flag = match flag {
            0 => false,
            1 => true,
            _ => return None,
        };
        match kind {
            1 => Some(Said::Heartbeat { beat, epoch, unheard: flag }),
            2 => Some(Said::Acknowledge { beat, epoch, still: flag }),
            3 => Some(Said::Heard { epoch }),
            4 => Some(Said::Greeting),
            _ => None,
        }
    }
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
        let (kind, flag, beat, epoch) = said.parts();
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        (bytes[6], bytes[7]) = (kind, u8::from(flag));
        bytes[8..16].copy_from_slice(&self.job.to_le_bytes());
        bytes[16..20].copy_from_slice(&envelope.from.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&envelope.to.0.to_le_bytes());
        let words =
            [envelope.incarnation, envelope.addressed, envelope.number, beat.incarnation, beat.sequence, epoch.0];
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
            VERSION => {}
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
        let said = Said::of_parts(bytes[6], bytes[7], beat, EpochId(word(64))).ok_or(Refusal::Malformed)?;
        Ok((envelope, said))
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
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>(), 0..4);
        numbers.prop_map(|(incarnation, sequence, epoch, flag, kind)| {
            let (beat, epoch) = (Beat { incarnation, sequence }, EpochId(epoch));
            match kind {
                0 => Said::Heartbeat { beat, epoch, unheard: flag },
                1 => Said::Acknowledge { beat, epoch, still: flag },
                2 => Said::Heard { epoch },
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
                bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
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
