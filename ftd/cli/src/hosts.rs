//! The nodes of a job, as the user names them: `--hosts a,b:4` or a file of lines `a slots=4`.

use ft_wire::part::Host;
use std::path::{Path, PathBuf};

/// Where the nodes stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// In the command line.
    List(Vec<Named>),
    /// In a file.
    File(PathBuf),
}

/// A node, and its slots if they are said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    name: String,
    slots: Option<u32>,
}

/// What is wrong with the nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    /// The file cannot be read.
    #[error("the hostfile {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: String,
    },
    /// A line of it is none.
    #[error("the hostfile {}, line {line}: '{text}' is not a node's name, perhaps with :N or slots=N behind it", path.display())]
    Line {
        /// In which file.
        path: PathBuf,
        /// Its number.
        line: usize,
        /// The line.
        text: String,
    },
    /// It names nobody.
    #[error("the hostfile {} names no node", .0.display())]
    Nobody(PathBuf),
    /// The ranks do not fit.
    #[error(
        "-n {ranks} needs as many slots, and the nodes have {slots} ({}{}): give them more (name:slots), or name more nodes",
        say(hosts),
        beside(*spares)
    )]
    TooFew {
        /// Number of ranks.
        ranks: u32,
        /// Slots of all nodes.
        slots: u64,
        /// The nodes.
        hosts: Vec<Host>,
        /// How many further nodes are spare.
        spares: u32,
    },
    /// There is no node for the ranks.
    #[error(
        "--ft-spares={spares}: of the nodes ({nodes}) one at least has to hold ranks: name more, or fewer spare ones"
    )]
    AllSpare {
        /// How many are to be spare.
        spares: u32,
        /// The nodes.
        nodes: String,
    },
}

fn beside(spares: u32) -> String {
    if spares == 0 { String::new() } else { format!(", beside {spares} spare (--ft-spares)") }
}

fn say(hosts: &[Host]) -> String {
    let each: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, host.slots)).collect();
    each.join(",")
}

impl Hosts {
    /// Reads a list. `None` when it is none.
    pub fn list(text: &str) -> Option<Hosts> {
        let named = |part: &str| match part.split_once(':') {
            None => Named::of(part, None),
            Some((name, slots)) => Named::of(name, Some(slots)),
        };
        text.split(',').map(|part| named(part.trim())).collect::<Option<_>>().map(Hosts::List)
    }

    fn named(&self) -> Result<Vec<Named>, HostsError> {
        match self {
            Hosts::List(named) => Ok(merged(named.clone())),
            Hosts::File(path) => Ok(merged(read(path)?)),
        }
    }

    /// What people are to be told of a list, which is typed: a node that stands there twice may be another one's place. (Files of batch systems
    /// have a line for each slot.)
    pub fn notes(&self) -> Vec<String> {
        let Hosts::List(list) = self else { return Vec::new() };
        let again = |node: &Named| list.iter().filter(|other| other.name == node.name).count() > 1;
        let told = |Named { name, slots }: Named| {
            let slots = slots.unwrap_or(1);
            format!(
                "--hosts names {name} more than once, which gives it {slots} slots, as {name}:{slots} does without this word"
            )
        };
        let nodes = merged(list.clone());
        nodes.into_iter().filter(again).map(told).collect()
    }

    /// The slots of all of them, with so many where the user says nothing.
    ///
    /// # Errors
    /// One sentence.
    pub fn slots(&self, each: u32) -> Result<u32, HostsError> {
        Ok(self.named()?.iter().fold(0, |all: u32, node| all.saturating_add(node.slots.unwrap_or(each))))
    }

    /// Whether one of them has the name that every machine has for itself, so that no daemon can be asked for it.
    ///
    /// # Errors
    /// One sentence.
    pub fn name_loopback(&self) -> Result<bool, HostsError> {
        Ok(self.named()?.iter().any(Named::is_loopback))
    }

    /// Whether they are all this machine, which calls itself so.
    ///
    /// # Errors
    /// One sentence.
    pub fn are_here(&self, host: &str) -> Result<bool, HostsError> {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
        let is_name = |name: &str| {
            name.eq_ignore_ascii_case(host)
                || !(name.contains('.') && host.contains('.')) && short(name).eq_ignore_ascii_case(&short(host))
        };
        Ok(self.named()?.iter().all(|node| node.is_loopback() || is_name(&node.name)))
    }

