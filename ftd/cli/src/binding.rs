//! `--bind-to`, `--map-by` and `--cpus-per-rank`, as Open MPI's users write them.

use crate::mpirun::{BEYOND, WITHIN};
use ftd_core::binding::{Bind, Map, Policy};

/// What `--bind-to` takes.
pub const BIND: &str = "none, core, numa or socket, perhaps with :overload-allowed";
/// What `--map-by` takes.
pub const MAP: &str = "core, slot, numa or socket, perhaps with :PE=N or :OVERSUBSCRIBE";

/// What somebody says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// How ranks are to be bound.
    pub policy: Policy,
    /// So the user has said: what cannot be had is refused.
    pub explicit: bool,
    /// There may be more ranks than slots.
    pub oversubscribed: bool,
}

/// The words of a value, in small letters, with `:` between.
fn words(text: &str) -> Vec<String> {
    text.to_lowercase().split(':').map(String::from).collect()
}

/// What `--bind-to` says: to what, and whether ranks may share it.
pub fn bind(text: &str) -> Option<(Bind, bool)> {
    let words = words(text);
    let bind = match words[0].as_str() {
        "none" => Bind::None,
        "core" => Bind::Core,
        "numa" => Bind::Domain,
        "socket" | "package" => Bind::Package,
        _ => return None,
    };
    let mut overload = false;
    for word in &words[1..] {
        match word.as_str() {
            "overload-allowed" => overload = true,
            "no-overload" | "if-supported" => {}
            _ => return None,
        }
    }
    Some((bind, overload))
}

/// What `--map-by` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// Over what ranks are dealt.
    pub map: Map,
    /// How many cores each has.
    pub cores: Option<u32>,
    /// There may be more of them than cores.
    pub oversubscribed: bool,
}

/// What `--map-by` says, if that is something.
pub fn map(text: &str) -> Option<Mapped> {
    let words = words(text);
    let map = match words[0].as_str() {
        "" => Map::Auto,
        "slot" => Map::Slot,
        "core" => Map::Core,
        "numa" => Map::Domain,
        "socket" | "package" => Map::Package,
        _ => return None,
    };
    let mut mapped = Mapped { map, cores: None, oversubscribed: false };
    for word in &words[1..] {
        match word.split_once('=') {
            Some(("pe", number)) => mapped.cores = Some(number.parse().ok().filter(|number| *number > 0)?),
            None if word == "oversubscribe" => mapped.oversubscribed = true,
            _ => return None,
        }
    }
    Some(mapped)
}

const WHOLE_CORES: &str = "ranks have whole cores, with all their hardware threads: say core";
const DOMAINS: &str = "what shares such a cache is mostly a NUMA domain or a socket: say numa or socket";
const IN_ORDER: &str =
    "the ranks fill the nodes in the order of --hosts, and -ppn N or NODE:SLOTS says how many each has";
const SEVERAL: &str = "so many cores for each rank are --cpus-per-rank N";
const ANYWAY: &str = "leave it out";

/// Words of `--bind-to` of other launchers', and what to say instead.
const NOT_BOUND_TO: &[(&[&str], &str)] = &[
    (&["hwthread", "hwthreads", "thread", "pu", "l1cache", "l2cache", "l1dcache", "l1icache"], WHOLE_CORES),
    (&["l3cache", "l4cache", "l5cache", "board", "group", "die"], DOMAINS),
    (&["machine", "node"], "say none"),
    (&["user", "cpu-list", "cpulist", "rr"], WITHIN),
    (&["report"], "the processors of each rank are said with --report-bindings"),
    (&["limit"], "ranks that share cores are let to with :overload-allowed"),
];

