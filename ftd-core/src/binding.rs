//! Which processors each rank of a node may run on. The same ranks get the same ones whenever they are started.

use crate::count::counted;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A processor that the job may use, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// Its socket.
    pub package: u32,
    /// Its NUMA domain.
    pub domain: u32,
    /// Its core, by the lowest number of the core's processors.
    pub core: u32,
    /// The number by which the kernel calls it.
    pub number: u32,
}

/// What ranks are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bind {
    /// An equal share of the cores, that no other rank has; nothing where there are more ranks than cores.
    Share,
    /// Nothing.
    None,
    /// Cores.
    Core,
    /// A NUMA domain.
    Domain,
    /// A socket.
    Package,
}

/// Over what ranks are dealt. Each place has as many as the others, or one more, and the ranks of a place follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    /// What they are bound to, as Open MPI does; slots where a rank has several cores.
    Auto,
    /// Nothing: the next rank has the next cores, and the first ones again when all are taken.
    Slot,
    /// Cores.
    Core,
    /// NUMA domains.
    Domain,
    /// Sockets.
    Package,
}

/// How ranks are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// To what.
    pub bind: Bind,
    /// Over what they are dealt.
    pub map: Map,
    /// So many cores for each rank, if that is said.
    pub cores: Option<u32>,
    /// Ranks may share what they are bound to, but for those that have several cores each.
    pub overload: bool,
    /// The ranks' threads will bind themselves, each to a core of the rank's: who has no core of its own has one at least.
    pub pinned: bool,
}

impl Policy {
    /// What is done for those who say nothing.
    pub const DEFAULT: Policy =
        Policy { bind: Bind::Share, map: Map::Auto, cores: None, overload: false, pinned: false };
}

/// A policy that cannot be had with these processors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// There are not so many.
    #[error(
        "to bind {} to {each} each takes more than the {cores} that may be used here: bind fewer, or let ranks share them \
         (--bind-to {to}:overload-allowed), or bind none (--bind-to none)",
        counted(*ranks as u64, "rank")
    )]
    TooFew {
        /// How many there are of them.
        ranks: usize,
        /// What each of them needs.
        each: String,
        /// What there is.
        cores: String,
        /// What they are to be bound to.
        to: &'static str,
    },
    /// There are not so many with so many cores for each, which cannot be shared.
    #[error(
        "there is no room for {} with {}{}, none on two {places}, on the {cores} that may be used here: {}",
        counted(*ranks as u64, "rank"),
        counted(*each as u64, "core"),
        if *ranks == 1 { "" } else { " each" },
        if *ranks == 1 { "give it fewer cores" } else { "start fewer, or give each fewer cores" }
    )]
    TooLarge {
        /// How many ranks there are.
        ranks: usize,
        /// How many cores each of them is to have.
        each: usize,
        /// What a rank is within.
        places: &'static str,
        /// What there is.
        cores: String,
    },
}

fn cores(number: usize) -> String {
    counted(number as u64, "core")
}

/// The cores of some processors, in their order.
fn cores_of(processors: &[Processor]) -> Vec<Vec<Processor>> {
    let mut cores: Vec<Vec<Processor>> = Vec::new();
    for processor in processors {
        match cores.last_mut().filter(|core| core.first().is_some_and(|first| first.core == processor.core)) {
            Some(core) => core.push(*processor),
            None => cores.push(vec![*processor]),
        }
    }
    cores
}

/// Processors by what they have in common.
fn parts<K: Ord>(processors: &[Processor], of: impl Fn(&Processor) -> K) -> Vec<Vec<Processor>> {
    let mut parts: BTreeMap<K, Vec<Processor>> = BTreeMap::new();
    for processor in processors {
        parts.entry(of(processor)).or_default().push(*processor);
    }
    parts.into_values().collect()
}

fn domains(processors: &[Processor]) -> Vec<Vec<Processor>> {
    parts(processors, |processor| (processor.package, processor.domain))
}

