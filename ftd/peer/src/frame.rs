//! Frames: the messages of a connection, each sealed. A frame that was changed, left out, doubled or put in by somebody who does not
//! know the connection's keys ends the connection.

use crate::beat::Refusal;
use crate::codec::MOST_BYTES;
use crate::secret::KEY;

/// Bytes before a frame's body: its length, and its seal.
pub const HEADER: usize = 4 + SEAL;

const SEAL: usize = 16;

/// One direction of a connection.
#[derive(Clone)]
pub struct Lane {
    key: [u8; KEY],
    frames: u64,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane of {} frames", self.frames)
    }
}

impl Lane {
    /// With this key; no frame went through it.
    pub fn new(key: [u8; KEY]) -> Lane {
        Lane { key, frames: 0 }
    }

    /// What stands before the next frame's body. The body is no longer than [`MOST_BYTES`].
    pub fn header(&mut self, body: &[u8]) -> [u8; HEADER] {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&length);
        header[4..].copy_from_slice(&self.seal(length, body));
        header
    }

    /// The length of the body that this header announces.
    ///
    /// # Errors
    /// [`Refusal::Oversized`].
    pub fn announced(header: &[u8; HEADER]) -> Result<usize, Refusal> {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if length > MOST_BYTES { Err(Refusal::Oversized) } else { Ok(length) }
    }

    /// Whether this is the next frame.
    ///
    /// # Errors
    /// [`Refusal::Forged`].
    pub fn check(&mut self, header: &[u8; HEADER], body: &[u8]) -> Result<(), Refusal> {
        let expected = self.seal([header[0], header[1], header[2], header[3]], body);
        let (mut one, mut other) = ([0; KEY], [0; KEY]);
        one[..SEAL].copy_from_slice(&expected);
        other[..SEAL].copy_from_slice(&header[4..]);
        if crate::hello::same(one, other) { Ok(()) } else { Err(Refusal::Forged) }
    }

    fn seal(&mut self, length: [u8; 4], body: &[u8]) -> [u8; SEAL] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.frames.to_le_bytes()).update(&length).update(body);
        self.frames += 1;
        let mut seal = [0; SEAL];
        seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL]);
        seal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_counts_once_in_its_place_and_in_its_direction() {
        let mut out = Lane::new([1; KEY]);
        let frames: Vec<_> = [&b"one"[..], b"two", b"three"].map(|body| (out.header(body), body)).to_vec();
        let fresh = || Lane::new([1; KEY]);
        let mut into = fresh();
        assert!(frames.iter().all(|(header, body)| into.check(header, body).is_ok()));
        assert_eq!(into.check(&frames[2].0, frames[2].1), Err(Refusal::Forged), "a second time");
        assert_eq!(fresh().check(&frames[1].0, frames[1].1), Err(Refusal::Forged), "one was left out");
        assert_eq!(fresh().check(&frames[0].0, b"won"), Err(Refusal::Forged), "changed");
        assert_eq!(Lane::new([2; KEY]).check(&frames[0].0, frames[0].1), Err(Refusal::Forged), "another key");
    }

    #[test]
    fn what_is_announced_is_bounded() {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(MOST_BYTES as u32).to_le_bytes());
        assert_eq!(Lane::announced(&header), Ok(MOST_BYTES));
        header[..4].copy_from_slice(&(MOST_BYTES as u32 + 1).to_le_bytes());
        assert_eq!(Lane::announced(&header), Err(Refusal::Oversized));
    }
}
