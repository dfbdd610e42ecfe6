//! ftd-core's messages as bytes (protobuf), and back. Nothing is allocated for a length that was only claimed: runs stay runs, and
//! what a message holds has come with it.

mod held;
mod parts;
mod word;

use crate::parcel::{Noted, Piece, Sending};

use ft_proto::v1;
use ft_store::codec as record;
use ftd_core::fence::Beat;
use ftd_core::tree::Direction;
use ftd_core::{EpochId, Micros, NodeId, PeerMessage, Revision, SlotId};
use prost::Message;
use std::sync::Arc;
use v1::peer_message::Says;

/// Bytes of the longest message. A job of 10 000 nodes has a record of 100 KB and words of some hundred.
pub const MOST_BYTES: usize = 16 << 20;

/// Why bytes are no message, or a message has no bytes.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// No protobuf.
    #[error("the message is damaged: {0}")]
    Damaged(#[from] prost::DecodeError),
    /// The record in it cannot be read.
    #[error(transparent)]
    Record(#[from] record::CodecError),
    /// A field that must be there is not, or says what cannot be.
    #[error("the message has no valid {0}")]
    Missing(&'static str),
    /// Longer than any message of a job.
    #[error("the message has {bytes} bytes, and the longest that is sent has {MOST_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The message as bytes.
///
/// # Errors
/// [`CodecError::TooLong`]; [`CodecError::Missing`] for a detour within a detour.
pub fn encode(message: &PeerMessage) -> Result<Vec<u8>, CodecError> {
    let message = message_out(message, true)?;
    match message.encoded_len() {
        bytes if bytes > MOST_BYTES => Err(CodecError::TooLong { bytes }),
        _ => Ok(message.encode_to_vec()),
    }
}

/// The message from bytes.
///
/// # Errors
/// When they are none of this release's.
pub fn decode(bytes: &[u8]) -> Result<PeerMessage, CodecError> {
    message_in(read(bytes)?, true)
}

/// What comes over a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A message of ftd-core's.
    Message(PeerMessage),
    /// Of a parcel.
    Parcel(Sending),
    /// The same, of which somebody else is the sender or the receiver.
    Relayed {
        /// Who says it.
        origin: NodeId,
        /// To whom.
        to: NodeId,
        /// What.
        sending: Sending,
    },
}

/// What bytes that came over a connection say.
///
/// # Errors
/// When they are no message of this release's.
pub fn heard(bytes: &[u8]) -> Result<Heard, CodecError> {
    let mut message = read(bytes)?;
    if let Some(sending) = sending_in(&mut message)? {
        return Ok(Heard::Parcel(sending));
    }
    if let Some(Says::Relay(relay)) = &mut message.says
        && let Some(inner) = &mut relay.message
        && let Some(sending) = sending_in(inner)?
    {
        return Ok(Heard::Relayed { origin: NodeId(relay.origin), to: NodeId(relay.to), sending });
    }
    Ok(Heard::Message(message_in(message, true)?))
}

/// What the message says of a parcel, if it is of one. That is taken out of it.
fn sending_in(message: &mut v1::PeerMessage) -> Result<Option<Sending>, CodecError> {
    Ok(match &mut message.says {
        Some(Says::Piece(v1::Piece { incarnation, world, number, piece, pieces, data })) => {
            let (incarnation, world, number, piece, pieces) = (*incarnation, *world, *number, *piece, *pieces);
            if piece >= pieces {
                return Err(CodecError::Missing("place in its parcel"));
            }
            Some(Sending::Piece(Piece { incarnation, world, number, piece, pieces, data: std::mem::take(data).into() }))
        }
        Some(Says::PieceNoted(v1::PieceNoted { incarnation, world, number, piece })) => {
            let (incarnation, world, number, piece) = (*incarnation, *world, *number, *piece);
            Some(Sending::Noted(Noted { incarnation, world, number, piece }))
        }
        _ => None,
    })
}

fn read(bytes: &[u8]) -> Result<v1::PeerMessage, CodecError> {
    if bytes.len() > MOST_BYTES {
        return Err(CodecError::TooLong { bytes: bytes.len() });
    }
    Ok(v1::PeerMessage::decode(bytes)?)
}

/// What is sent of a parcel, as bytes.
pub fn encode_sending(sending: &Sending) -> Vec<u8> {
    sending_out(sending).encode_to_vec()
}

/// The same, for who passes it on.
pub fn encode_relayed(origin: NodeId, to: NodeId, sending: &Sending) -> Vec<u8> {
    let message = Some(Box::new(sending_out(sending)));
    let relay = v1::Relay { origin: origin.0, to: to.0, message };
    v1::PeerMessage { says: Some(Says::Relay(Box::new(relay))) }.encode_to_vec()
}

fn sending_out(sending: &Sending) -> v1::PeerMessage {
    let says = match sending {
        Sending::Piece(Piece { incarnation, world, number, piece, pieces, data }) => {
            let (incarnation, world, number, piece, pieces) = (*incarnation, *world, *number, *piece, *pieces);
            Says::Piece(v1::Piece { incarnation, world, number, piece, pieces, data: data.to_vec() })
        }
        Sending::Noted(Noted { incarnation, world, number, piece }) => {
            let (incarnation, world, number, piece) = (*incarnation, *world, *number, *piece);
            Says::PieceNoted(v1::PieceNoted { incarnation, world, number, piece })
        }
    };
    v1::PeerMessage { says: Some(says) }
}

fn beat_out(beat: Beat) -> Option<v1::Beat> {
    Some(v1::Beat { incarnation: beat.incarnation, sequence: beat.sequence })
}

fn beat_in(beat: Option<v1::Beat>) -> Result<Beat, CodecError> {
    let v1::Beat { incarnation, sequence } = beat.ok_or(CodecError::Missing("beat"))?;
    Ok(Beat { incarnation, sequence })
}

/// A table of all messages.
fn message_out(message: &PeerMessage, relays: bool) -> Result<v1::PeerMessage, CodecError> {
    let says = match message {
        PeerMessage::Heartbeat { beat, epoch, unheard } => {
            Says::Heartbeat(v1::Heartbeat { beat: beat_out(*beat), epoch: epoch.0, unheard: *unheard })
        }
        PeerMessage::Acknowledge { beat, epoch, still } => {
            Says::Acknowledge(v1::Acknowledge { beat: beat_out(*beat), epoch: epoch.0, still: *still })
        }
        PeerMessage::Heard { epoch } => Says::Heard(v1::Heard { epoch: epoch.0 }),
        PeerMessage::AskForRecord { epoch } => Says::AskForRecord(v1::AskForRecord { epoch: epoch.0 }),
        PeerMessage::Record { revision, record } => {
            Says::Record(v1::RecordAt { revision: revision.0, record: record::encode_record(record) })
        }
        PeerMessage::Accuse { epoch, revision, accused } => {
            let accused = accused.iter().map(|node| node.0).collect();
            Says::Accuse(v1::Accuse { epoch: epoch.0, revision: revision.0, accused })
        }
        PeerMessage::Up { epoch, number, word } => {
            Says::Up(v1::Up { epoch: epoch.0, number: *number, word: Some(word::word_out(word)) })
        }
        PeerMessage::Down { epoch, number, decree } => {
            Says::Down(v1::Down { epoch: epoch.0, number: *number, decree: Some(word::decree_out(decree)) })
        }
        PeerMessage::Received { epoch, direction, number } => {
            let direction = direction_out(*direction) as i32;
            Says::Received(v1::Received { epoch: epoch.0, direction, number: *number })
        }
        PeerMessage::Offer { epoch, copies } => {
            Says::Offer(v1::Offer { epoch: epoch.0, copies: held::copies_out(copies) })
        }
        PeerMessage::OfferNoted { epoch, copies } => {
            Says::OfferNoted(v1::OfferNoted { epoch: epoch.0, copies: *copies })
        }
        PeerMessage::Slots { nodes, slots } => Says::Slots(parts::gathered_out(nodes, slots)),
        PeerMessage::StoreMissed { epoch, ago } => Says::StoreMissed(v1::StoreMissed { epoch: epoch.0, ago: ago.0 }),
        PeerMessage::SlotsNoted { nodes } => Says::SlotsNoted(v1::SlotsNoted { nodes: *nodes }),
        PeerMessage::Join { epoch, slots } => {
            Says::Join(v1::Join { epoch: epoch.0, slots: slots.iter().map(|slot| slot.0).collect() })
        }
        PeerMessage::Relay { .. } if !relays => return Err(CodecError::Missing("end of its detours")),
        PeerMessage::Relay { origin, to, message } => {
            let message = Some(Box::new(message_out(message, false)?));
            Says::Relay(Box::new(v1::Relay { origin: origin.0, to: to.0, message }))
        }
    };
    Ok(v1::PeerMessage { says: Some(says) })
}

/// A table of all messages.
fn message_in(message: v1::PeerMessage, relays: bool) -> Result<PeerMessage, CodecError> {
    Ok(match message.says.ok_or(CodecError::Missing("kind"))? {
        Says::Heartbeat(v1::Heartbeat { beat, epoch, unheard }) => {
            PeerMessage::Heartbeat { beat: beat_in(beat)?, epoch: EpochId(epoch), unheard }
        }
        Says::Acknowledge(v1::Acknowledge { beat, epoch, still }) => {
            PeerMessage::Acknowledge { beat: beat_in(beat)?, epoch: EpochId(epoch), still }
        }
        Says::Heard(v1::Heard { epoch }) => PeerMessage::Heard { epoch: EpochId(epoch) },
        Says::AskForRecord(v1::AskForRecord { epoch }) => PeerMessage::AskForRecord { epoch: EpochId(epoch) },
        Says::Record(v1::RecordAt { revision, record }) => {
            let record = Arc::new(record::decode_record(&record)?);
            PeerMessage::Record { revision: Revision(revision), record }
        }
        Says::Accuse(v1::Accuse { epoch, revision, accused }) => {
            let accused = accused.into_iter().map(NodeId).collect();
            PeerMessage::Accuse { epoch: EpochId(epoch), revision: Revision(revision), accused }
        }
        Says::Up(v1::Up { epoch, number, word }) => {
            let word = Box::new(word::word_in(word.ok_or(CodecError::Missing("word"))?)?);
            PeerMessage::Up { epoch: EpochId(epoch), number, word }
        }
        Says::Down(v1::Down { epoch, number, decree }) => {
            let decree = Box::new(word::decree_in(decree.ok_or(CodecError::Missing("decree"))?)?);
            PeerMessage::Down { epoch: EpochId(epoch), number, decree }
        }
        Says::Received(received) => PeerMessage::Received {
            epoch: EpochId(received.epoch),
            direction: direction_in(received.direction())?,
            number: received.number,
        },
        Says::Offer(v1::Offer { epoch, copies }) => {
            PeerMessage::Offer { epoch: EpochId(epoch), copies: held::copies_in(copies)? }
        }
        Says::OfferNoted(v1::OfferNoted { epoch, copies }) => PeerMessage::OfferNoted { epoch: EpochId(epoch), copies },
        Says::Slots(gathered) => {
            let (nodes, slots) = parts::gathered_in(&gathered)?;
            PeerMessage::Slots { nodes, slots }
        }
        Says::StoreMissed(v1::StoreMissed { epoch, ago }) => {
            PeerMessage::StoreMissed { epoch: EpochId(epoch), ago: Micros(ago) }
        }
        Says::SlotsNoted(v1::SlotsNoted { nodes }) => PeerMessage::SlotsNoted { nodes },
        Says::Join(v1::Join { epoch, slots }) => {
            PeerMessage::Join { epoch: EpochId(epoch), slots: slots.into_iter().map(SlotId).collect() }
        }
        Says::Piece(_) | Says::PieceNoted(_) => return Err(CodecError::Missing("message of its own")),
        Says::Relay(_) if !relays => return Err(CodecError::Missing("end of its detours")),
        Says::Relay(relay) => {
            let inner = relay.message.ok_or(CodecError::Missing("detoured message"))?;
            let message = Box::new(message_in(*inner, false)?);
            PeerMessage::Relay { origin: NodeId(relay.origin), to: NodeId(relay.to), message }
        }
    })
}

fn direction_out(direction: Direction) -> v1::Direction {
    match direction {
        Direction::Up => v1::Direction::Up,
        Direction::Down => v1::Direction::Down,
    }
}

fn direction_in(direction: v1::Direction) -> Result<Direction, CodecError> {
    match direction {
        v1::Direction::Up => Ok(Direction::Up),
        v1::Direction::Down => Ok(Direction::Down),
        v1::Direction::Unspecified => Err(CodecError::Missing("direction")),
    }
}