fn packages(processors: &[Processor]) -> Vec<Vec<Processor>> {
    parts(processors, |processor| processor.package)
}

fn numbers<'a>(processors: impl IntoIterator<Item = &'a Processor>) -> Vec<u32> {
    let mut numbers: Vec<u32> = processors.into_iter().map(|processor| processor.number).collect();
    numbers.sort_unstable();
    numbers
}

/// For each of so many ranks of a node, in their order, the numbers of the processors that it may run on; none where it is not bound.
///
/// # Errors
/// The ranks need more than there is, and the user has said what they are to have.
pub fn assign(processors: &[Processor], policy: &Policy, ranks: usize) -> Result<Vec<Vec<u32>>, BindError> {
    let mut processors = processors.to_vec();
    processors.sort_unstable();
    processors.dedup();
    let unbound = vec![Vec::new(); ranks];
    if processors.is_empty() || ranks == 0 {
        return Ok(unbound);
    }
    match (policy.bind, policy.cores) {
        (Bind::None, _) => Ok(unbound),
        (Bind::Share, None) => Ok(shares(&processors, ranks, policy.pinned).unwrap_or(unbound)),
        (Bind::Share | Bind::Core, cores) => bound_to_cores(&processors, policy, ranks, cores.unwrap_or(1) as usize),
        (Bind::Domain, _) => bound_to_parts(&processors, policy, ranks, ("numa", domains)),
        (Bind::Package, _) => bound_to_parts(&processors, policy, ranks, ("socket", packages)),
    }
}

/// Equal and disjoint shares. No rank is on two NUMA domains where that costs it less than a quarter of its share, but where its share
/// is whole domains.
fn shares(processors: &[Processor], ranks: usize, pinned: bool) -> Option<Vec<Vec<u32>>> {
    let all = cores_of(processors);
    if ranks > all.len() {
        let shared = (0..ranks).map(|rank| numbers(&all[rank % all.len()]));
        return pinned.then(|| shared.collect());
    }
    let flat = all.len() / ranks;
    let domains: Vec<Vec<Vec<Processor>>> = domains(processors).iter().map(|domain| cores_of(domain)).collect();
    let is_enough = |share: usize| 4 * share >= 3 * flat;
    let together = domains.len() / ranks;
    let whole =
        domains.chunks(together.max(1)).take(ranks).map(|group| group.iter().map(Vec::len).sum::<usize>()).min();
    if together > 1 && whole.is_some_and(is_enough) {
        let size = whole.unwrap_or(flat);
        let groups = domains.chunks(together).take(ranks);
        return Some(groups.map(|group| numbers(group.iter().flatten().take(size).flatten())).collect());
    }
    let room = |share: usize| domains.iter().map(|domain| domain.len() / share).sum::<usize>();
    let inside = (1..=flat).rev().find(|share| room(*share) >= ranks).filter(|share| is_enough(*share));
    let Some(share) = inside else {
        return Some(all.chunks(flat).take(ranks).map(|share| numbers(share.iter().flatten())).collect());
    };
    let mut counts = vec![0; domains.len()];
    for _ in 0..ranks {
        let free = (0..domains.len()).filter(|at| counts[*at] < domains[*at].len() / share);
        if let Some(at) = free.min_by_key(|at| (counts[*at], *at)) {
            counts[at] += 1;
        }
    }
    let placed = domains.iter().zip(counts).flat_map(|(domain, count)| domain.chunks(share).take(count));
    Some(placed.map(|share| numbers(share.iter().flatten())).collect())
}

/// Over what the ranks are dealt.
fn dealt_over(policy: &Policy, each: usize) -> Map {
    match (policy.map, policy.bind) {
        (Map::Auto | Map::Core, _) if each > 1 => Map::Slot,
        (Map::Auto, Bind::Domain) => Map::Domain,
        (Map::Auto, Bind::Package) => Map::Package,
        (Map::Auto, _) => Map::Core,
        (map, _) => map,
    }
}