    /// The nodes with their slots, for a job of so many ranks; `each`: those that say nothing have so many. What the user does not say at all is shared out: the ranks that the others
    /// leave, in blocks, and to each node one slot at least. The last ones are spare: those take nothing of that, and have as many slots as
    /// the node with the most, so that they can stand in for each.
    ///
    /// # Errors
    /// One sentence.
    pub fn share(&self, ranks: u32, spares: u32, each: Option<u32>) -> Result<Vec<Host>, HostsError> {
        let mut named = self.named()?;
        named.iter_mut().for_each(|node| node.slots = node.slots.or(each));
        let names = || named.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        let Some(first_spare @ 1..) = named.len().checked_sub(spares as usize) else {
            return Err(HostsError::AllSpare { spares, nodes: names() });
        };
        let spare = named.split_off(first_spare);
        let said: u64 = named.iter().filter_map(|node| node.slots).map(u64::from).sum();
        let open = named.iter().filter(|node| node.slots.is_none()).count() as u64;
        let left = u64::from(ranks).saturating_sub(said);
        let (each, more) = (left.checked_div(open).unwrap_or(0), left.checked_rem(open).unwrap_or(0));
        let mut nth = 0;
        let shared = named.into_iter().map(|Named { name, slots }| {
            let slots = slots.unwrap_or_else(|| {
                nth += 1;
                u32::try_from(each + u64::from(nth <= more)).unwrap_or(u32::MAX).max(1)
            });
            Host { name, slots }
        });
        let mut hosts: Vec<Host> = shared.collect();
        let slots = hosts.iter().map(|host| u64::from(host.slots)).sum();
        if slots < u64::from(ranks) {
            return Err(HostsError::TooFew { ranks, slots, hosts, spares });
        }
        let most = hosts.iter().map(|host| host.slots).max().unwrap_or(1);
        hosts.extend(spare.into_iter().map(|Named { name, slots }| Host { name, slots: slots.unwrap_or(most) }));
        Ok(hosts)
    }
}

impl Named {
    fn is_loopback(&self) -> bool {
        matches!(self.name.as_str(), "localhost" | "127.0.0.1")
    }

    fn of(name: &str, slots: Option<&str>) -> Option<Named> {
        let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
        let slots = match slots {
            None => None,
            Some(text) => Some(text.parse().ok().filter(|slots| (1..=65_536).contains(slots))?),
        };
        (letters && !name.is_empty()).then(|| Named { name: name.into(), slots })
    }
}

/// A node that is named again has the slots of both.
fn merged(named: Vec<Named>) -> Vec<Named> {
    let mut nodes: Vec<Named> = Vec::new();
    for one in named {
        match nodes.iter_mut().find(|node| node.name == one.name) {
            Some(node) => node.slots = Some(node.slots.unwrap_or(1).saturating_add(one.slots.unwrap_or(1))),
            None => nodes.push(one),
        }
    }
    nodes
}

fn read(path: &Path) -> Result<Vec<Named>, HostsError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| HostsError::File { path: path.into(), error: error.to_string() })?;
    let mut nodes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let Some((name, rest)) = words.split_first() else { continue };
        let node = line_of(name, rest);
        let wrong = || HostsError::Line { path: path.into(), line: number + 1, text: line.trim().into() };
        nodes.push(node.ok_or_else(wrong)?);
    }
    if nodes.is_empty() { Err(HostsError::Nobody(path.into())) } else { Ok(nodes) }
}

