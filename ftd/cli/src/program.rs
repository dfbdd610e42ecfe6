//! Finding the program, and a first look into it.

use ft_wire::Flavour;
use object::elf::{DT_NEEDED, DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why there is nothing to start.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No file of that name.
    #[error("there is no program {}", .0.display())]
    Missing(PathBuf),
    /// Not in any directory of `PATH`.
    #[error("there is no program '{}' in PATH", .0.to_string_lossy())]
    NotInPath(OsString),
    /// A directory, a device, …
    #[error("{} is {kind}, no program", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The permission is missing.
    #[error("{} is not executable", .0.display())]
    NotExecutable(PathBuf),
    /// It cannot even be looked at.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl ProgramError {
    /// The exit status that shells use.
    pub fn status(&self) -> u8 {
        match self {
            ProgramError::Missing(_) | ProgramError::NotInPath(_) => 127,
            _ => 126,
        }
    }
}

/// The absolute path of a program: looked up in `path` unless its name contains a slash; relative names start at
/// `directory`, which is absolute.
///
/// # Errors
/// When it does not exist, is no file or may not be executed.
pub fn find(name: &OsStr, path: Option<&OsStr>, directory: &Path) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') || name == "." || name == ".." {
        let file = directory.join(name);
        return executable(&file).map(|()| plain(&file));
    }
    // As a shell does: what is there but cannot be executed is passed over, and named when there is nothing better.
    let mut best = ProgramError::NotInPath(name.to_os_string());
    for place in std::env::split_paths(path.unwrap_or_default()) {
        let file = directory.join(place).join(name);
        match executable(&file) {
            Ok(()) => return Ok(plain(&file)),
            Err(error @ ProgramError::NotExecutable(_)) => best = error,
            Err(_) => {}
        }
    }
    Err(best)
}

/// The path as people write it: without `.` in the middle.
pub fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

fn executable(file: &Path) -> Result<(), ProgramError> {
    use std::os::unix::fs::FileTypeExt;
    let kind = match std::fs::metadata(file) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(ProgramError::Missing(file.to_path_buf()));
        }
        Err(error) => return Err(ProgramError::Io { path: file.to_path_buf(), error }),
    };
    if !kind.is_file() {
        let kind = match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_char_device() || kind.is_block_device() => "a device",
            kind if kind.is_fifo() => "a pipe",
            _ => "a socket",
        };
        return Err(ProgramError::NoFile { path: file.to_path_buf(), kind });
    }
    nix::unistd::access(file, nix::unistd::AccessFlags::X_OK)
        .map_err(|_| ProgramError::NotExecutable(file.to_path_buf()))
}

/// Whether the program is linked with Open MPI's library, so that a PMIx server is worth starting at once. A guess: what
/// cannot be read counts as no.
pub fn is_linked_with_open_mpi(file: &Path) -> bool {
    needed(file).is_some_and(|names| names.iter().any(|name| name == b"libmpi.so.40"))
}

/// What a process manager's client looks for in its environment, as the string that the program file then holds.
const LINKED_IN: [(&[u8], Flavour); 2] = [(b"PMI_FD\0", Flavour::Mpich), (b"PMIX_NAMESPACE\0", Flavour::OpenMpi)];

/// The MPI that was linked into the program statically, if there is one: the program asks for no MPI library and holds the
/// words with which one asks for its connection. Some know more than one way; the first is the likeliest. What cannot be
/// read counts as none.
pub fn linked_in(file: &Path) -> Vec<Flavour> {
    let Some(bytes) = without_mpi_library(file) else { return Vec::new() };
    let found = LINKED_IN.iter().filter(|(word, _)| memchr::memmem::find(&bytes, word).is_some());
    found.map(|(_, flavour)| *flavour).collect()
}

