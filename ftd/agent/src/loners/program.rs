//! What a program's file says of MPI.

use ft_sys::identity::Snapshot;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Most of a file that is searched, and how much of it at a time.
const MOST_SEARCHED: u64 = 256 << 20;
const PIECE: usize = 1 << 20;
/// Files of which is known what they hold: the programs of a script.
const KNOWN: usize = 64;

/// How the names of the functions begin with which a program asks a library for MPI, in C and as compilers of Fortran write
/// them, and all the ways in which they end. Others begin like that as well, and initialise nothing: `MPI_Initialized`.
const CALLS: [&[u8]; 6] =
    [b"MPI_Init", b"mpi_init", b"MPI_INIT", b"MPI_Session_init", b"mpi_session_init", b"MPI_SESSION_INIT"];
const THREAD: [&[u8]; 2] = [b"_thread", b"_THREAD"];
const ENDINGS: [&[u8]; 5] = [b"", b"_", b"__", b"_f08_", b"_f08ts_"];
/// More than the longest of these names has, and the zeros around it.
const LONGEST: usize = 48;
/// What an MPI that is linked in looks for in its environment, as C strings, and what it calls itself. (Without their zeros
/// here, lest ftd's own programs hold them.)
const LINKED_IN: [&[u8]; 2] = [b"PMI_FD", b"PMIX_NAMESPACE"];
const ITSELF: &[u8] = b"MPI_Init";

/// What a file holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The names of the functions that initialise an MPI; tools that only come with one do without.
    pub(super) calls: bool,
    /// An MPI. Process managers know its environment too, but not its functions.
    pub(super) linked_in: bool,
}

/// Files that have been read.
#[derive(Debug)]
pub(super) struct Programs {
    known: Vec<(Snapshot, Contents)>,
}

impl Default for Programs {
    /// The agent of a job within the job holds all these words.
    fn default() -> Programs {
        let own = std::fs::metadata("/proc/self/exe").map(|own| (Snapshot::of(&own), Contents::default()));
        Programs { known: own.into_iter().collect() }
    }
}

impl Programs {
    /// What the program of a process holds; nothing where it cannot be read.
    pub(super) fn of(&mut self, pid: i32) -> Contents {
        self.look(&ft_sys::proc::living(pid).join("exe")).unwrap_or_default()
    }

    fn look(&mut self, path: &Path) -> Option<Contents> {
        let file = File::open(path).ok()?;
        let snapshot = Snapshot::of(&file.metadata().ok()?);
        if let Some((_, contents)) = self.known.iter().find(|(known, _)| *known == snapshot) {
            return Some(*contents);
        }
        let contents = search(file.take(MOST_SEARCHED)).ok()?;
        if self.known.len() == KNOWN {
            self.known.remove(0);
        }
        self.known.push((snapshot, contents));
        Some(contents)
    }
}

fn search(mut file: impl Read) -> std::io::Result<Contents> {
    let (mut piece, mut have) = (vec![0; PIECE], 0);
    let (mut calls, mut asks, mut itself) = (false, false, false);
    loop {
        let read = file.read(&mut piece[have..])?;
        let bytes = &piece[..have + read];
        let begins = |at: usize| at > 0 && bytes[at - 1] == 0;
        let initialises = |at: usize, word: &[u8]| {
            let with_p = at > 0 && bytes[at - 1].eq_ignore_ascii_case(&b'p');
            begins(at - usize::from(with_p)) && is_rest_of_call(&bytes[at + word.len()..])
        };
        let ends = |at: usize| bytes.get(at) == Some(&0);
        let find = memchr::memmem::find_iter::<[u8]>;
        calls = calls || CALLS.iter().any(|word| find(bytes, word).any(|at| initialises(at, word)));
        asks = asks || LINKED_IN.iter().any(|word| find(bytes, word).any(|at| begins(at) && ends(at + word.len())));
        itself = itself || find(bytes, ITSELF).next().is_some();
        if read == 0 {
            return Ok(Contents { calls, linked_in: asks && itself });
        }
        // A word may begin in one piece and end in the next.
        let (all, keep) = (bytes.len(), bytes.len().min(LONGEST));
        piece.copy_within(all - keep..all, 0);
        have = keep;
    }
}

/// Whether a name that begins as one of [`CALLS`] goes on, and ends, as that of such a function.
fn is_rest_of_call(rest: &[u8]) -> bool {
    let Some(end) = rest.iter().take(LONGEST).position(|byte| *byte == 0) else { return false };
    let rest = &rest[..end];
    let ending = THREAD.iter().find_map(|thread| rest.strip_prefix(*thread)).unwrap_or(rest);
    ENDINGS.contains(&ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_of_functions_that_initialise_count() {
        let filler = vec![7; PIECE - 30];
        let calls =
            |name: &str| search(&[&filler, &b"\0"[..], name.as_bytes(), b"\0", &filler].concat()[..]).unwrap().calls;
        for name in [
            "MPI_Init",
            "PMPI_Init",
            "MPI_Init_thread",
            "PMPI_Init_thread",
            "MPI_Session_init",
            "PMPI_Session_init",
            "mpi_init",
            "mpi_init_",
            "mpi_init__",
            "mpi_init_thread_",
            "pmpi_init_",
            "mpi_session_init_",
            "mpi_init_f08_",
            "mpi_init_thread_f08_",
            "mpi_session_init_f08ts_",
            "MPI_INIT",
            "MPI_INIT_THREAD",
        ] {
            assert!(calls(name), "{name}");
        }
        for name in [
            "MPI_Initialized",
            "PMPI_Initialized",
            "mpi_initialized_",
            "mpi_initialized_f08_",
            "MPI_T_init_thread",
            "MPI_Init_x",
            "XMPI_Init",
            "MPI_INITIALIZED",
        ] {
            assert!(!calls(name), "{name}");
        }
        assert!(!search(&b"MPI_Init"[..]).unwrap().calls && !search(&b"P\0MPI_Init"[..]).unwrap().calls);
    }

    #[test]
    fn a_program_is_known_by_its_words() {
        let of = |parts: &[&[u8]]| search(&parts.concat()[..]).unwrap();
        let filler = vec![7; PIECE - 5];
        assert_eq!(of(&[&filler, b"\0MPI_Init_thread\0", &filler]), Contents { calls: true, linked_in: false });
        assert_eq!(of(&[b"\0PMI_FD\0", &filler, b"PMPI_Init"]), Contents { calls: false, linked_in: true });
        assert_eq!(of(&[b"\0PMI_FD\0", &filler, &filler]), Contents::default(), "a process manager");
        assert_eq!(of(&[&filler, b" MPI_Init PMI_FD PMIX_NAMESPACE"]), Contents::default(), "ftd itself");
        let mut programs = Programs::default();
        assert_eq!(programs.of(std::process::id() as i32), Contents::default(), "the agent of a job within the job");
        let library = programs.look(Path::new("/proc/self/maps"));
        assert_eq!((library, programs.known.len()), (Some(Contents::default()), 2));
        assert_eq!(programs.of(-1), Contents::default());
    }
}
