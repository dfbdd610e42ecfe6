//! What a daemon leaves for the one after it: which node this is, and its lease in etcd. It lies on a disk; beside the control socket,
//! where a restart of the machine leaves nothing, lies the mark by which the next daemon knows that it is the same life of the machine.

use ft_store::LeaseId;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The kernel's: another one after each start of it.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// So many former lives are remembered: a machine that starts again and again has them all within one lease.
const LIVES: usize = 16;
/// Gives another name each time.
const NAMES: &str = "/proc/sys/kernel/random/uuid";

/// It cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("what this node must remember cannot be kept in {}: {error}", path.display())]
pub struct MemoryError {
    path: PathBuf,
    error: io::Error,
}

/// Which node this is.
#[derive(Debug)]
pub struct Memory {
    file: PathBuf,
    key: String,
    boot: String,
    /// This node, since the machine started.
    pub id: String,
    /// The nodes that this machine was before it started anew, the newest last, one of which may have its key still. Until this one has it.
    pub former: Vec<String>,
    /// Its lease, if it has one.
    pub lease: Option<LeaseId>,
}

impl Memory {
    /// What the daemon before this one has left: in `state`, and beside the `socket`. `key` is the node's in etcd.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open(state: &Path, socket: &Path, key: &str) -> Result<Memory, MemoryError> {
        let mark = mark(socket);
        let file = state.join("node.toml");
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| MemoryError { path, error }
        };
        let line = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_string());
        let boot = line(BOOT).map_err(failed(Path::new(BOOT)))?;
        let old = match std::fs::read_to_string(&file) {
            Ok(text) => Left::read(&text).or_else(|| {
                tracing::warn!("{} cannot be understood: this is a new node", file.display());
                None
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&file)(error)),
        };
        let marked = std::fs::read_to_string(&mark).unwrap_or_default();
        if let Some(left) = &old
            && left.key == key
            && left.boot == boot
            && left.id == marked.trim()
        {
            let Left { id, lease, former, .. } = left.clone();
            return Ok(Memory { file, key: key.into(), boot, id, former, lease });
        }
        let id = line(NAMES).map_err(failed(Path::new(NAMES)))?;
        let former = old.filter(|left| left.key == key).map(Left::lives).unwrap_or_default();
        let memory = Memory { file, key: key.into(), boot, id, former, lease: None };
        memory.save()?;
        // Last: without it, what was saved is another life's.
        replace(&mark, &format!("{}\n", memory.id)).map_err(failed(&mark))?;
        Ok(memory)
    }

    /// The node's key is this life's: those before it have nothing any more.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn forget_former(&mut self) -> Result<(), MemoryError> {
        if std::mem::take(&mut self.former).is_empty() { Ok(()) } else { self.save() }
    }

    /// From now on this is its lease.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn keep(&mut self, lease: Option<LeaseId>) -> Result<(), MemoryError> {
        self.lease = lease;
        self.save()
    }

    fn save(&self) -> Result<(), MemoryError> {
        // No value needs a quotation mark of its own: they are keys and names that were checked.
        let former: Vec<String> = self.former.iter().map(|id| format!("\"{id}\"")).collect();
        let text = format!(
            "# ftd's own: which node this is, and its lease in etcd.\nkey = \"{}\"\nid = \"{}\"\nboot = \"{}\"\nlease = {}\nformer = [{}]\n",
            self.key,
            self.id,
            self.boot,
            self.lease.map_or(0, |lease| lease.0),
            former.join(", ")
        );
        replace(&self.file, &text).map_err(|error| MemoryError { path: self.file.clone(), error })
    }
}

/// Which node this is since the machine started, as the daemon has it; nothing, where that has not begun.
pub fn life(socket: &Path) -> Option<String> {
    let id = std::fs::read_to_string(mark(socket)).ok()?;
    Some(id.trim().to_string()).filter(|id| !id.is_empty())
}

