//! Framing and the version exchange.

use serde::{Serialize, de::DeserializeOwned};

/// Version of all messages of this crate. Any change of a message increases it.
pub const VERSION: u32 = 6;
/// Bytes before a frame's body.
pub const FRAME_HEADER: usize = 8;
/// Longest accepted body in bytes; a longer one is a broken or hostile peer.
pub const MAX_BODY: usize = 64 << 20;
/// Bytes of an encoded [`Preamble`].
pub const PREAMBLE_LEN: usize = 16;
const MAGIC: [u8; 8] = *b"ftdwire\n";

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
    /// The sender's [`VERSION`].
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
    #[error(
        "the peer ({role:?}) speaks protocol version {theirs}, this side speaks {ours}: install the same ftd release everywhere"
    )]
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
        Preamble { version: VERSION, role }
    }

    /// The bytes to send.
    pub fn to_bytes(self) -> [u8; PREAMBLE_LEN] {
        let mut bytes = [0; PREAMBLE_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..].copy_from_slice(&(self.role as u32).to_le_bytes());
        bytes
    }

    /// Reads a preamble and checks its version against ours.
    ///
    /// # Errors
    /// [`FrameError::NotFtd`] for foreign bytes, [`FrameError::Version`] for another release.
    pub fn from_bytes(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self, FrameError> {
        let Preamble { version, role } = Preamble::of_any_release(bytes)?;
        if version != VERSION {
            return Err(FrameError::Version { theirs: version, ours: VERSION, role });
        }
        Ok(Preamble { version, role })
    }

    /// Reads a preamble, whatever release it is of: where what follows has a number of its own.
    ///
    /// # Errors
    /// [`FrameError::NotFtd`] for foreign bytes.
    pub fn of_any_release(bytes: &[u8; PREAMBLE_LEN]) -> Result<Self, FrameError> {
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
    let mut frame = postcard::to_extend(message, frame).map_err(|e| FrameError::Malformed(e.to_string()))?;
    let body = frame.len() - FRAME_HEADER;
    if body > MAX_BODY {
        return Err(FrameError::TooLong { bytes: body, most: MAX_BODY });
    }
    frame[..4].copy_from_slice(&(body as u32).to_le_bytes());
    Ok(frame)
}

/// Decodes a frame's body.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    postcard::from_bytes(body).map_err(|e| FrameError::Malformed(e.to_string()))
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
        let mut bytes = Preamble::ours(Role::Client).to_bytes();
        assert_eq!(Preamble::from_bytes(&bytes).unwrap().role, Role::Client);
        bytes[8] += 1;
        assert!(matches!(Preamble::from_bytes(&bytes), Err(FrameError::Version { .. })));
        assert_eq!(Preamble::of_any_release(&bytes), Ok(Preamble { version: VERSION + 1, role: Role::Client }));
        assert_eq!(Preamble::from_bytes(b"GET / HTTP/1.1\r\n"), Err(FrameError::NotFtd));
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
        buffer.push(&encode(&vec![0u8; 100], 0).unwrap());
        assert_eq!(buffer.next_frame(), Err(FrameError::TooLong { bytes: 101, most: 100 }));
    }
}
