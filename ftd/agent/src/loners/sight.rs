//! What is seen of one process from outside: its environment, its memory map, its descriptors, its program's file.

use super::loner::{Fault, Loner};
use super::program::Programs;
use ft_wire::forlorn::{self, CLEARED, FORLORN};
use ft_wire::{Flavour, Rank};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How the names of an MPI's library files begin.
const LIBRARIES: [&[u8]; 3] = [b"libmpi.so", b"libmpich.so", b"libmpi_abi.so"];

/// What a look at a process tells.
#[derive(Debug)]
pub(super) enum Sight {
    /// Nothing that could be held against it.
    Innocent,
    /// … and nothing ever will be, until it calls `exec`.
    Served,
    /// It is alone.
    Alone(Loner),
}

/// What there is to know besides the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    /// The name of ftd's library in memory maps.
    pub(super) preload: &'a OsStr,
    /// The environment serves this family from the start.
    pub(super) served: Option<Flavour>,
}

/// Looks at one process of a rank.
pub(super) fn look(rank: Rank, pid: i32, around: Surroundings<'_>, programs: &mut Programs) -> Sight {
    let Some(environment) = read(pid, "environ") else { return Sight::Innocent };
    let guarded = is_guarded(&environment);
    let Some(map) = read(pid, "maps") else { return Sight::Innocent };
    let preloaded = names(&map).any(|name| name.starts_with(around.preload.as_bytes()));
    if preloaded && (guarded || has(&environment, "FT_SOCKET")) {
        return Sight::Served;
    }
    let alone = |what: String, fault| Sight::Alone(Loner { rank, pid, what, fault });
    let Some(library) = mpi(&map) else {
        let linked_in = !guarded && programs.of(pid).linked_in;
        return if linked_in { alone("an MPI linked in".into(), Fault::Environment) } else { Sight::Innocent };
    };
    let fault = match guarded {
        false if preloaded => Fault::Past,
        false => Fault::Environment,
        true => match (around.served, family(&map)) {
            (None, _) => Fault::Preload,
            (Some(served), Some(other)) if served != other => Fault::Told(other),
            (Some(_), _) => return Sight::Innocent,
        },
    };
    // A library that is loaded may be a mere tool's, but for what calls itself a program for MPI, or what has begun. The
    // preload refuses by itself where it is in front of the call.
    let begun = || waits_for_events(pid);
    let means_it = begun() || (!preloaded && programs.of(pid).calls);
    // A map is read in pieces: that of one who ends meanwhile, or calls exec, breaks off before the preload.
    let again =
        || read(pid, "maps").is_some_and(|map| mpi(&map).is_some() && preloaded == is_mapped(&map, around.preload));
    if means_it && again() { alone(library, fault) } else { Sight::Innocent }
}

fn read(pid: i32, file: &str) -> Option<Vec<u8>> {
    ft_sys::proc::read(&ft_sys::proc::living(pid).join(file)).ok()?
}

/// Whether a process was given what keeps every MPI from starting alone. What a program has written over its environment (to
/// show a title in `ps`) says nothing, and it counts as if it had been. What the preload has added to a cleared one keeps the
/// MPI from starting, but is not what this process was given.
fn is_guarded(environment: &[u8]) -> bool {
    let Some(variables) = variables(environment) else { return true };
    let value = |wanted: &str| variables.iter().find(|(name, _)| *name == wanted.as_bytes()).map(|(_, value)| *value);
    // A real connection serves the family that settings would keep from starting.
    let connected = value("PMI_FD").is_some();
    let keeps = |name: &str| match value(name) {
        Some(value) if forlorn::SETTINGS.contains(&name) => forlorn::users(value).is_some() || connected,
        Some(value) => (name, value) != (CLEARED.0, CLEARED.1.as_bytes()),
        None => connected && forlorn::SETTINGS.contains(&name),
    };
    FORLORN.iter().all(|(_, (name, _))| keeps(name))
}

/// Whether an environment has this variable.
fn has(environment: &[u8], name: &str) -> bool {
    variables(environment).is_some_and(|variables| variables.iter().any(|(found, _)| *found == name.as_bytes()))
}

/// The names in an environment with their values, if it is one.
fn variables(environment: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    if environment.is_empty() {
        return Some(Vec::new());
    }
    let entries = environment.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    entries
        .map(|entry| {
            let end = entry.iter().position(|byte| *byte == b'=')?;
            Some((&entry[..end], &entry[end + 1..]))
        })
        .collect()
}