/// `NODE`, `NODE:SLOTS` or `NODE slots=N`; how many slots it has at the most, which others' files say too, does not matter here: ranks are
/// put beyond what it has on one machine alone, where the user has said so.
fn line_of(name: &str, rest: &[&str]) -> Option<Named> {
    let (name, mut slots) = name.split_once(':').map_or((name, None), |(name, slots)| (name, Some(slots)));
    for word in rest {
        match word.split_once('=')? {
            ("slots", number) if slots.is_none() => slots = Some(number),
            ("max_slots" | "max-slots", most) => drop(most.parse::<u32>().ok()?),
            _ => return None,
        }
    }
    Named::of(name, slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(list: &str, ranks: u32) -> String {
        shared_beside(list, ranks, 0)
    }

    fn shared_beside(list: &str, ranks: u32, spares: u32) -> String {
        Hosts::list(list)
            .unwrap()
            .share(ranks, spares, None)
            .map_or_else(|error| error.to_string(), |hosts| say(&hosts))
    }

    #[test]
    fn ranks_are_shared_out_in_blocks() {
        assert_eq!(shared("a,b", 4), "a:2,b:2");
        assert_eq!(shared("a,b,c", 7), "a:3,b:2,c:2");
        assert_eq!(shared("a,b:1,c", 4), "a:2,b:1,c:1");
        assert_eq!(shared("a:4,b:4", 4), "a:4,b:4");
        assert_eq!(shared("a,b", 1), "a:1,b:1");
        assert_eq!(shared("a,a,b", 3), "a:2,b:1");
        assert!(shared("a:1,b:2", 4).starts_with("-n 4 needs as many slots, and the nodes have 3 (a:1,b:2)"));
    }

    #[test]
    fn a_node_that_a_list_names_again_is_told() {
        let notes = |list: &str| Hosts::list(list).unwrap().notes();
        assert_eq!(notes("a,b:2"), Vec::<String>::new());
        let told = |name: &str, slots: u32| {
            format!(
                "--hosts names {name} more than once, which gives it {slots} slots, as {name}:{slots} does without this word"
            )
        };
        assert_eq!(notes("a,b,a:2,b,c"), [told("a", 3), told("b", 2)]);
        assert_eq!(Hosts::File("hosts".into()).notes(), Vec::<String>::new());
    }

    #[test]
    fn the_last_ones_are_spare_and_stand_in_for_the_largest() {
        assert_eq!(shared_beside("a,b,c", 4, 1), "a:2,b:2,c:2");
        assert_eq!(shared_beside("a,b,c,d", 3, 2), "a:2,b:1,c:2,d:2");
        assert_eq!(shared_beside("a:4,b:2,c:1", 6, 1), "a:4,b:2,c:1");
        let sentence = shared_beside("a:2,b:2,c:4", 5, 1);
        assert!(sentence.contains("the nodes have 4 (a:2,b:2, beside 1 spare (--ft-spares))"), "{sentence}");
        for spares in [2, 3, u32::MAX] {
            let sentence = shared_beside("a,b", 2, spares);
            assert!(
                sentence.starts_with(&format!("--ft-spares={spares}: of the nodes (a, b) one at least")),
                "{sentence}"
            );
        }
    }

    #[test]
    fn nodes_that_say_nothing_have_as_many_slots_as_each() {
        let hosts = Hosts::list("a,b:3,c").unwrap();
        assert_eq!((hosts.slots(1), hosts.slots(2)), (Ok(5), Ok(7)));
        assert_eq!(say(&hosts.share(4, 0, Some(2)).unwrap()), "a:2,b:3,c:2");
        assert!(hosts.share(8, 0, Some(2)).unwrap_err().to_string().contains("the nodes have 7"));
    }

    #[test]
    fn one_machine_has_several_names() {
        for (list, host, here) in [
            ("localhost:4", "vm", true),
            ("127.0.0.1,VM:2", "vm", true),
            ("vm.cluster", "vm", true),
            ("vm", "vm.cluster", true),
            ("vm.other", "vm.cluster", false),
            ("localhost,b", "vm", false),
        ] {
            let hosts = Hosts::list(list).unwrap();
            assert_eq!(hosts.are_here(host), Ok(here), "{list} on {host}");
            assert_eq!(hosts.name_loopback(), Ok(list.starts_with(['l', '1'])), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_none() {
        for text in ["", "a,,b", "a:0", "a:x", "a:", "a b", "/etc", "a:70000"] {
            assert_eq!(Hosts::list(text), None, "{text}");
        }
    }

    #[test]
    fn a_file_of_nodes_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        std::fs::write(&path, "# mine\na slots=2\n\n  b   # the other\na slots=1\n").unwrap();
        assert_eq!(say(&Hosts::File(path.clone()).share(5, 0, None).unwrap()), "a:3,b:2");
        let others = "# mpirun's\na slots=2 max_slots=4\n\nb:2  # mpiexec's\nb max-slots=4 slots=1\nc:1 max_slots=2\n";
        std::fs::write(&path, others).unwrap();
        assert_eq!(say(&Hosts::File(path.clone()).share(5, 0, None).unwrap()), "a:2,b:3,c:1");
        for wrong in ["a:2 slots=2", "a:x", "a:", "a slots=2 slots=3", "a max_slots=many", "a 2"] {
            std::fs::write(&path, format!("{wrong}\n")).unwrap();
            let sentence = Hosts::File(path.clone()).share(1, 0, None).unwrap_err().to_string();
            assert!(sentence.contains(&format!("line 1: '{wrong}' is not a node's name")), "{sentence}");
        }
        std::fs::write(&path, "a\nb slot=2\n").unwrap();
        let sentence = Hosts::File(path.clone()).share(2, 0, None).unwrap_err().to_string();
        assert!(sentence.contains("line 2: 'b slot=2' is not a node's name"), "{sentence}");
        std::fs::write(&path, "\n").unwrap();
        assert!(Hosts::File(path).share(2, 0, None).unwrap_err().to_string().ends_with("names no node"));
    }
}
