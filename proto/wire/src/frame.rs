//! Framing and the version exchange.

use rmp_serde::{Serializer, config::BytesMode};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::OnceLock;

/// The protocol's number, which is that of all messages of this crate: a release that changes one has the next (docs/decisions/protocol-numbers.md).
/// What is asked at run time is [`version`].
pub const VERSION: u32 = 7;
/// The oldest that any release from this one on works together with: the first whose messages have names.
pub const OLDEST: u32 = 7;
/// The end of a sentence about two numbers between which nothing works.
pub const APART: &str = "and only neighbouring numbers work together: install the same ftd release everywhere";
/// Stands before the digits in [`SPEAKS`].
const BEFORE: &[u8] = b"ftd speaks protocol ";
const DIGITS: usize = 8;
/// In the file of each program and library that speaks: who changes the number there has one of another release, for tests.
#[used]
static SPEAKS: [u8; BEFORE.len() + DIGITS] = speaks();
/// Bytes before a frame's body.
pub const FRAME_HEADER: usize = 8;
/// Longest accepted body in bytes; a longer one is a broken or hostile peer.
pub const MAX_BODY: usize = 64 << 20;
/// Bytes of an encoded [`Preamble`].
pub const PREAMBLE_LEN: usize = 16;
const MAGIC: [u8; 8] = *b"ftdwire\n";

/// `ftd speaks protocol 00000007`: what programs of this release have in their files.
pub const fn speaks() -> [u8; BEFORE.len() + DIGITS] {
    let (mut text, mut at, mut left) = ([0; BEFORE.len() + DIGITS], 0, VERSION);
    while at < BEFORE.len() {
        text[at] = BEFORE[at];
        at += 1;
    }
    at = text.len();
    while at > BEFORE.len() {
        at -= 1;
        text[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    text
}

/// The number in such a text.
pub fn spoken(text: &[u8]) -> Option<u32> {
    let at = text.windows(BEFORE.len()).position(|words| words == BEFORE)? + BEFORE.len();
    std::str::from_utf8(text.get(at..at + DIGITS)?).ok()?.parse().ok()
}

/// The number that this program speaks: [`VERSION`], as it stands in its file.
pub fn version() -> u32 {
    // Nothing is concluded from what it was when it was built.
    spoken(std::hint::black_box(&SPEAKS)).unwrap_or(VERSION)
}

/// The release of this program, as people are shown it: its version and the number that it speaks.
pub fn release() -> &'static str {
    static SHOWN: OnceLock<String> = OnceLock::new();
    SHOWN.get_or_init(|| format!("{} (protocol {})", env!("CARGO_PKG_VERSION"), version()))
}

/// Whether this program works together with those of that number: its own, the one before and the one behind.
pub fn is_neighbour(theirs: u32) -> bool {
    let ours = version();
    theirs >= OLDEST && (ours.saturating_sub(1)..=ours.saturating_add(1)).contains(&theirs)
}

/// A sentence on two of these nodes, each with the number that is spoken there, that are no neighbours, if there are such.
pub fn strangers<'a>(nodes: impl IntoIterator<Item = (&'a str, u32)> + Clone) -> Option<String> {
    let (older, oldest) = nodes.clone().into_iter().min_by_key(|(_, number)| *number)?;
    let (newer, newest) = nodes.into_iter().max_by_key(|(_, number)| *number)?;
    let sentence = || format!("ftd speaks protocol {oldest} on node {older}, and {newest} on node {newer}, {APART}");
    (newest - oldest > 1).then(sentence)
}

/// Who speaks on a connection to the agent's socket or to the daemon's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// The agent itself, answering.
    Agent = 0,
    /// A slot's shepherd.
    Shepherd = 1,
    /// The preload of a rank.
    Rank = 2,
    /// The client library of a rank.
    Client = 3,
    /// The launcher (`ftrun`).
    Launcher = 4,
    /// The process that hosts libpmix.
    Pmix = 5,
    /// The node's daemon (`ftd`), answering.
    Daemon = 6,
    /// Who asks the node's daemon, or a job's agent.
    Asker = 7,
    /// The process that hosts libfabric.
    Ship = 8,
}

