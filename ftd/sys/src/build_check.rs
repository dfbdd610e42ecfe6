//! Whether ftd's other programs are of the build that this one is of. Others may not understand what it says.

use crate::build::{KIND, OWNER, own, words};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, elf::FileHeader64};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Why a part of ftd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// It cannot be read, and so not be loaded either.
    #[error("{} is a part of ftd and cannot be read: {error}; install ftd again", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It was built from other sources.
    #[error(
        "{} is of another build of ftd, {theirs}, than {}, {ours}, and the two would not understand each other: \
         install all of ftd again, or let FT_LIBEXEC name what belongs together",
        path.display(), own_file.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Its build.
        theirs: String,
        /// This program's file.
        own_file: PathBuf,
        /// And its build.
        ours: String,
    },
}

/// Checks one of ftd's programs, or its preload.
///
/// # Errors
/// One sentence that names the file.
pub fn check(path: &Path) -> Result<(), BuildError> {
    let file = File::open(path).map_err(|error| BuildError::Unreadable { path: path.to_path_buf(), error })?;
    let (ours, theirs) = (own(), noted(file));
    if theirs.as_ref() == Some(&ours) {
        return Ok(());
    }
    let theirs = theirs.unwrap_or_else(|| "which does not say its version".into());
    let own_file = std::env::current_exe().unwrap_or_else(|_| "this program".into());
    Err(BuildError::Other { path: path.to_path_buf(), theirs, own_file, ours })
}

/// The build that a file says it is of.
fn noted(file: File) -> Option<String> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, &data).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, &data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == OWNER && note.n_type(endian).0 == KIND {
                return Some(words(note.desc()));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_its_build_and_others_are_named() {
        let own_file = std::env::current_exe().unwrap();
        assert!(check(&own_file).is_ok());
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("ft-agent");
        let mut bytes = std::fs::read(&own_file).unwrap();
        while let Some(at) = memchr::memmem::find(&bytes, b" (messages ") {
            bytes[at + 2] = b'M';
        }
        std::fs::write(&other, bytes).unwrap();
        let sentence = check(&other).unwrap_err().to_string();
        assert!(
            sentence.contains("/ft-agent is of another build of ftd, ") && sentence.contains(" (Messages "),
            "{sentence}"
        );
        std::fs::write(&other, "#!/bin/sh\n").unwrap();
        let sentence = check(&other).unwrap_err().to_string();
        assert!(sentence.contains("does not say its version") && sentence.contains(&own()), "{sentence}");
        let sentence = check(&directory.path().join("none")).unwrap_err().to_string();
        assert!(sentence.contains("/none is a part of ftd and cannot be read: No such file"), "{sentence}");
    }
}
