//! What only the agents of one job know.

use std::fmt;

/// Bytes of a secret and of every key.
pub const KEY: usize = 32;

/// A job's secret: made by whoever starts the job, given to its agents and to nobody else, and never sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; KEY]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// These bytes.
    pub fn new(bytes: [u8; KEY]) -> Secret {
        Secret(bytes)
    }

    /// One that nobody knows.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn random() -> std::io::Result<Secret> {
        Ok(Secret(random()?))
    }

    /// A key for one purpose within one job: of one nobody learns another.
    pub(crate) fn key(&self, purpose: &'static str, job: &str) -> [u8; KEY] {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0).update(job.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

/// A job's name as it travels: so that what another job's agents say is told apart from what a forger does.
pub(crate) fn digest(job: &str) -> u64 {
    let hash = blake3::hash(job.as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 8], &[]));
    u64::from_le_bytes(*first)
}

/// Random bytes of the kernel's.
///
/// # Errors
/// When it has none.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_and_each_job_has_its_own_key_and_none_shows() {
        let secret = Secret::new([7; KEY]);
        let keys = [secret.key("a", "1.0"), secret.key("b", "1.0"), secret.key("a", "1.1")];
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[0] != [7; KEY]);
        assert_ne!(keys[0], Secret::random().unwrap().key("a", "1.0"));
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