/// The beginning of a program that asks for no MPI library.
fn without_mpi_library(file: &Path) -> Option<Vec<u8>> {
    let mut opened = File::open(file).ok()?;
    let mut magic = [0; 4];
    opened.read_exact(&mut magic).ok()?;
    let is_mpi = |name: &Vec<u8>| [&b"libmpi"[..], b"libpmi"].iter().any(|start| name.starts_with(start));
    if magic != *b"\x7fELF" || needed(file).is_some_and(|names| names.iter().any(is_mpi)) {
        return None;
    }
    let mut bytes = Vec::new();
    opened.take(MOST_SEARCHED).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Most of a program that is searched.
const MOST_SEARCHED: u64 = 256 << 20;

/// The libraries that an ELF file asks for; nothing but what that takes is read.
fn needed(file: &Path) -> Option<Vec<Vec<u8>>> {
    let data = ReadCache::new(File::open(file).ok()?);
    match FileKind::parse(&data).ok()? {
        FileKind::Elf64 => needed_by::<FileHeader64<Endianness>, _>(&data),
        FileKind::Elf32 => needed_by::<FileHeader32<Endianness>, _>(&data),
        _ => None,
    }
}

fn needed_by<'data, Elf, R>(data: R) -> Option<Vec<Vec<u8>>>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    // As the dynamic linker does: a program may have no sections.
    let segments = header.program_headers(endian, data).ok()?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok().flatten())?;
    let entries = || dynamic.iter().map(|entry| (entry.d_tag(endian), entry.d_val(endian).into()));
    let value = |wanted| entries().find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
    let (address, bytes): (u64, u64) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let names = segments.iter().find_map(|segment| segment.data_range(endian, data, address, bytes).ok().flatten())?;
    let name = |at: u64| {
        let rest = names.get(usize::try_from(at).ok()?..)?;
        Some(rest[..memchr::memchr(0, rest)?].to_vec())
    };
    entries().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, at)| name(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn status(name: &str, path: &str, directory: &Path) -> Result<PathBuf, u8> {
        find(OsStr::new(name), Some(OsStr::new(path)), directory).map_err(|error| error.status())
    }

    #[test]
    fn programs_are_looked_up_as_a_shell_does() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, mode) in [("app", 0o755), ("plain", 0o644)] {
            fs::write(at(name), "#!/bin/sh\n").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(at("bin")).unwrap();
        fs::copy(at("app"), at("bin/tool")).unwrap();
        fs::write(at("tool"), "").unwrap();
        let here = directory.path();
        assert_eq!(status("./app", "", here), Ok(at("./app")));
        assert_eq!(status("bin/tool", "", here), Ok(at("bin/tool")));
        assert_eq!(status("tool", "/no/such:.:bin", here), Ok(at("bin/tool")), "a file without x is passed over");
        assert_eq!(status("app", "/bin", here), Err(127), "the current directory is in PATH only when it is named");
        assert_eq!(status("./nothing", "", here), Err(127));
        assert_eq!(status("app/x", "", here), Err(127));
        let found = find(OsStr::new("./app"), None, here).unwrap();
        assert_eq!(found.as_os_str(), at("app").as_os_str(), "as people write it");
        assert_eq!(status("./bin", "", here), Err(126));
        assert_eq!(status("./plain", "", here), Err(126));
        assert_eq!(status("plain", ".", here), Err(126));
        assert_eq!(status("/dev/null", "", here), Err(126));
        let sentence = find(OsStr::new("./plain"), None, here).unwrap_err().to_string();
        assert!(sentence.ends_with("/plain is not executable"), "{sentence}");
    }

    #[test]
    fn libraries_of_a_program_are_seen() {
        let names = needed(&std::env::current_exe().unwrap()).unwrap();
        assert!(names.contains(&b"libc.so.6".to_vec()), "{names:?}");
        assert!(!is_linked_with_open_mpi(&std::env::current_exe().unwrap()));
    }

    #[test]
    fn an_mpi_inside_the_program_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        let with = |start: &[u8], word: &[u8]| {
            fs::write(&file, [start, &[0; 4000], word].concat()).unwrap();
            linked_in(&file)
        };
        assert_eq!(with(b"\x7fELF\x02\x01", b"\0PMI_FD\0"), vec![Flavour::Mpich]);
        assert_eq!(with(b"\x7fELF\x02\x01", b"\0PMIX_NAMESPACE\0"), vec![Flavour::OpenMpi]);
        let both = with(b"\x7fELF\x02\x01", b"\0PMIX_NAMESPACE\0PMI_FD\0");
        assert_eq!(both, vec![Flavour::Mpich, Flavour::OpenMpi]);
        assert_eq!(with(b"\x7fELF\x02\x01", b"\0PMI_FDS\0"), vec![]);
        assert_eq!(with(b"#!/bin/sh\n", b"\0PMI_FD\0"), vec![]);
    }

    #[test]
    fn broken_files_are_no_programs_of_open_mpi() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("broken");
        let whole = fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in [0, 3, 16, 63, 64, 100, 500, 4000, whole.len() / 2] {
            fs::write(&file, &whole[..length]).unwrap();
            assert!(!is_linked_with_open_mpi(&file));
        }
        // Every byte of the header and of the first segments in turn.
        for at in 0..400 {
            let mut bytes = whole[..8192.min(whole.len())].to_vec();
            bytes[at] ^= 0xff;
            fs::write(&file, &bytes).unwrap();
            assert!(!is_linked_with_open_mpi(&file));
        }
        assert!(!is_linked_with_open_mpi(Path::new("/no/such/file")));
    }
}