/// First bytes in each direction of every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// The sender's [`version`].
    pub version: u32,
    /// The sender's role.
    pub role: Role,
}

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// The peer is no part of ftd.
    #[error("the peer does not speak ftd's protocol")]
    NotFtd,
    /// The peer is from another release.
    #[error("the peer ({role:?}) speaks protocol version {theirs}, this side speaks {ours}, {APART}")]
    Version {
        /// Version of the peer.
        theirs: u32,
        /// Version of this side.
        ours: u32,
        /// What the peer says it is.
        role: Role,
    },
    /// A frame announces more than the receiver takes.
    #[error("a frame of {bytes} bytes is longer than the limit of {most}")]
    TooLong {
        /// Bytes of its body.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// A body that is not the expected message.
    #[error("a malformed message: {0}")]
    Malformed(String),
}

impl Preamble {
    /// This release's preamble for `role`.
    pub fn ours(role: Role) -> Self {
        Preamble { version: version(), role }
    }

    /// The bytes to send.
    pub fn to_bytes(self) -> [u8; PREAMBLE_LEN] {
        let mut bytes = [0; PREAMBLE_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..].copy_from_slice(&(self.role as u32).to_le_bytes());
        bytes
    }

    /// Reads a preamble and looks whether its sender and this side understand each other.
    ///
    /// # Errors
    /// [`FrameError::NotFtd`] for foreign bytes, [`FrameError::Version`] for a release that is no neighbour.
    pub fn from_bytes(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self, FrameError> {
        let Preamble { version, role } = Preamble::read(bytes)?;
        match is_neighbour(version) {
            true => Ok(Preamble { version, role }),
            false => Err(FrameError::Version { theirs: version, ours: self::version(), role }),
        }
    }

    /// Reads a preamble of whatever release whose messages have names: where what follows has a number of its own.
    ///
    /// # Errors
    /// [`FrameError::NotFtd`] for foreign bytes, [`FrameError::Version`] for a release before [`OLDEST`].
    pub fn of_any_release(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self, FrameError> {
        let preamble = Preamble::read(bytes)?;
        match preamble {
            Preamble { version, role } if version < OLDEST => {
                Err(FrameError::Version { theirs: version, ours: self::version(), role })
            }
            preamble => Ok(preamble),
        }
    }

    fn read(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self, FrameError> {
        if bytes[..8] != MAGIC {
            return Err(FrameError::NotFtd);
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let role = match word(12) {
            0 => Role::Agent,
            1 => Role::Shepherd,
            2 => Role::Rank,
            3 => Role::Client,
            4 => Role::Launcher,
            5 => Role::Pmix,
            6 => Role::Daemon,
            7 => Role::Asker,
            8 => Role::Ship,
            _ => return Err(FrameError::NotFtd),
        };
        Ok(Preamble { version: word(8), role })
    }
}

/// Encodes one frame with `fds` descriptors announced.
pub fn encode<M: Serialize>(message: &M, fds: u8) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; FRAME_HEADER];
    frame[4] = fds;
    // With names, so that a neighbouring release passes over what it does not know; bytes as they are.
    let mut into = Serializer::new(frame).with_struct_map().with_bytes(BytesMode::ForceIterables);
    message.serialize(&mut into).map_err(|e| FrameError::Malformed(e.to_string()))?;
    let mut frame = into.into_inner();
    let body = frame.len() - FRAME_HEADER;
    if body > MAX_BODY {
        return Err(FrameError::TooLong { bytes: body, most: MAX_BODY });
    }
    frame[..4].copy_from_slice(&(body as u32).to_le_bytes());
    Ok(frame)
}

/// Decodes a frame's body.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    rmp_serde::from_slice(body).map_err(|e| FrameError::Malformed(e.to_string()))
}

/// Collects received bytes and cuts them into frames.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
    most: usize,
}

impl Default for FrameBuffer {
    fn default() -> Self {
        FrameBuffer { bytes: Vec::new(), start: 0, most: MAX_BODY }
    }
}

impl FrameBuffer {
    /// From now on takes bodies of at most so many bytes.
    pub fn limit(&mut self, most: usize) {
        self.most = most.min(MAX_BODY);
    }

