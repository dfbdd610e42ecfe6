//! A file of two halves that take turns: a write goes to the half that is not current, so that a writer that dies at any instruction
//! leaves the other half valid.

use crate::StoreError;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use twox_hash::XxHash3_64;

const MAGIC: u64 = 0x3265_726f_7473_7466; // "ftstore2"
pub(super) const HEADER: usize = 32;
/// Bytes per half: the longest content, header included.
pub(super) const HALF: u64 = 4 << 20;
/// The longest content.
pub(super) const LIMIT: usize = HALF as usize - HEADER;

#[derive(Debug)]
pub(super) struct Halves {
    file: File,
    /// The content when no file may be as large as it (`ulimit -f`): it ends with the agent.
    memory: Option<Vec<u8>>,
}

impl Halves {
    pub fn open(file: File) -> Result<Self, StoreError> {
        let metadata = file.metadata()?;
        if metadata.len() >= 2 * HALF {
            return Ok(Halves { file, memory: None });
        }
        match file.set_len(2 * HALF) {
            Ok(()) => Ok(Halves { file, memory: None }),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                // All that can be left for the next agent is a sign that there was one.
                let mut permissions = metadata.permissions();
                if permissions.readonly() {
                    return Err(StoreError::Gone);
                }
                permissions.set_readonly(true);
                file.set_permissions(permissions)?;
                Ok(Halves { file, memory: Some(vec![0; 2 * HALF as usize]) })
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn is_volatile(&self) -> bool {
        self.memory.is_some()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
        match &self.memory {
            None => self.file.read_exact_at(bytes, offset),
            Some(memory) => {
                let part = memory.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
                bytes.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        match &mut self.memory {
            None => self.file.write_all_at(bytes, offset),
            Some(memory) => {
                let part = memory.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
                part.ok_or(ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// The number of the write that the half holds, and what was written.
    fn half(&self, index: u64) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let mut header = [0; HEADER];
        self.read_at(&mut header, index * HALF)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (number, length) = (word(8), word(16));
        if word(0) != MAGIC || length > LIMIT as u64 {
            return Ok(None);
        }
        let mut content = vec![0; length as usize];
        self.read_at(&mut content, index * HALF + HEADER as u64)?;
        Ok((checksum(number, &content) == word(24)).then_some((number, content)))
    }

    /// The newest content, the number of its write, and the half that is free.
    pub(super) fn newest(&self) -> Result<(Vec<u8>, u64, u64), StoreError> {
        Ok(match (self.half(0)?, self.half(1)?) {
            (Some(a), Some(b)) if b.0 > a.0 => (b.1, b.0, 0),
            (Some(a), _) => (a.1, a.0, 1),
            (None, Some(b)) => (b.1, b.0, 0),
            (None, None) => (Vec::new(), 0, 0),
        })
    }

    /// What was written last; nothing at first.
    pub fn read(&self) -> Result<Vec<u8>, StoreError> {
        Ok(self.newest()?.0)
    }

    pub fn write(&mut self, content: &[u8]) -> Result<(), StoreError> {
        if content.len() > LIMIT {
            return Err(StoreError::TooLong { bytes: content.len(), limit: LIMIT });
        }
        let (_, number, free) = self.newest()?;
        let number = number + 1;
        let mut bytes = Vec::with_capacity(HEADER + content.len());
        for word in [MAGIC, number, content.len() as u64, checksum(number, content)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(content);
        Ok(self.write_at(&bytes, free * HALF)?)
    }
}

fn checksum(number: u64, content: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(number, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_torn_at_any_byte_leaves_the_content_before_it() {
        let old = b"the old content".to_vec();
        for cut in 0..HEADER + 3 {
            let file = tempfile::tempfile().unwrap();
            let mut halves = Halves::open(file.try_clone().unwrap()).unwrap();
            halves.write(&old).unwrap();
            let (_, _, free) = halves.newest().unwrap();
            let mut before = vec![0; HEADER + 3];
            file.read_exact_at(&mut before, free * HALF).unwrap();
            halves.write(b"new").unwrap();
            file.write_all_at(&before[cut..], free * HALF + cut as u64).unwrap();
            assert_eq!(halves.read().unwrap(), old, "cut at {cut}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut halves = Halves::open(tempfile::tempfile().unwrap()).unwrap();
        halves.write(b"small").unwrap();
        assert!(matches!(halves.write(&vec![0; LIMIT + 1]), Err(StoreError::TooLong { .. })));
        assert_eq!(halves.read().unwrap(), b"small");
        halves.write(&vec![1; LIMIT]).unwrap();
        assert_eq!(halves.read().unwrap().len(), LIMIT);
    }
}
