//! How two agents of a job meet: each says who it is and which release it is of, and proves that it knows the job's secret, which
//! itself is never sent.
//!
//! The one that dialled says hello, the other one answers with its own and its proof, the first one proves itself. A proof is a keyed
//! hash of both hellos, in each of which is a number that was never used before: one that was recorded proves nothing later.

use crate::beat::Refusal;
use crate::secret::{self, KEY, Secret};
use ftd_core::NodeId;

/// Bytes of a hello that are the same in every release: what it is, and the protocol's number.
pub const PREAMBLE: usize = 12;
/// Bytes of a hello, the same in neighbouring releases, as are proofs and frames; what is said in those has names or numbers.
pub const HELLO: usize = 56;

const MAGIC: [u8; 8] = *b"ftdpeer\n";
const PURPOSE: &str = "ftd 2026-11-22 connections between the agents of a job";
const NONCE: usize = 16;

/// Who speaks on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The speaker's node.
    pub from: NodeId,
    /// The node that it means to speak with.
    pub to: NodeId,
    /// Its agent's.
    pub incarnation: u64,
    /// Where it listens itself, on the address that it dials from.
    pub port: u16,
    /// Never used before.
    pub nonce: [u8; NONCE],
}

impl Hello {
    /// With a number that was never used.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn new(from: NodeId, to: NodeId, incarnation: u64, port: u16) -> std::io::Result<Hello> {
        Ok(Hello { from, to, incarnation, port, nonce: secret::random()? })
    }

    /// The bytes to send.
    pub fn to_bytes(&self, job: &str) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&ft_wire::version().to_le_bytes());
        bytes[12..20].copy_from_slice(&secret::digest(job).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[36..38].copy_from_slice(&self.port.to_le_bytes());
        bytes[HELLO - NONCE..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Looks at what every release's hello begins with.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], [`Refusal::Version`].
    pub fn check_preamble(bytes: &[u8; PREAMBLE]) -> Result<(), Refusal> {
        if bytes[..8] != MAGIC {
            return Err(Refusal::Malformed);
        }
        match u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) {
            theirs if ft_wire::is_neighbour(theirs) => Ok(()),
            theirs => Err(Refusal::Version(theirs)),
        }
    }

    /// The hello of a speaker of this job.
    ///
    /// # Errors
    /// Why it is none.
    pub fn from_bytes(bytes: &[u8; HELLO], job: &str) -> Result<Hello, Refusal> {
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let (preamble, _) = bytes.split_first_chunk().ok_or(Refusal::Malformed)?;
        Hello::check_preamble(preamble)?;
        if word(12) != secret::digest(job) {
            return Err(Refusal::Foreign);
        }
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&bytes[HELLO - NONCE..]);
        let port = u16::from_le_bytes([bytes[36], bytes[37]]);
        Ok(Hello { from: NodeId(half(20)), to: NodeId(half(24)), incarnation: word(28), port, nonce })
    }
}

/// What follows from two hellos for those who know the secret, and for nobody else.
#[derive(Clone)]
pub struct Proofs {
    /// Of the one that dialled.
    pub dialler: [u8; KEY],
    /// Of the other one.
    pub acceptor: [u8; KEY],
    /// The key that the one that dialled seals its frames with.
    pub from_dialler: [u8; KEY],
    /// The other one's.
    pub from_acceptor: [u8; KEY],
}

impl std::fmt::Debug for Proofs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proofs")
    }
}

impl Proofs {
    /// Of the hello of the one that dialled, and of the other one's.
    pub fn of(secret: &Secret, job: &str, dialler: &[u8; HELLO], acceptor: &[u8; HELLO]) -> Proofs {
        let key = secret.key(PURPOSE, job);
        let of = |what: u8| {
            let mut hasher = blake3::Hasher::new_keyed(&key);
            hasher.update(&[what]).update(dialler).update(acceptor);
            *hasher.finalize().as_bytes()
        };
        Proofs { dialler: of(1), acceptor: of(2), from_dialler: of(3), from_acceptor: of(4) }
    }
}

/// Whether both are the same, in a time that does not tell where they differ.
pub fn same(one: [u8; KEY], other: [u8; KEY]) -> bool {
    blake3::Hash::from_bytes(one) == blake3::Hash::from_bytes(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(from: u32, to: u32) -> Hello {
        Hello::new(NodeId(from), NodeId(to), 5, 4711).unwrap()
    }

    #[test]
    fn no_two_meetings_have_the_same_proofs_and_no_two_proofs_of_one_are_the_same() {
        let secret = Secret::new([7; KEY]);
        let (one, two) = (hello(1, 2).to_bytes("1.0"), hello(2, 1).to_bytes("1.0"));
        let proofs = Proofs::of(&secret, "1.0", &one, &two);
        let others = [
            Proofs::of(&secret, "1.0", &two, &one),
            Proofs::of(&secret, "1.1", &one, &two),
            Proofs::of(&Secret::new([8; KEY]), "1.0", &one, &two),
            Proofs::of(&secret, "1.0", &hello(1, 2).to_bytes("1.0"), &two),
            Proofs::of(&secret, "1.0", &one, &hello(2, 1).to_bytes("1.0")),
        ];
        let all = [&proofs].into_iter().chain(&others);
        let mut all: Vec<_> = all.flat_map(|p| [p.dialler, p.acceptor, p.from_dialler, p.from_acceptor]).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn another_release_and_another_job_are_named() {
        let mut bytes = hello(1, 2).to_bytes("1.0");
        assert_eq!(Hello::from_bytes(&bytes, "1.1"), Err(Refusal::Foreign));
        bytes[8] += 1;
        assert!(Hello::from_bytes(&bytes, "1.0").is_ok(), "a neighbour");
        bytes[8] += 1;
        assert_eq!(Hello::from_bytes(&bytes, "1.0"), Err(Refusal::Version(ft_wire::VERSION + 2)));
        bytes[0] = b'G';
        assert_eq!(Hello::from_bytes(&bytes, "1.0"), Err(Refusal::Malformed));
    }

    proptest! {
        #[test]
        fn a_hello_comes_back(from: u32, to: u32, incarnation: u64, port: u16, nonce: [u8; NONCE]) {
            let hello = Hello { from: NodeId(from), to: NodeId(to), incarnation, port, nonce };
            prop_assert_eq!(Hello::from_bytes(&hello.to_bytes("1.0"), "1.0"), Ok(hello));
        }
    }
}