/// Words of `--map-by` of other launchers', and what to say instead.
const NOT_MAPPED_BY: &[(&[&str], &str)] = &[
    (&["ppr"], "how many ranks a node has is -ppn N, and --map-by numa or socket deals them evenly within it"),
    (&["node", "seq", "rankfile", "dist", "span", "ordered", "board", "file", "qfile"], IN_ORDER),
    (&["nolocal"], "the nodes are those of --hosts: name the others alone"),
    (&["hwthread", "hwthreads", "thread", "pu", "l1cache", "l2cache", "hwtcpus"], WHOLE_CORES),
    (&["l3cache", "l4cache", "l5cache", "group", "die"], DOMAINS),
    (&["pe-list", "user", "likwid", "device"], WITHIN),
    (&["nooversubscribe"], BEYOND),
    (&["corecpus", "inherit", "noinherit", "display", "displayalloc", "displaydevel", "donotlaunch"], ANYWAY),
];

fn instead(text: &str, known: impl Fn(&str) -> bool, others: &[(&[&str], &'static str)]) -> Option<&'static str> {
    let words = words(text);
    let unknown = words.iter().enumerate().filter(|(at, word)| *at > 0 || !known(word)).map(|(_, word)| word);
    unknown.into_iter().find_map(|word| {
        let name = word.split('=').next().unwrap_or_default();
        others.iter().find(|(names, _)| names.contains(&name)).map(|(_, sentence)| *sentence)
    })
}

/// What to say instead of a value of `--bind-to` that is another launcher's.
pub fn instead_of_bind(text: &str) -> Option<&'static str> {
    let words = words(text);
    match words.as_slice() {
        [first, number] if bind(first).is_some() && number.parse::<u32>().is_ok() => Some(SEVERAL),
        _ => instead(text, |word| bind(word).is_some(), NOT_BOUND_TO),
    }
}

/// What to say instead of a value of `--map-by` that is another launcher's.
pub fn instead_of_map(text: &str) -> Option<&'static str> {
    instead(text, |word| map(word).is_some(), NOT_MAPPED_BY)
}

/// Options that contradict each other, as they do for mpirun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Cores of its own for a rank that is bound to something else.
    #[error("so many cores for each rank (:PE=N, --cpus-per-rank) are what it is bound to: leave out --bind-to {0}")]
    Cores(&'static str),
    /// Several cores, where one is dealt.
    #[error("--map-by core deals one core to each rank: --map-by slot:PE={0} gives it as many")]
    Several(u32),
    /// A rank is bound to more than where it is.
    #[error(
        "--map-by {map} says where in a {to} each rank is, --bind-to {to} that it is anywhere there: leave out --map-by, or say --map-by slot"
    )]
    Beyond {
        /// Over what ranks are dealt.
        map: &'static str,
        /// To what they are bound.
        to: &'static str,
    },
}

/// Somebody else binds them, as Slurm does its tasks.
pub fn none() -> Told {
    Told { policy: Policy { bind: Bind::None, ..Policy::DEFAULT }, explicit: true, oversubscribed: false }
}

/// What is said of binding, and whether there may be more ranks than cores (`--oversubscribe`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Said {
    /// `--bind-to`.
    pub bind: Option<(Bind, bool)>,
    /// `--map-by`.
    pub map: Option<Mapped>,
    /// `--cpus-per-rank`.
    pub cores: Option<u32>,
    /// `--oversubscribe`.
    pub oversubscribed: bool,
}