/// Where ranks go: each place with what its ranks have, one after the other. No rank is on two sockets.
fn places(processors: &[Processor], over: Map, each: usize) -> Vec<Vec<Vec<u32>>> {
    let within = |part: Vec<Processor>| -> Vec<Vec<u32>> {
        cores_of(&part).chunks_exact(each).map(|share| numbers(share.iter().flatten())).collect()
    };
    match over {
        Map::Slot | Map::Auto => vec![packages(processors).into_iter().flat_map(within).collect()],
        Map::Core => cores_of(processors).into_iter().map(within).collect(),
        Map::Domain => domains(processors).into_iter().map(within).collect(),
        Map::Package => packages(processors).into_iter().map(within).collect(),
    }
}

/// How many ranks each place has: one more in turn, where there is room; when there is none anywhere, all have it again.
fn deal(room: &[usize], ranks: usize) -> Vec<usize> {
    let (mut counts, mut taken, mut at) = (vec![0; room.len()], vec![0; room.len()], 0);
    for _ in 0..ranks {
        if taken.iter().zip(room).all(|(taken, room)| taken >= room) {
            taken.fill(0);
        }
        while taken[at] >= room[at] {
            at = (at + 1) % room.len();
        }
        counts[at] += 1;
        taken[at] += 1;
        at = (at + 1) % room.len();
    }
    counts
}

fn bound_to_cores(
    processors: &[Processor],
    policy: &Policy,
    ranks: usize,
    each: usize,
) -> Result<Vec<Vec<u32>>, BindError> {
    let over = dealt_over(policy, each);
    let places = places(processors, over, each);
    let room: Vec<usize> = places.iter().map(Vec::len).collect();
    let is_shared = policy.overload && each == 1;
    if ranks > room.iter().sum() && !is_shared {
        let there = cores(cores_of(processors).len());
        if each == 1 {
            return Err(BindError::TooFew { ranks, each: cores(each), cores: there, to: "core" });
        }
        let places = if over == Map::Domain { "NUMA domains" } else { "sockets" };
        return Err(BindError::TooLarge { ranks, each, places, cores: there });
    }
    let counts = deal(&room, ranks);
    let filled = places.iter().zip(counts).flat_map(|(place, count)| place.iter().cycle().take(count));
    Ok(filled.cloned().collect())
}

type Parts = fn(&[Processor]) -> Vec<Vec<Processor>>;

/// Each rank is bound to all of the domain, or the socket, where it goes.
fn bound_to_parts(
    processors: &[Processor],
    policy: &Policy,
    ranks: usize,
    (to, of): (&'static str, Parts),
) -> Result<Vec<Vec<u32>>, BindError> {
    let one = Policy { bind: Bind::Core, map: dealt_over(policy, 1), ..*policy };
    let named = |_| {
        let there = cores(cores_of(processors).len());
        BindError::TooFew { ranks, each: format!("a {to} with 1 core"), cores: there, to }
    };
    let first = bound_to_cores(processors, &one, ranks, 1).map_err(named)?;
    let parts: Vec<Vec<u32>> = of(processors).iter().map(numbers).collect();
    let around = |share: &Vec<u32>| parts.iter().find(|part| share.iter().all(|one| part.contains(one)));
    Ok(first.iter().map(|share| around(share).unwrap_or(share).clone()).collect())
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bind = match self.bind {
            Bind::Share => "share",
            Bind::None => "none",
            Bind::Core => "core",
            Bind::Domain => "numa",
            Bind::Package => "socket",
        };
        let map = match self.map {
            Map::Auto => "auto",
            Map::Slot => "slot",
            Map::Core => "core",
            Map::Domain => "numa",
            Map::Package => "socket",
        };
        let cores = self.cores.unwrap_or(0);
        write!(f, "{bind} {map} {cores} {} {}", u8::from(self.overload), u8::from(self.pinned))
    }
}

