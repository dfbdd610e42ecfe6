//! The machine's processors: where each one that this process may use is, as `/sys` tells it.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// Its socket.
    pub package: u32,
    /// Its NUMA domain.
    pub domain: u32,
    /// The lowest number of its core's processors.
    pub core: u32,
    /// The number by which the kernel calls it.
    pub number: u32,
}

/// The numbers of the processors that this process may use; none where the kernel does not say.
pub fn allowed() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    let all = (0..CpuSet::count()).filter(|number| set.is_set(*number).unwrap_or(false));
    all.filter_map(|number| u32::try_from(number).ok()).collect()
}

/// Where these processors are. What `/sys` does not tell counts as one socket, one domain, and cores of one processor.
pub fn of(allowed: &[u32]) -> Vec<Processor> {
    read(Path::new("/sys/devices/system"), allowed)
}

fn read(system: &Path, allowed: &[u32]) -> Vec<Processor> {
    let domains = domains(&system.join("node"));
    // A core is asked about once, with all its processors.
    let mut known: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for number in allowed {
        if known.contains_key(number) {
            continue;
        }
        let topology = system.join(format!("cpu/cpu{number}/topology"));
        let text = |name: &str| fs::read_to_string(topology.join(name)).ok();
        let siblings = text("core_cpus_list").or_else(|| text("thread_siblings_list"));
        let siblings = siblings.map(|text| list(&text)).filter(|list| list.contains(number)).unwrap_or(vec![*number]);
        let package = text("physical_package_id").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let core = siblings.iter().min().copied().unwrap_or(*number);
        known.extend(siblings.into_iter().map(|sibling| (sibling, (core, package))));
    }
    let place = |number: &u32| {
        let (core, package) = known.get(number).copied().unwrap_or((*number, 0));
        let domain = domains.get(number).copied().unwrap_or(0);
        Processor { package, domain, core, number: *number }
    };
    allowed.iter().map(place).collect()
}

/// The NUMA domain of each processor.
fn domains(directory: &Path) -> BTreeMap<u32, u32> {
    let mut domains = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        if let Some((number, text)) = number.zip(fs::read_to_string(entry.path().join("cpulist")).ok()) {
            domains.extend(list(&text).into_iter().map(|processor| (processor, number)));
        }
    }
    domains
}

/// A list as the kernel writes it: `0-3,8`. What is none is empty.
pub fn list(text: &str) -> Vec<u32> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(part).flatten().take(1 << 16).collect()
}

/// The same, written.
pub fn text(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text_of, numbers) in [("0-3,8", vec![0, 1, 2, 3, 8]), ("5", vec![5]), ("0,2-3", vec![0, 2, 3])] {
            assert_eq!((list(&format!("{text_of}\n")), text(&numbers)), (numbers, text_of.to_string()));
        }
        assert!(list("").is_empty() && list("x-y").is_empty() && text(&[]).is_empty());
    }

    #[test]
    fn this_machine_is_as_it_says() {
        let allowed = allowed();
        let found = of(&allowed);
        assert!(!found.is_empty() && found.iter().map(|one| one.number).eq(allowed));
        assert!(found.iter().all(|one| one.core <= one.number));
    }

    #[test]
    fn hardware_threads_sockets_and_domains_are_told_apart() {
        let system = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (number, siblings, package) in [(0, "0,4", 0), (1, "1,5", 0), (2, "2,6", 1), (3, "3,7", 1)] {
            for number in [number, number + 4] {
                write(&format!("cpu/cpu{number}/topology/core_cpus_list"), &format!("{siblings}\n"));
                write(&format!("cpu/cpu{number}/topology/physical_package_id"), &format!("{package}\n"));
            }
        }
        write("node/node0/cpulist", "0-1,4-5\n");
        write("node/node1/cpulist", "2-3,6-7\n");
        write("node/online", "0-1\n");
        let places: Vec<_> = read(system.path(), &[1, 2, 5, 6, 9])
            .into_iter()
            .map(|one| (one.number, one.core, one.package, one.domain))
            .collect();
        assert_eq!(places, [(1, 1, 0, 0), (2, 2, 1, 1), (5, 1, 0, 0), (6, 2, 1, 1), (9, 9, 0, 0)]);
    }
}
