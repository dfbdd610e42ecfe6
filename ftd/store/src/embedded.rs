//! The embedded store: one machine, one agent at a time, no server.
//!
//! The key lives in a file (a memfd that the launcher holds), so that it outlives the agent's process. Two halves of the
//! file take turns: a write goes to the half that is not current, so that a writer that dies at any instruction leaves the
//! other half valid.

use crate::{Expected, Store, StoreError, Versioned};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use twox_hash::XxHash3_64;

const MAGIC: u64 = 0x3165_726f_7473_7466; // "ftstore1"
const HEADER: usize = 32;
/// Bytes per half: the longest value, header included.
const HALF: u64 = 4 << 20;

/// A store in a file of this machine.
#[derive(Debug)]
pub struct Embedded {
    file: File,
    /// The record when no file may be as large as it (`ulimit -f`): it ends with the agent.
    memory: Option<Vec<u8>>,
}

impl Embedded {
    /// Opens the store in `file`, which is empty at the job's first agent.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the file cannot be sized.
    pub fn open(file: File) -> Result<Self, StoreError> {
        let metadata = file.metadata()?;
        if metadata.len() >= 2 * HALF {
            return Ok(Embedded { file, memory: None });
        }
        match file.set_len(2 * HALF) {
            Ok(()) => Ok(Embedded { file, memory: None }),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                // All that can be left for the next agent is a sign that there was one.
                let mut permissions = metadata.permissions();
                if permissions.readonly() {
                    return Err(StoreError::Gone);
                }
                permissions.set_readonly(true);
                file.set_permissions(permissions)?;
                Ok(Embedded { file, memory: Some(vec![0; 2 * HALF as usize]) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the record ends with this process.
    pub fn is_volatile(&self) -> bool {
        self.memory.is_some()
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
        match &self.memory {
            None => self.file.read_exact_at(bytes, offset),
            Some(memory) => {
                let part = memory.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
                bytes.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        match &mut self.memory {
            None => self.file.write_all_at(bytes, offset),
            Some(memory) => {
                let part = memory.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
                part.ok_or(ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn half(&self, index: u64) -> Result<Option<Versioned>, StoreError> {
        let mut header = [0; HEADER];
        self.read(&mut header, index * HALF)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (revision, length) = (word(8), word(16));
        if word(0) != MAGIC || length > HALF - HEADER as u64 {
            return Ok(None);
        }
        let mut value = vec![0; length as usize];
        self.read(&mut value, index * HALF + HEADER as u64)?;
        Ok((checksum(revision, &value) == word(24)).then_some(Versioned { revision, value }))
    }

    fn newest(&self) -> Result<(Option<Versioned>, u64), StoreError> {
        Ok(match (self.half(0)?, self.half(1)?) {
            (Some(a), Some(b)) if b.revision > a.revision => (Some(b), 0),
            (Some(a), _) => (Some(a), 1),
            (None, Some(b)) => (Some(b), 0),
            (None, None) => (None, 0),
        })
    }
}

fn checksum(revision: u64, value: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(revision, value)
}

impl Store for Embedded {
    async fn get(&self) -> Result<Option<Versioned>, StoreError> {
        Ok(self.newest()?.0)
    }

    async fn compare_and_swap(&mut self, expected: Expected, value: Vec<u8>) -> Result<u64, StoreError> {
        let (current, free) = self.newest()?;
        let (found, revision) = match &current {
            None => (Expected::Absent, 1),
            Some(v) => (Expected::Revision(v.revision), v.revision + 1),
        };
        if found != expected {
            return Err(StoreError::Lost(current));
        }
        if value.len() > HALF as usize - HEADER {
            return Err(StoreError::TooLong { bytes: value.len(), limit: HALF as usize - HEADER });
        }
        let mut bytes = Vec::with_capacity(HEADER + value.len());
        for word in [MAGIC, revision, value.len() as u64, checksum(revision, &value)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&value);
        self.write(&bytes, free * HALF)?;
        Ok(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// The embedded store never waits, so one poll is enough.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the embedded store waited"),
        }
    }

    #[test]
    fn only_the_expected_revision_is_replaced() {
        let mut store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(now(store.get()).unwrap(), None);
        let first = now(store.compare_and_swap(Expected::Absent, b"one".to_vec())).unwrap();
        assert!(
            matches!(now(store.compare_and_swap(Expected::Absent, b"x".to_vec())), Err(StoreError::Lost(Some(v))) if v.value == b"one")
        );
        let second = now(store.compare_and_swap(Expected::Revision(first), b"two".to_vec())).unwrap();
        assert!(second > first);
        assert_eq!(now(store.get()).unwrap().unwrap(), Versioned { revision: second, value: b"two".to_vec() });
    }

    #[test]
    fn a_reopened_store_has_the_last_value() {
        let file = tempfile::tempfile().unwrap();
        let mut store = Embedded::open(file.try_clone().unwrap()).unwrap();
        let mut expected = Expected::Absent;
        for n in 0..9u8 {
            expected = Expected::Revision(now(store.compare_and_swap(expected, vec![n; n as usize])).unwrap());
        }
        drop(store);
        assert_eq!(now(Embedded::open(file).unwrap().get()).unwrap().unwrap().value, vec![8; 8]);
    }

    #[test]
    fn a_write_torn_at_any_byte_leaves_the_value_before_it() {
        let old = b"the old record".to_vec();
        for cut in 0..HEADER + 3 {
            let file = tempfile::tempfile().unwrap();
            let mut store = Embedded::open(file.try_clone().unwrap()).unwrap();
            let first = now(store.compare_and_swap(Expected::Absent, old.clone())).unwrap();
            let (_, free) = store.newest().unwrap();
            let mut before = vec![0; HEADER + 3];
            file.read_exact_at(&mut before, free * HALF).unwrap();
            now(store.compare_and_swap(Expected::Revision(first), b"new".to_vec())).unwrap();
            file.write_all_at(&before[cut..], free * HALF + cut as u64).unwrap();
            let seen = now(store.get()).unwrap().unwrap();
            assert_eq!(seen.value, old, "cut at {cut}");
        }
    }
}
