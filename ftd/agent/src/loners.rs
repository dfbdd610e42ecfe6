//! Ranks that would be jobs of their own: an MPI was loaded into them without ftd's preload (`env -u LD_PRELOAD`, a wrapper
//! that sets it anew, an empty environment), so that nobody tells this MPI what it belongs to, and it starts alone.
//!
//! The dynamic linker maps what is preloaded before the libraries that a program needs. So a process that has libmpi and not
//! libft_preload will never join. It runs all the same where `--ft-mpi` has said which MPI it is, and the environment serves it
//! from the start; but not where that was another MPI's. Processes whose memory map cannot be read (file capabilities, set-id bits) are not seen
//! here; what [`FORLORN`] does holds for them as well.

use ft_sys::process::processor_time;
use ft_wire::{Flavour, Rank};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// What every rank finds in its environment until it joins, and what the preload then replaces. An MPI to which nobody has
/// told better does not start alone with it, but fails: MPICH and its family at a connection that is none, Open MPI 4 because
/// it looks for a server, Open MPI 5 because a PMIx name space without a rank is no singleton.
const FORLORN: [(Flavour, (&str, &str)); 3] = [
    (Flavour::Mpich, ("PMI_FD", "2147483647")),
    (Flavour::OpenMpi, ("PMIX_NAMESPACE", "not-joined")),
    (Flavour::OpenMpi, ft_wire::pmix::NOT_SINGLETON),
];

/// What keeps every MPI from starting alone but the family that is served from the start.
pub fn forlorn(served: Option<Flavour>) -> impl Iterator<Item = (&'static str, &'static str)> {
    FORLORN.into_iter().filter(move |(family, _)| served != Some(*family)).map(|(_, variable)| variable)
}

/// A process that has loaded an MPI alone.
#[derive(Debug)]
pub struct Loner {
    /// Of this rank.
    pub rank: Rank,
    /// Its process id.
    pub pid: i32,
    /// The MPI library's file name.
    pub library: String,
    /// That is of this family, which is not what it was said to be.
    pub other: Option<Flavour>,
}

/// Words for people.
pub fn name(family: Flavour) -> &'static str {
    match family {
        Flavour::OpenMpi => "Open MPI",
        Flavour::Mpich => "MPICH or a relative of it",
    }
}

/// The looks take one part of so many of a processor at the most, however many ranks there are and however slow `/proc` is.
const SHARE: u32 = 50;

/// The shortest rest between two looks at a world that began this long ago: an MPI that is loaded takes longer than the
/// shortest one to get going, and programs without MPI are not to be troubled for ever.
fn shortest_rest(age: Duration) -> Duration {
    Duration::from_millis(match age.as_millis() {
        0..300 => 15,
        300..5000 => 40,
        _ => 500,
    })
}

/// Looks again and again at ranks of one world that have not joined, at a few each time, in turn.
#[derive(Debug, Default)]
pub struct Search {
    /// Whose turn it is next.
    next: Rank,
    /// Processor time of the last look.
    cost: Duration,
}

impl Search {
    /// How long to rest after the last look at a world that began this long ago.
    pub fn rest(&self, age: Duration) -> Duration {
        shortest_rest(age).max(self.cost * SHARE)
    }

    /// Looks at as many of these ranks, each with the pid of its slot's child, as may be looked at before the shortest rest,
    /// and at one at least. Returns one that has loaded an MPI alone, itself or in a process below it. With `served` (the
    /// environment serves that family from the start) it is one that is certainly of another family.
    pub fn look(
        &mut self,
        ranks: &[(Rank, i32)],
        age: Duration,
        preload: &Path,
        served: Option<Flavour>,
    ) -> Option<Loner> {
        let (begun, enough) = (processor_time(), shortest_rest(age) / SHARE);
        let (before, from) = ranks.split_at(ranks.partition_point(|(rank, _)| *rank < self.next));
        self.cost = Duration::ZERO;
        for (rank, child) in from.iter().chain(before) {
            let found = find(*rank, *child, preload, served);
            self.next = rank + 1;
            self.cost = processor_time().saturating_sub(begun);
            if found.is_some() || self.cost >= enough {
                return found;
            }
        }
        None
    }
}