/// All of it together, for a job of so many ranks. Who says only over what ranks are dealt binds them as Open MPI does then.
///
/// # Errors
/// It contradicts itself.
pub fn policy(said: &Said, ranks: u32) -> Result<Told, Contradiction> {
    let explicit = said.bind.is_some() || said.map.is_some() || said.cores.is_some();
    let oversubscribed = said.oversubscribed || said.map.is_some_and(|mapped| mapped.oversubscribed);
    if !explicit {
        return Ok(Told { policy: Policy::DEFAULT, explicit, oversubscribed });
    }
    let cores = said.cores.or(said.map.and_then(|mapped| mapped.cores));
    let map = said.map.map_or(Map::Auto, |mapped| mapped.map);
    let (bind, overload) = said.bind.unwrap_or_else(|| (implied(map, cores, oversubscribed, ranks), false));
    match (bind, map, cores) {
        (Bind::None, _, Some(_)) if said.bind.is_some() => return Err(Contradiction::Cores("none")),
        (Bind::Domain, _, Some(_)) => return Err(Contradiction::Cores("numa")),
        (Bind::Package, _, Some(_)) => return Err(Contradiction::Cores("socket")),
        (_, Map::Core, Some(several)) if several > 1 => return Err(Contradiction::Several(several)),
        (Bind::Domain, Map::Core, _) => return Err(Contradiction::Beyond { map: "core", to: "numa" }),
        (Bind::Package, Map::Core, _) => return Err(Contradiction::Beyond { map: "core", to: "socket" }),
        (Bind::Package, Map::Domain, _) => return Err(Contradiction::Beyond { map: "numa", to: "socket" }),
        _ => {}
    }
    Ok(Told { policy: Policy { bind, map, cores, overload, pinned: false }, explicit, oversubscribed })
}

