//! Named places at which tests inject failures. In a job of a user none is armed, and a place costs two loads.
//!
//! `FT_GATE` is a list of `name[:rank[:nth[:mark]]]`, separated by commas; rank `*` is any. When a process reaches an armed
//! place for the nth time (for some places: with that number, as a checkpoint's version, or a greater one) it writes its pid to
//! `$FT_GATE_DIR/<name>.<rank or ->`, which must not exist yet (each place stops one process once per job), and, unless it only
//! marks, waits for `<that file>.go` for at most a minute.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Gate {
    name: String,
    rank: Option<u32>,
    nth: u32,
    mark: bool,
}

impl Gate {
    fn parse(text: &str) -> Option<Gate> {
        let mut parts = text.trim().split(':');
        let name = parts.next().filter(|name| !name.is_empty())?.to_string();
        let rank = match parts.next() {
            None | Some("*" | "") => None,
            Some(rank) => Some(rank.parse().ok()?),
        };
        let nth = parts.next().map_or(Some(1), |nth| nth.parse().ok())?;
        Some(Gate { name, rank, nth, mark: parts.next() == Some("mark") })
    }

    fn concerns(&self, name: &str, rank: Option<u32>) -> bool {
        self.name == name && (self.rank.is_none() || self.rank == rank)
    }
}

struct Armed {
    gates: Vec<Gate>,
    directory: PathBuf,
    hits: Mutex<HashMap<usize, u32>>,
}

impl Armed {
    fn stand(&self, name: &str, rank: Option<u32>, mark: bool) {
        let rank = rank.map_or_else(|| "-".to_string(), |rank| rank.to_string());
        stand(&self.directory.join(format!("{name}.{rank}")), mark, PATIENCE);
    }
}

fn armed() -> Option<&'static Armed> {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    ARMED
        .get_or_init(|| {
            let gates: Vec<Gate> = std::env::var("FT_GATE").ok()?.split(',').filter_map(Gate::parse).collect();
            let directory = PathBuf::from(std::env::var_os("FT_GATE_DIR")?);
            (!gates.is_empty()).then(|| Armed { gates, directory, hits: Mutex::new(HashMap::new()) })
        })
        .as_ref()
}

type Ear = Box<dyn Fn(&str, Option<u32>) + Send + Sync>;

/// Who wants to know when this process is at a place.
static EAR: OnceLock<Ear> = OnceLock::new();

/// Calls this from now on whenever the process has been at a place; only the first who asks for it is called.
pub fn listen(ear: impl Fn(&str, Option<u32>) + Send + Sync + 'static) {
    let _ = EAR.set(Box::new(ear));
}

/// The process is at the place `name`, as `rank` if it is one.
pub fn reach(name: &str, rank: Option<u32>) {
    stop(name, rank);
    if let Some(ear) = EAR.get() {
        ear(name, rank);
    }
}

fn stop(name: &str, rank: Option<u32>) {
    let Some(armed) = armed() else { return };
    for (index, gate) in armed.gates.iter().enumerate().filter(|(_, gate)| gate.concerns(name, rank)) {
        let mut hits = armed.hits.lock().unwrap_or_else(PoisonError::into_inner);
        let hit = hits.entry(index).or_default();
        *hit += 1;
        let here = *hit == gate.nth;
        drop(hits);
        if here {
            armed.stand(name, rank, gate.mark);
        }
    }
}

/// The process is at the place `name` with `number`, which is no count: the gate's nth is the least number that is meant.
pub fn reach_with(name: &str, rank: Option<u32>, number: u64) {
    let Some(armed) = armed() else { return };
    for gate in armed.gates.iter().filter(|gate| gate.concerns(name, rank) && number >= u64::from(gate.nth)) {
        armed.stand(name, rank, gate.mark);
    }
}

fn stand(file: &Path, mark: bool, patience: Duration) {
    // Written under another name first, so that who sees the file sees the pid.
    let with = |suffix: &str| PathBuf::from([file.as_os_str(), ".".as_ref(), suffix.as_ref()].join(OsStr::new("")));
    let draft = with(&std::process::id().to_string());
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&draft)
        .and_then(|mut draft| writeln!(draft, "{}", std::process::id()))
        .and_then(|()| std::fs::hard_link(&draft, file));
    let _ = std::fs::remove_file(&draft);
    if written.is_err() || mark {
        return;
    }
    let until = Instant::now() + patience;
    while !with("go").exists() {
        if Instant::now() >= until {
            let _ = std::fs::write(with("timeout"), "");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_with_their_defaults() {
        let gate = |name: &str, rank, nth, mark| Some(Gate { name: name.into(), rank, nth, mark });
        assert_eq!(Gate::parse("a.b"), gate("a.b", None, 1, false));
        assert_eq!(Gate::parse("a.b:3:2:mark"), gate("a.b", Some(3), 2, true));
        assert_eq!(Gate::parse("a.b:*:4"), gate("a.b", None, 4, false));
        assert_eq!(Gate::parse("a.b:x"), None);
        assert!(gate("a", Some(1), 1, false).is_some_and(|g| g.concerns("a", Some(1)) && !g.concerns("a", None)));
    }

    #[test]
    fn a_place_stops_one_process_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("place.0");
        stand(&file, false, Duration::ZERO);
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), std::process::id().to_string());
        assert!(directory.path().join("place.0.timeout").exists());
        stand(&file, false, Duration::from_secs(600));
    }
}