fn find(rank: Rank, child: i32, preload: &Path, served: Option<Flavour>) -> Option<Loner> {
    let preload = preload.file_name()?;
    let all = std::iter::once(child).chain(ft_sys::process::descendants(child));
    all.into_iter().find_map(|pid| {
        let map = || std::fs::read(format!("/proc/{pid}/maps")).ok();
        alone(&map()?, preload)?;
        // A map is read in pieces: that of one who ends meanwhile, or calls exec, breaks off before the preload.
        let maps = map()?;
        let library = alone(&maps, preload)?;
        if ft_sys::death::is_dying(pid).unwrap_or(true) {
            return None;
        }
        let other = family(&maps).filter(|family| served.is_some_and(|served| served != *family));
        (served.is_none() || other.is_some()).then_some(Loner { rank, pid, library, other })
    })
}

/// The file names in a memory map.
fn names(maps: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = maps.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(&line[line.iter().rposition(|byte| *byte == b'/')? + 1..]))
}

/// The family of the MPI in a memory map, where the names of its parts leave no doubt: `libmpi.so` is everybody's.
fn family(maps: &[u8]) -> Option<Flavour> {
    let has = |starts: &[&[u8]]| names(maps).any(|name| starts.iter().any(|start| name.starts_with(start)));
    // Open MPI's base library, under all of its names; MPICH's own name, and the one that its relatives share.
    match (has(&[b"libopen-pal.so", b"libopen-rte.so"]), has(&[b"libmpich.so", b"libmpi.so.12", b"libmpi_abi.so"])) {
        (true, _) => Some(Flavour::OpenMpi),
        (false, true) => Some(Flavour::Mpich),
        (false, false) => None,
    }
}

/// The MPI library in a memory map without the preload.
fn alone(maps: &[u8], preload: &OsStr) -> Option<String> {
    let mut library = None;
    for name in names(maps) {
        if name.starts_with(preload.as_bytes()) {
            return None;
        }
        if [&b"libmpi.so"[..], b"libmpich.so", b"libmpi_abi.so"].iter().any(|start| name.starts_with(start)) {
            library = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    library
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mpi_without_the_preload_is_alone() {
        let line = |file: &str| format!("7f00-7f01 r-xp 00000000 08:01 77 {file}\n");
        let preload = OsStr::new("libft_preload.so");
        let maps = |files: &[&str]| files.iter().map(|file| line(file)).collect::<String>().into_bytes();
        let found = alone(&maps(&["/usr/bin/app", "/usr/lib/libmpi.so.40.30.4"]), preload);
        assert_eq!(found.as_deref(), Some("libmpi.so.40.30.4"));
        assert_eq!(alone(&maps(&["/opt/lib/libmpi.so.12", "/x y/libft_preload.so"]), preload), None);
        assert_eq!(alone(&maps(&["/usr/bin/app", "/usr/lib/libmpi_usempif08.so.40"]), preload), None);
        let family = |files: &[&str]| family(&maps(files));
        assert_eq!(family(&["/usr/lib/libmpi.so.40.30.4", "/usr/lib/libopen-pal.so.40"]), Some(Flavour::OpenMpi));
        assert_eq!(family(&["/opt/lib/libmpi.so.12"]), Some(Flavour::Mpich));
        assert_eq!(family(&["/opt/lib/libmpi.so.12", "/opt/lib/libopen-pal.so.13"]), Some(Flavour::OpenMpi), "1.10");
        assert_eq!(family(&["/opt/lib/libmpi.so.99"]), None);
        let of = |family| forlorn(family).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(of(Some(Flavour::OpenMpi)), ["PMI_FD"]);
        assert_eq!((of(Some(Flavour::Mpich)).len(), of(None).len()), (2, 3));
    }

    #[test]
    fn every_rank_has_its_turn_and_all_looks_together_their_share() {
        let me = std::process::id() as i32;
        let ranks: Vec<(Rank, i32)> = (0..500).map(|rank| (rank, me)).collect();
        let preload = Path::new("libft_preload.so");
        let mut search = Search::default();
        let (begun, mut rests, mut looks) = (processor_time(), Duration::ZERO, 0);
        loop {
            let from = search.next;
            assert!(search.look(&ranks, Duration::ZERO, preload, None).is_none());
            rests += search.rest(Duration::ZERO);
            looks += 1;
            // Round once.
            if search.next <= from {
                break;
            }
        }
        assert!(looks > 2, "500 maps were read in {looks} looks");
        let used = processor_time() - begun;
        assert!(used < rests / (SHARE / 2), "{used:?} of a processor with rests of {rests:?}");
        assert!(search.look(&[], Duration::ZERO, preload, None).is_none() && search.cost == Duration::ZERO);
    }
}