/// To what ranks are bound where that is not said.
fn implied(map: Map, cores: Option<u32>, oversubscribed: bool, ranks: u32) -> Bind {
    match (map, cores) {
        (_, None | Some(1)) if oversubscribed => Bind::None,
        (_, Some(_)) | (Map::Auto | Map::Core, None) => Bind::Core,
        (Map::Slot, None) if ranks <= 2 => Bind::Core,
        (Map::Slot | Map::Domain, None) => Bind::Domain,
        (Map::Package, None) => Bind::Package,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_open_mpis() {
        assert_eq!(bind("core"), Some((Bind::Core, false)));
        assert_eq!(bind("NUMA:overload-allowed"), Some((Bind::Domain, true)));
        assert_eq!(bind("package:if-supported"), Some((Bind::Package, false)));
        assert_eq!((bind("hwthread"), bind("core:often"), bind("")), (None, None, None));
        let mapped = |map, cores, oversubscribed| Some(Mapped { map, cores, oversubscribed });
        assert_eq!(map("slot:PE=2"), mapped(Map::Slot, Some(2), false));
        assert_eq!(map(":OVERSUBSCRIBE"), mapped(Map::Auto, None, true));
        assert_eq!(map("core:PE=1:oversubscribe"), mapped(Map::Core, Some(1), true));
        assert_eq!(map("numa"), mapped(Map::Domain, None, false));
        assert_eq!((map("ppr:2:node"), map("slot:PE=0"), map("slot:pe=x")), (None, None, None));
    }

    /// Those that the helps and manuals of Open MPI 4 and 5 and MPICH 4 and 5 list.
    #[test]
    fn values_of_other_launchers_are_served_or_have_something_in_their_place() {
        for value in [
            "none",
            "hwthread",
            "core",
            "core:2",
            "l1cache",
            "l2cache",
            "l3cache",
            "numa",
            "socket",
            "package",
            "board",
            "cpu-list",
            "rr",
            "user:0,2",
            "hwthread:overload-allowed",
            "core:REPORT",
            "core:LIMIT=2",
            "core:if-supported",
            "socket:2",
        ] {
            assert_ne!(bind(value).is_some(), instead_of_bind(value).is_some(), "{value}");
        }
        for value in [
            "slot",
            "hwthread",
            "core",
            "l1cache",
            "l2cache",
            "l3cache",
            "numa",
            "socket",
            "package",
            "node",
            "board",
            "seq",
            "dist",
            "ppr:2:node",
            "ppr:1:socket:PE=2",
            "rankfile",
            "rankfile:FILE=x",
            "pe-list=0,1",
            "core:SPAN",
            "slot:NOOVERSUBSCRIBE",
            "slot:NOLOCAL",
            "core:HWTCPUS",
            "core:CORECPUS",
            ":INHERIT",
            ":NOINHERIT",
            ":DISPLAY",
            "pe-list=0,1:ORDERED",
            "seq:QFILE=x",
        ] {
            assert_ne!(map(value).is_some(), instead_of_map(value).is_some(), "{value}");
        }
    }

    #[test]
    fn what_nobody_serves_has_nothing_in_its_place() {
        assert_eq!(
            (instead_of_bind("soket"), instead_of_map("cores"), instead_of_map("slot:PE=x")),
            (None, None, None)
        );
        assert!(instead_of_map("ppr:2:node").is_some_and(|words| words.contains("-ppn N")));
        assert!(instead_of_bind("hwthread").is_some_and(|words| words.contains("say core")));
    }

    fn told(map: &str, to: &str, cores: Option<u32>, ranks: u32) -> Result<Policy, Contradiction> {
        let map = (!map.is_empty()).then(|| super::map(map).unwrap());
        policy(&Said { bind: bind(to), map, cores, oversubscribed: false }, ranks).map(|told| told.policy)
    }

    /// What mpirun 5.0.11 says its binding policy is.
    #[test]
    fn an_order_alone_binds_as_mpirun_does() {
        for (map, two, three) in [
            ("core", Bind::Core, Bind::Core),
            ("slot", Bind::Core, Bind::Domain),
            ("numa", Bind::Domain, Bind::Domain),
            ("socket", Bind::Package, Bind::Package),
            (":PE=2", Bind::Core, Bind::Core),
            ("slot:PE=1", Bind::Core, Bind::Core),
            ("numa:PE=2", Bind::Core, Bind::Core),
            ("slot:PE=2:OVERSUBSCRIBE", Bind::Core, Bind::Core),
            (":OVERSUBSCRIBE", Bind::None, Bind::None),
            ("slot:OVERSUBSCRIBE", Bind::None, Bind::None),
            ("numa:PE=1:OVERSUBSCRIBE", Bind::None, Bind::None),
        ] {
            let of = |ranks| told(map, "", None, ranks).unwrap().bind;
            assert_eq!((of(2), of(3)), (two, three), "{map}");
        }
        let oversubscribed = Said { oversubscribed: true, ..Said::default() };
        assert_eq!(
            policy(&oversubscribed, 2),
            Ok(Told { policy: Policy::DEFAULT, explicit: false, oversubscribed: true })
        );
        let bind = |said| policy(&said, 2).unwrap().policy.bind;
        assert_eq!(bind(Said { map: map("core"), ..oversubscribed }), Bind::None);
        assert_eq!(bind(Said { cores: Some(1), ..oversubscribed }), Bind::None);
        assert_eq!(bind(Said { cores: Some(2), ..oversubscribed }), Bind::Core);
        let cores = told("numa:PE=3", "", Some(2), 2).unwrap();
        assert_eq!((cores.bind, cores.map, cores.cores), (Bind::Core, Map::Domain, Some(2)));
    }

    #[test]
    fn what_mpirun_refuses_is_refused_with_what_to_say() {
        for (map, to, cores, sentence) in [
            ("slot:PE=1", "none", None, "leave out --bind-to none"),
            ("numa:PE=2", "numa", None, "leave out --bind-to numa"),
            ("", "socket", Some(1), "leave out --bind-to socket"),
            ("core:PE=2", "", None, "--map-by slot:PE=2"),
            ("core", "core", Some(3), "--map-by slot:PE=3"),
            ("core", "numa", None, "--map-by core says where in a numa"),
            ("core", "socket", None, "--map-by core says where in a socket"),
            ("numa", "socket", None, "--map-by numa says where in a socket"),
        ] {
            let error = told(map, to, cores, 2).unwrap_err().to_string();
            assert!(error.contains(sentence), "{map} {to}: {error}");
        }
        for (map, to) in
            [("core:PE=1", ""), ("core:PE=1", "core"), ("socket", "numa"), ("slot", "socket"), ("numa", "none")]
        {
            assert!(told(map, to, None, 2).is_ok(), "{map} {to}");
        }
    }
}