    /// Adds bytes as they came from the socket.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one: its body and how many descriptors came with it.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]; the connection is then of no more use.
    pub fn next_frame(&mut self) -> Result<Option<(Vec<u8>, u8)>, FrameError> {
        let pending = &self.bytes[self.start..];
        if pending.len() < FRAME_HEADER {
            return Ok(None);
        }
        let body = u32::from_le_bytes([pending[0], pending[1], pending[2], pending[3]]) as usize;
        if body > self.most {
            return Err(FrameError::TooLong { bytes: body, most: self.most });
        }
        if pending.len() < FRAME_HEADER + body {
            return Ok(None);
        }
        let frame = (pending[FRAME_HEADER..FRAME_HEADER + body].to_vec(), pending[4]);
        self.start += FRAME_HEADER + body;
        if self.start > 1 << 16 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let first = encode(&(7u32, "seven".to_string()), 2).unwrap();
        let second = encode(&(8u32, "eight".to_string()), 0).unwrap();
        let stream: Vec<u8> = first.iter().chain(&second).copied().collect();
        for cut in 0..=stream.len() {
            let mut buffer = FrameBuffer::default();
            let mut frames = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                buffer.push(part);
                while let Some((body, fds)) = buffer.next_frame().unwrap() {
                    frames.push((decode::<(u32, String)>(&body).unwrap(), fds));
                }
            }
            assert_eq!(frames, vec![((7, "seven".to_string()), 2), ((8, "eight".to_string()), 0)]);
        }
    }

    #[test]
    fn other_versions_and_strangers_are_told_apart() {
        let role = Role::Client;
        assert_eq!(version(), VERSION);
        for theirs in VERSION - 2..=VERSION + 2 {
            let bytes = Preamble { version: theirs, role }.to_bytes();
            let (read, apart) =
                (Preamble { version: theirs, role }, FrameError::Version { theirs, ours: VERSION, role });
            let is_neighbour = theirs >= 7 && VERSION.abs_diff(theirs) <= 1;
            let expected = if is_neighbour { Ok(read) } else { Err(apart) };
            assert_eq!(Preamble::from_bytes(&bytes), expected, "{theirs}");
            assert_eq!(Preamble::of_any_release(&bytes).is_ok(), theirs >= OLDEST, "{theirs}");
        }
        assert_eq!(Preamble::from_bytes(b"GET / HTTP/1.1\r\n"), Err(FrameError::NotFtd));
    }

    #[test]
    fn a_program_says_in_its_file_what_it_speaks() {
        assert_eq!(std::str::from_utf8(&speaks()).unwrap(), format!("ftd speaks protocol {VERSION:08}"));
        assert_eq!(spoken(b"x ftd speaks protocol 00000010 y"), Some(10));
        for none in [&b""[..], b"ftd speaks protocol 7", b"ftd speaks protocol 0000000x"] {
            assert_eq!(spoken(none), None);
        }
    }

    #[test]
    fn nodes_of_three_releases_are_no_neighbours_though_each_is_one_of_the_launchers() {
        assert_eq!(strangers([]), None);
        assert_eq!(strangers([("a", 8), ("b", 7), ("c", 8)]), None);
        let said = strangers([("a", 8), ("b", 7), ("c", 9)]).unwrap();
        assert!(said.starts_with("ftd speaks protocol 7 on node b, and 9 on node c, and only neighbouring"), "{said}");
    }

    #[test]
    fn an_absurd_length_is_refused_before_memory_is_taken() {
        let mut buffer = FrameBuffer::default();
        buffer.push(&[0xff; 8]);
        assert!(matches!(buffer.next_frame(), Err(FrameError::TooLong { .. })));
        let mut buffer = FrameBuffer::default();
        buffer.limit(100);
        buffer.push(&encode(&vec![0u8; 98], 0).unwrap());
        assert!(buffer.next_frame().unwrap().is_some());
        buffer.push(&encode(&vec![0u8; 99], 0).unwrap());
        assert_eq!(buffer.next_frame(), Err(FrameError::TooLong { bytes: 101, most: 100 }));
    }
}
