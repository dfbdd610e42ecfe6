//! Whether ftd's other programs are of this one's release or of a neighbour. Others do not understand what it says.

use crate::build::{KIND, OWNER, Release};
use ft_wire::APART;
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
    /// It is of a release that is no neighbour.
    #[error(
        "{} is of another release of ftd, {theirs}, than {}, {ours}, {APART}, or let FT_LIBEXEC name what belongs together",
        path.display(), own_file.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Its release.
        theirs: String,
        /// This program's file.
        own_file: PathBuf,
        /// And its release.
        ours: String,
    },
}

/// Checks one of ftd's programs, or its preload.
///
/// # Errors
/// One sentence that names the file.
pub fn check(path: &Path) -> Result<(), BuildError> {
    let file = File::open(path).map_err(|error| BuildError::Unreadable { path: path.to_path_buf(), error })?;
    let theirs = noted(file);
    if theirs.as_ref().and_then(|theirs| theirs.protocol).is_some_and(ft_wire::is_neighbour) {
        return Ok(());
    }
    let ours = Release::own().words;
    let theirs = theirs.map_or_else(|| "which does not say its version".into(), |theirs| theirs.words);
    let own_file = std::env::current_exe().unwrap_or_else(|_| "this program".into());
    Err(BuildError::Other { path: path.to_path_buf(), theirs, own_file, ours })
}

/// The release that a file says it is of.
fn noted(file: File) -> Option<Release> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, &data).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, &data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == OWNER && note.n_type(endian).0 == KIND {
                return Some(Release::of(note.desc()));
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
        let bytes = std::fs::read(&own_file).unwrap();
        let own = format!("(ftd speaks protocol {:08})", ft_wire::VERSION);
        let at = memchr::memmem::find(&bytes, own.as_bytes()).unwrap();
        let written = |number: u32| {
            let (text, mut bytes) = (format!("(ftd speaks protocol {number:08})"), bytes.clone());
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
            std::fs::write(&other, bytes).unwrap();
            check(&other)
        };
        assert!(written(ft_wire::VERSION + 1).is_ok(), "a neighbour");
        let sentence = written(ft_wire::VERSION + 2).unwrap_err().to_string();
        let theirs = format!("(protocol {}), than ", ft_wire::VERSION + 2);
        assert!(
            sentence.contains("/ft-agent is of another release of ftd, ") && sentence.contains(&theirs),
            "{sentence}"
        );
        std::fs::write(&other, "#!/bin/sh\n").unwrap();
        let sentence = check(&other).unwrap_err().to_string();
        assert!(
            sentence.contains("does not say its version") && sentence.contains(&Release::own().words),
            "{sentence}"
        );
        let sentence = check(&directory.path().join("none")).unwrap_err().to_string();
        assert!(sentence.contains("/none is a part of ftd and cannot be read: No such file"), "{sentence}");
    }
}