/// Words that are no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no policy of binding")]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let read = || {
            let mut words = text.split(' ');
            let bind = match words.next()? {
                "share" => Bind::Share,
                "none" => Bind::None,
                "core" => Bind::Core,
                "numa" => Bind::Domain,
                "socket" => Bind::Package,
                _ => return None,
            };
            let map = match words.next()? {
                "auto" => Map::Auto,
                "slot" => Map::Slot,
                "core" => Map::Core,
                "numa" => Map::Domain,
                "socket" => Map::Package,
                _ => return None,
            };
            let cores: u32 = words.next()?.parse().ok()?;
            let (overload, pinned) = (words.next()? == "1", words.next()? == "1");
            Some(Policy { bind, map, cores: (cores > 0).then_some(cores), overload, pinned })
        };
        read().ok_or_else(|| PolicyError(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many sockets, NUMA domains in each, cores in each, and hardware threads of a core, which the kernel numbers last.
    fn machine(packages: u32, domains: u32, cores: u32, threads: u32) -> Vec<Processor> {
        let all = packages * domains * cores;
        let mut processors = Vec::new();
        for number in 0..all * threads {
            let core = number % all;
            let domain = core / cores;
            processors.push(Processor { package: domain / domains, domain, core, number });
        }
        processors.sort_unstable();
        processors
    }

    fn shared(machine: &[Processor], ranks: usize) -> Vec<Vec<u32>> {
        assign(machine, &Policy::DEFAULT, ranks).unwrap()
    }

    fn lists(text: &[&[u32]]) -> Vec<Vec<u32>> {
        text.iter().map(|list| list.to_vec()).collect()
    }

    #[test]
    fn shares_are_equal_and_disjoint() {
        for machine in [machine(1, 1, 2, 1), machine(2, 1, 8, 2), machine(2, 4, 6, 1), machine(1, 1, 7, 2)] {
            let cores = cores_of(&machine).len();
            let threads = machine.len() / cores;
            for ranks in 1..=cores {
                let shares = shared(&machine, ranks);
                let mut all: Vec<u32> = shares.iter().flatten().copied().collect();
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                assert_eq!((shares.len(), all.len()), (ranks, count), "{ranks} of {cores}");
                assert!(shares.iter().all(|share| share.len() == shares[0].len() && !share.is_empty()));
                assert!(shares[0].len() * 4 >= cores / ranks * 3 * threads, "{ranks} of {cores}: {shares:?}");
                // A core is one rank's with all its hardware threads.
                for share in &shares {
                    let of = |number: &u32| machine.iter().find(|one| one.number == *number).unwrap().core;
                    let cores: Vec<u32> = share.iter().map(of).collect();
                    assert!(cores.iter().all(|core| cores.iter().filter(|other| *other == core).count() == threads));
                }
            }
            assert!(shared(&machine, cores + 1).iter().all(Vec::is_empty), "oversubscribed");
        }
    }

    #[test]
    fn shares_are_whole_domains_or_within_one() {
        let two = machine(2, 1, 4, 1);
        assert_eq!(shared(&two, 1), lists(&[&[0, 1, 2, 3, 4, 5, 6, 7]]));
        assert_eq!(shared(&two, 2), lists(&[&[0, 1, 2, 3], &[4, 5, 6, 7]]));
        assert_eq!(shared(&two, 4), lists(&[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]));
        assert_eq!(shared(&two, 3), lists(&[&[0, 1], &[2, 3], &[4, 5]]));
        let four = machine(2, 2, 4, 1);
        assert_eq!(shared(&four, 2), lists(&[&[0, 1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13, 14, 15]]));
        // Each domain has as many as the others, or one more.
        let six: Vec<u32> = shared(&four, 6).iter().map(|share| share[0] / 4).collect();
        assert_eq!(six, [0, 0, 1, 1, 2, 3]);
        // Within its domain a rank would lose a third.
        let five = shared(&machine(2, 1, 8, 1), 5);
        assert_eq!((five[2].as_slice(), five[4].as_slice()), (&[6, 7, 8][..], &[12, 13, 14][..]));
    }

    #[test]
    fn hardware_threads_belong_to_their_core() {
        assert_eq!(shared(&machine(1, 1, 2, 2), 2), lists(&[&[0, 2], &[1, 3]]));
        let core = Policy { bind: Bind::Core, ..Policy::DEFAULT };
        assert_eq!(assign(&machine(1, 1, 2, 2), &core, 2).unwrap(), lists(&[&[0, 2], &[1, 3]]));
    }

    #[test]
    fn only_what_may_be_used_is_shared_out() {
        let some: Vec<_> = machine(2, 1, 4, 1).into_iter().filter(|one| [1, 2, 3, 6].contains(&one.number)).collect();
        assert_eq!(shared(&some, 4), lists(&[&[1], &[2], &[3], &[6]]));
        assert_eq!(shared(&some, 2), lists(&[&[1, 2], &[3, 6]]));
        assert_eq!(assign(&[], &Policy::DEFAULT, 2).unwrap(), lists(&[&[], &[]]));
    }

    #[test]
    fn threads_that_bind_themselves_share_no_core_that_they_need_not_share() {
        let pinned = Policy { pinned: true, ..Policy::DEFAULT };
        let two = machine(1, 1, 2, 1);
        assert_eq!(assign(&two, &pinned, 2).unwrap(), lists(&[&[0], &[1]]));
        assert_eq!(assign(&two, &pinned, 4).unwrap(), lists(&[&[0], &[1], &[0], &[1]]));
    }

    #[test]
    fn explicit_policies_are_open_mpis() {
        let policy = |bind, map, cores| Policy { bind, map, cores, ..Policy::DEFAULT };
        let two = machine(1, 1, 2, 1);
        let auto = |bind, ranks| assign(&two, &policy(bind, Map::Auto, None), ranks);
        assert_eq!(auto(Bind::Core, 1).unwrap(), lists(&[&[0]]));
        assert_eq!(auto(Bind::Core, 2).unwrap(), lists(&[&[0], &[1]]));
        assert_eq!(auto(Bind::Domain, 2).unwrap(), lists(&[&[0, 1], &[0, 1]]));
        assert_eq!(auto(Bind::Package, 1).unwrap(), lists(&[&[0, 1]]));
        assert_eq!(auto(Bind::None, 4).unwrap(), lists(&[&[], &[], &[], &[]]));
        for bind in [Bind::Core, Bind::Domain, Bind::Package] {
            assert!(auto(bind, 4).is_err());
        }
        let sentence = auto(Bind::Core, 4).unwrap_err().to_string();
        assert!(sentence.starts_with("to bind 4 ranks to 1 core each takes more than the 2 cores"), "{sentence}");
        let over = |bind| Policy { overload: true, ..policy(bind, Map::Auto, None) };
        assert_eq!(assign(&two, &over(Bind::Core), 4).unwrap(), lists(&[&[0], &[0], &[1], &[1]]));
        assert_eq!(assign(&two, &over(Bind::Domain), 4).unwrap(), vec![vec![0, 1]; 4]);
        assert_eq!(assign(&two, &policy(Bind::Core, Map::Slot, Some(2)), 1).unwrap(), lists(&[&[0, 1]]));
        assert_eq!(assign(&two, &policy(Bind::Share, Map::Auto, Some(2)), 1).unwrap(), lists(&[&[0, 1]]));
        let several = |overload, cores, ranks| {
            assign(&two, &Policy { overload, ..policy(Bind::Core, Map::Slot, Some(cores)) }, ranks)
        };
        assert!(several(false, 2, 2).is_err() && several(false, 3, 1).is_err());
        let sentence = several(true, 2, 2).unwrap_err().to_string();
        assert!(
            sentence.starts_with("there is no room for 2 ranks with 2 cores each, none on two sockets, on the 2"),
            "{sentence}"
        );
    }

    /// Where each rank is, by the first of its processors; `-` where that is refused.
    fn first(machine: &[Processor], (bind, map, cores): (Bind, Map, u32), overload: bool, ranks: usize) -> String {
        let policy = Policy { bind, map, cores: (cores > 0).then_some(cores), overload, pinned: false };
        let word = |share: &Vec<u32>| share[0].to_string();
        assign(machine, &policy, ranks).map_or("-".into(), |all| all.iter().map(word).collect::<Vec<_>>().join(" "))
    }

    /// What mpirun 5.0.11 says with `HWLOC_SYNTHETIC="package:2 [numa] core:4 pu:1" --display map-devel --do-not-launch`.
    #[test]
    fn ranks_stand_where_mpirun_puts_them_on_two_sockets() {
        let machine = machine(2, 1, 4, 1);
        let core = |map, cores| (Bind::Core, map, cores);
        for (policy, of) in [
            (core(Map::Auto, 0), ["0", "0 1", "0 1 2", "0 1 2 3", "0 1 2 3 4", "0 1 2 3 4 5 6 7"]),
            (core(Map::Core, 0), ["0", "0 1", "0 1 2", "0 1 2 3", "0 1 2 3 4", "0 1 2 3 4 5 6 7"]),
            (core(Map::Slot, 0), ["0", "0 1", "0 1 2", "0 1 2 3", "0 1 2 3 4", "0 1 2 3 4 5 6 7"]),
            (core(Map::Domain, 0), ["0", "0 4", "0 1 4", "0 1 4 5", "0 1 2 4 5", "0 1 2 3 4 5 6 7"]),
            (core(Map::Package, 0), ["0", "0 4", "0 1 4", "0 1 4 5", "0 1 2 4 5", "0 1 2 3 4 5 6 7"]),
            ((Bind::Domain, Map::Auto, 0), ["0", "0 4", "0 0 4", "0 0 4 4", "0 0 0 4 4", "0 0 0 0 4 4 4 4"]),
            ((Bind::Domain, Map::Slot, 0), ["0", "0 0", "0 0 0", "0 0 0 0", "0 0 0 0 4", "0 0 0 0 4 4 4 4"]),
            ((Bind::Package, Map::Auto, 0), ["0", "0 4", "0 0 4", "0 0 4 4", "0 0 0 4 4", "0 0 0 0 4 4 4 4"]),
            (core(Map::Auto, 1), ["0", "0 1", "0 1 2", "0 1 2 3", "0 1 2 3 4", "0 1 2 3 4 5 6 7"]),
            (core(Map::Auto, 2), ["0", "0 2", "0 2 4", "0 2 4 6", "-", "-"]),
            (core(Map::Slot, 2), ["0", "0 2", "0 2 4", "0 2 4 6", "-", "-"]),
            (core(Map::Domain, 2), ["0", "0 4", "0 2 4", "0 2 4 6", "-", "-"]),
            (core(Map::Package, 2), ["0", "0 4", "0 2 4", "0 2 4 6", "-", "-"]),
            // No rank is on two sockets.
            (core(Map::Slot, 3), ["0", "0 4", "-", "-", "-", "-"]),
            (core(Map::Domain, 3), ["0", "0 4", "-", "-", "-", "-"]),
            (core(Map::Slot, 5), ["-", "-", "-", "-", "-", "-"]),
        ] {
            let found = [1, 2, 3, 4, 5, 8].map(|ranks| first(&machine, policy, false, ranks));
            assert_eq!(found, of, "{policy:?}");
        }
    }

    /// The same with `"package:2 [numa] core:2 pu:1"`, OVERSUBSCRIBE and overload-allowed.
    #[test]
    fn ranks_share_what_mpirun_lets_them_share() {
        let machine = machine(2, 1, 2, 1);
        let numa = ["0 0 2", "0 0 0 2 2", "0 0 0 2 2 2", "0 0 0 0 2 2 2", "0 0 0 0 0 2 2 2 2"];
        let core = ["0 1 2", "0 0 1 2 3", "0 0 1 1 2 3", "0 0 1 1 2 2 3", "0 0 0 1 1 2 2 3 3"];
        for (bind, map, of) in [
            (Bind::Core, Map::Auto, core),
            (Bind::Core, Map::Core, core),
            (Bind::Core, Map::Domain, ["0 1 2", "0 1 0 2 3", "0 1 0 2 3 2", "0 1 0 1 2 3 2", "0 1 0 1 0 2 3 2 3"]),
            (Bind::Core, Map::Slot, ["0 1 2", "0 1 2 3 0", "0 1 2 3 0 1", "0 1 2 3 0 1 2", "0 1 2 3 0 1 2 3 0"]),
            (Bind::Domain, Map::Auto, numa),
            (Bind::Domain, Map::Domain, numa),
            (Bind::Domain, Map::Slot, ["0 0 2", "0 0 2 2 0", "0 0 2 2 0 0", "0 0 2 2 0 0 2", "0 0 2 2 0 0 2 2 0"]),
        ] {
            let found = [3, 5, 6, 7, 9].map(|ranks| first(&machine, (bind, map, 0), true, ranks));
            assert_eq!(found, of, "{bind:?} {map:?}");
        }
    }

    /// The same with `"package:2 group:2 [numa] core:2 pu:1"`.
    #[test]
    fn ranks_stand_where_mpirun_puts_them_on_four_domains() {
        let machine = machine(2, 2, 2, 1);
        for (policy, of) in [
            ((Bind::Domain, Map::Auto, 0), ["0", "0 2", "0 2 4", "0 0 2 4 6", "0 0 2 2 4 4 6 6"]),
            ((Bind::Package, Map::Auto, 0), ["0", "0 4", "0 0 4", "0 0 0 4 4", "0 0 0 0 4 4 4 4"]),
            ((Bind::Domain, Map::Package, 0), ["0", "0 4", "0 0 4", "0 0 2 4 4", "0 0 2 2 4 4 6 6"]),
            ((Bind::Package, Map::Slot, 0), ["0", "0 0", "0 0 0", "0 0 0 0 4", "0 0 0 0 4 4 4 4"]),
            ((Bind::Core, Map::Domain, 0), ["0", "0 2", "0 2 4", "0 1 2 4 6", "0 1 2 3 4 5 6 7"]),
            ((Bind::Core, Map::Package, 0), ["0", "0 4", "0 1 4", "0 1 2 4 5", "0 1 2 3 4 5 6 7"]),
            ((Bind::Domain, Map::Slot, 0), ["0", "0 0", "0 0 2", "0 0 2 2 4", "0 0 2 2 4 4 6 6"]),
            ((Bind::Core, Map::Package, 2), ["0", "0 4", "0 2 4", "-", "-"]),
            ((Bind::Core, Map::Slot, 3), ["0", "0 4", "-", "-", "-"]),
        ] {
            let found = [1, 2, 3, 5, 8].map(|ranks| first(&machine, policy, false, ranks));
            assert_eq!(found, of, "{policy:?}");
        }
        let three = Policy { bind: Bind::Core, map: Map::Slot, cores: Some(3), ..Policy::DEFAULT };
        assert_eq!(assign(&machine, &three, 2).unwrap(), lists(&[&[0, 1, 2], &[4, 5, 6]]));
    }

    #[test]
    fn a_policy_comes_back_as_it_was() {
        for bind in [Bind::Share, Bind::None, Bind::Core, Bind::Domain, Bind::Package] {
            for (map, cores) in [
                (Map::Auto, None),
                (Map::Slot, Some(3)),
                (Map::Core, None),
                (Map::Domain, None),
                (Map::Package, Some(1)),
            ] {
                for (overload, pinned) in [(false, true), (true, false)] {
                    let policy = Policy { bind, map, cores, overload, pinned };
                    assert_eq!(policy.to_string().parse(), Ok(policy));
                }
            }
        }
        assert!("core".parse::<Policy>().is_err() && "x auto 0 0 0".parse::<Policy>().is_err());
    }
}
