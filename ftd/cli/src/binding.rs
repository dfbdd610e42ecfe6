//! `--bind-to`, `--map-by` and `--cpus-per-rank`, as Open MPI's users write them.

use ftd_core::binding::{Bind, Map, Policy};

/// What `--bind-to` takes.
pub const BIND: &str = "none, core, numa or socket, perhaps with :overload-allowed";
/// What `--map-by` takes.
pub const MAP: &str = "core, slot, numa or socket, perhaps with :PE=N";

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

/// What `--map-by` says: in which order, and how many cores a rank has.
pub fn map(text: &str) -> Option<(Map, Option<u32>)> {
    let words = words(text);
    let map = match words[0].as_str() {
        "core" | "slot" | "" => Map::Core,
        "numa" => Map::Domain,
        "socket" | "package" => Map::Package,
        _ => return None,
    };
    let mut cores = None;
    for word in &words[1..] {
        match word.split_once('=') {
            Some(("pe", number)) => cores = Some(number.parse().ok().filter(|number| *number > 0)?),
            // More ranks than cores are always allowed.
            None if word == "oversubscribe" => {}
            _ => return None,
        }
    }
    Some((map, cores))
}

/// Somebody else binds them, as Slurm does its tasks.
pub fn none() -> Told {
    policy(Some((Bind::None, false)), None, None)
}

/// All of it together. Who says only in which order binds to that.
pub fn policy(bind: Option<(Bind, bool)>, map: Option<(Map, Option<u32>)>, cores: Option<u32>) -> Told {
    let explicit = bind.is_some() || map.is_some() || cores.is_some();
    let cores = cores.or(map.and_then(|(_, cores)| cores));
    let order = map.map(|(order, _)| order).or(cores.map(|_| Map::Core)).unwrap_or(Map::Auto);
    let (bind, overload) = bind.unwrap_or_else(|| {
        let to = match map.map(|(order, _)| order) {
            None if cores.is_none() => Bind::Share,
            Some(Map::Domain) if cores.is_none() => Bind::Domain,
            Some(Map::Package) if cores.is_none() => Bind::Package,
            _ => Bind::Core,
        };
        (to, false)
    });
    Told { policy: Policy { bind, map: order, cores, overload, pinned: false }, explicit }
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
        assert_eq!(map("slot:PE=2"), Some((Map::Core, Some(2))));
        assert_eq!(map(":OVERSUBSCRIBE"), Some((Map::Core, None)));
        assert_eq!(map("numa"), Some((Map::Domain, None)));
        assert_eq!((map("ppr:2:node"), map("slot:PE=0"), map("slot:pe=x")), (None, None, None));
    }

    #[test]
    fn an_order_alone_binds_to_what_it_counts() {
        let of = |map: &str| policy(None, super::map(map), None).policy.bind;
        assert_eq!(
            [of("core"), of("numa"), of("socket"), of("numa:PE=2")],
            [Bind::Core, Bind::Domain, Bind::Package, Bind::Core]
        );
        let told = policy(None, None, Some(2));
        assert_eq!(
            (told.policy.bind, told.policy.map, told.policy.cores, told.explicit),
            (Bind::Core, Map::Core, Some(2), true)
        );
        assert_eq!(policy(None, None, None), Told { policy: Policy::DEFAULT, explicit: false });
        assert_eq!(policy(bind("none"), map("numa"), None).policy.bind, Bind::None);
    }
}