fn mark(socket: &Path) -> PathBuf {
    PathBuf::from([socket.as_os_str(), ".node".as_ref()].join(std::ffi::OsStr::new("")))
}

/// What stands in the file.
#[derive(Clone)]
struct Left {
    key: String,
    id: String,
    boot: String,
    lease: Option<LeaseId>,
    former: Vec<String>,
}

impl Left {
    /// Itself, if it can have had the key, and those before it.
    fn lives(mut self) -> Vec<String> {
        if self.lease.is_some() {
            self.former.push(self.id);
        }
        // The first one had the key when they were forgotten last.
        while self.former.len() > LIVES {
            self.former.remove(1);
        }
        self.former
    }

    fn read(text: &str) -> Option<Left> {
        let table = DeTable::parse(text).ok()?;
        let word = |name: &str| match table.get_ref().get(name)?.get_ref() {
            DeValue::String(text) if !text.is_empty() => Some(text.to_string()),
            _ => None,
        };
        let lease = match table.get_ref().get("lease")?.get_ref() {
            DeValue::Integer(number) => number.as_str().parse().ok()?,
            _ => return None,
        };
        let lease = (lease != 0).then_some(LeaseId(lease));
        let lives = match table.get_ref().get("former").map(|former| former.get_ref()) {
            Some(DeValue::Array(lives)) => lives.iter().filter_map(|life| life.get_ref().as_str()).collect(),
            // A release before this one has written it.
            _ => Vec::new(),
        };
        let former = lives.into_iter().map(String::from).collect();
        Some(Left { key: word("key")?, id: word("id")?, boot: word("boot")?, lease, former })
    }
}

/// Writes a file whole or not at all, whatever happens meanwhile.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = PathBuf::from([path.as_os_str(), ".new".as_ref()].join(std::ffi::OsStr::new("")));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_daemon_is_the_same_node_and_a_restarted_machine_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let (state, run) = (directory.path().join("state"), directory.path().join("run"));
        std::fs::create_dir(&state).unwrap();
        std::fs::create_dir(&run).unwrap();
        let open = |key| Memory::open(&state, &run.join("sock"), key).unwrap();
        let mut first = open("/ftd/nodes/a");
        assert!(first.lease.is_none() && first.former.is_empty());
        first.keep(Some(LeaseId(77))).unwrap();
        let again = open("/ftd/nodes/a");
        assert_eq!((again.id.as_str(), again.lease), (first.id.as_str(), Some(LeaseId(77))));
        // What /run had is gone.
        std::fs::remove_file(run.join("sock.node")).unwrap();
        let reborn = open("/ftd/nodes/a");
        assert!(reborn.id != first.id && reborn.lease.is_none() && reborn.former == [first.id.clone()], "{reborn:?}");
        // Another daemon of this life, and other lives, of which the first had a lease and perhaps the key.
        let mut reborn = open("/ftd/nodes/a");
        assert_eq!(reborn.former, [first.id.clone()]);
        reborn.keep(Some(LeaseId(78))).unwrap();
        let lives = [first.id.clone(), reborn.id.clone()];
        for _ in 0..2 {
            std::fs::remove_file(run.join("sock.node")).unwrap();
            reborn = open("/ftd/nodes/a");
            assert_eq!(reborn.former, lives);
        }
        reborn.forget_former().unwrap();
        assert!(open("/ftd/nodes/a").former.is_empty());
        // Another name is another node, which was nothing before.
        let renamed = open("/ftd/nodes/b");
        assert!(renamed.id != reborn.id && renamed.former.is_empty() && renamed.lease.is_none());
        // Another kernel's, with a /run that lasts.
        let text = std::fs::read_to_string(state.join("node.toml")).unwrap();
        std::fs::write(state.join("node.toml"), text.replace(&renamed.boot, "0000-before")).unwrap();
        assert!(open("/ftd/nodes/b").former.is_empty(), "it had no lease");
        std::fs::write(state.join("node.toml"), "lease = ").unwrap();
        assert!(open("/ftd/nodes/b").former.is_empty());
    }
}
