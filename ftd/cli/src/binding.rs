//! `--bind-to`, `--map-by` and `--cpus-per-rank`, as Open MPI's users write them.

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
    Told { policy: Policy { bind: Bind::None, ..Policy::DEFAULT }, explicit: true }
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
    if !explicit {
        return Ok(Told { policy: Policy::DEFAULT, explicit });
    }
    let cores = said.cores.or(said.map.and_then(|mapped| mapped.cores));
    let map = said.map.map_or(Map::Auto, |mapped| mapped.map);
    let oversubscribed = said.oversubscribed || said.map.is_some_and(|mapped| mapped.oversubscribed);
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
    Ok(Told { policy: Policy { bind, map, cores, overload, pinned: false }, explicit })
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
        assert_eq!(policy(&oversubscribed, 2), Ok(Told { policy: Policy::DEFAULT, explicit: false }));
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