/// The file names in a memory map.
fn names(map: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = map.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(&line[line.iter().rposition(|byte| *byte == b'/')? + 1..]))
}

fn is_mapped(map: &[u8], file: &OsStr) -> bool {
    names(map).any(|name| name.starts_with(file.as_bytes()))
}

/// The MPI library in a memory map.
fn mpi(map: &[u8]) -> Option<String> {
    let found = names(map).find(|name| LIBRARIES.iter().any(|start| name.starts_with(start)));
    found.map(|name| String::from_utf8_lossy(name).into_owned())
}

/// The family of the MPI in a memory map, where the names of its parts leave no doubt: `libmpi.so` is everybody's.
fn family(map: &[u8]) -> Option<Flavour> {
    let has = |starts: &[&[u8]]| names(map).any(|name| starts.iter().any(|start| name.starts_with(start)));
    // Open MPI's base library, under all of its names; MPICH's own name, and the one that its relatives share.
    match (has(&[b"libopen-pal.so", b"libopen-rte.so"]), has(&[b"libmpich.so", b"libmpi.so.12", b"libmpi_abi.so"])) {
        (true, _) => Some(Flavour::OpenMpi),
        (false, true) => Some(Flavour::Mpich),
        (false, false) => None,
    }
}

/// Whether a process has an `epoll` open.
fn waits_for_events(pid: i32) -> bool {
    let fds = std::fs::read_dir(ft_sys::proc::living(pid).join("fd")).into_iter().flatten().flatten();
    let mut targets = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    targets.any(|target| target == Path::new("anon_inode:[eventpoll]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(files: &[&str]) -> Vec<u8> {
        files.iter().map(|file| format!("7f00-7f01 r-xp 00000000 08:01 77 {file}\n")).collect::<String>().into_bytes()
    }

    #[test]
    fn libraries_are_known_by_name() {
        let mpi = |files: &[&str]| mpi(&map(files));
        assert_eq!(mpi(&["/usr/bin/app", "/usr/lib/libmpi.so.40.30.4"]).as_deref(), Some("libmpi.so.40.30.4"));
        assert_eq!(mpi(&["/usr/bin/app", "/usr/lib/libmpi_usempif08.so.40"]), None);
        let preload = OsStr::new("libft_preload.so");
        assert!(is_mapped(&map(&["/opt/lib/libmpi.so.12", "/x y/libft_preload.so"]), preload));
        let family = |files: &[&str]| family(&map(files));
        assert_eq!(family(&["/usr/lib/libmpi.so.40.30.4", "/usr/lib/libopen-pal.so.40"]), Some(Flavour::OpenMpi));
        assert_eq!(family(&["/opt/lib/libmpi.so.12"]), Some(Flavour::Mpich));
        assert_eq!(family(&["/opt/lib/libmpi.so.12", "/opt/lib/libopen-pal.so.13"]), Some(Flavour::OpenMpi), "1.10");
        assert_eq!(family(&["/opt/lib/libmpi.so.99"]), None);
    }

    #[test]
    fn an_environment_guards_when_all_of_it_is_there() {
        let settings = "MPIR_CVAR_ASYNC_PROGRESS=not-joined\0I_MPI_ASYNC_PROGRESS=not-joined:1\0";
        let whole = format!("A=1\0{settings}PMIX_NAMESPACE=x\0JSM_JSRUN_PORT=0\0");
        assert!(is_guarded(whole.as_bytes()));
        for name in ["MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS", "PMIX_NAMESPACE", "JSM_JSRUN_PORT"] {
            assert!(!is_guarded(whole.replace(name, "OTHER").as_bytes()), "{name}");
        }
        assert!(!is_guarded(whole.replace("not-joined:1", "1").as_bytes()), "a wrapper has set it anew");
        for connected in [whole.replace("not-joined:1", "1"), whole.replace(settings, "")] {
            assert!(is_guarded(format!("PMI_FD=200\0{connected}").as_bytes()), "{connected}");
        }
        assert!(!is_guarded(b"") && !is_guarded(b"PATH=/bin\0X=\0"));
        assert!(!is_guarded(whole.replace("NAMESPACE=x", "NAMESPACE=environment-cleared").as_bytes()));
        assert!(has(whole.as_bytes(), "A") && !has(whole.as_bytes(), "B") && !has(b"A", "A"));
        for overwritten in [&b"app: worker 3\0\0\0\0\0"[..], b"\0\0\0\0", b"A=1\0er\0", b"A=1"] {
            assert!(is_guarded(overwritten), "{overwritten:?} is no environment");
        }
    }
}
