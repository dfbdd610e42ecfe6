//! What a job's launcher is served with, in a file beside the control socket: whoever serves it next, because this process has died, reads it
//! there. It is root's alone, as what stands in it is: where the links' other ends are, and the job's secret.

use crate::config::Config;
use crate::dial::Way;
use crate::state::file_name;
use ft_wire::cluster::Cluster;
use ft_wire::part::{Host, Start};
use serde::{Deserialize, Serialize};
use std::fs::{DirEntry, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is older was written by a process that another one has followed, or nobody.
const OLD: Duration = Duration::from_secs(60);

/// A link to a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number.
    pub number: u64,
    /// Where the node's daemon is.
    pub way: Way,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The process that serves the launcher.
    by: u32,
    /// The launcher's process; 0 where it cannot be seen.
    launcher: i32,
    /// Nodes may come back.
    pub survives: bool,
    /// What a part is asked for with, but for whose it is.
    pub any: Start,
    /// As all nodes know it, with those that have come back, and what nobody else knows.
    pub cluster: Option<Cluster>,
    /// Nodes as the user names them, by number.
    pub hosts: Vec<Host>,
    /// The links to their parts, by number.
    pub links: Vec<Link>,
}

impl Kept {
    /// Of a job that begins, for the launcher of that number.
    pub fn new(launcher: i32, survives: bool, any: Start, cluster: Option<Cluster>) -> Kept {
        let by = std::process::id();
        Kept { by, launcher, survives, any, cluster, hosts: Vec::new(), links: Vec::new() }
    }

    /// Takes over the job of that name, of which the launcher knows so many nodes. Nothing, where it is none of this user's.
    pub fn take_over(config: &Config, job: &str, (uid, launcher): (u32, i32), nodes: usize) -> Option<Kept> {
        let mut kept = read(&path(config, job)?)?;
        if kept.any.uid != uid || kept.any.share.job != job || kept.hosts.len() < nodes || nodes == 0 {
            return None;
        }
        kept.hosts.truncate(nodes);
        kept.links.truncate(nodes);
        kept.cluster.iter_mut().for_each(|cluster| cluster.nodes.truncate(nodes));
        (kept.by, kept.launcher) = (std::process::id(), launcher);
        Some(kept)
    }

    /// Writes it down, in the place of what stood there.
    ///
    /// # Errors
    /// What the system says: the one that stood there is there still.
    pub fn write(&self, config: &Config) -> io::Result<()> {
        let named = || io::Error::other(format!("'{}' is no job's name", self.any.share.job.escape_debug()));
        let path = path(config, &self.any.share.job).ok_or_else(named)?;
        if let Some(directory) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let bytes = ft_wire::encode(self, 0).map_err(io::Error::other)?;
        let new = path.with_file_name(format!(".{}", self.by));
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            std::fs::rename(&new, &path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    /// The job is over, unless another process serves its launcher by now.
    pub fn remove(&self, config: &Config) {
        if let Some(path) = path(config, &self.any.share.job).filter(|_| self.is_own(config)) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Whether the process that has written this serves the launcher still, as far as that can be read.
    pub fn is_own(&self, config: &Config) -> bool {
        let there = path(config, &self.any.share.job).and_then(|path| read(&path));
        there.is_none_or(|kept| kept.by == self.by || is_gone(kept.by.cast_signed()))
    }

    /// Whether the launcher has ended; nothing where it cannot be seen.
    pub fn launcher_is_gone(&self) -> Option<bool> {
        (self.launcher != 0).then(|| is_gone(self.launcher))
    }
}

fn is_gone(pid: i32) -> bool {
    match ft_sys::process::condition(pid) {
        Some(condition) => matches!(condition.state, 'Z' | 'X'),
        // It may be that this process has no descriptor left to read with.
        None => !Path::new(&format!("/proc/{pid}")).exists(),
    }
}

/// Removes what is kept of jobs whose launchers are gone, and with them who would have removed it.
pub fn sweep(config: &Config) {
    for file in std::fs::read_dir(directory(config)).into_iter().flatten().flatten() {
        let name = file.file_name();
        let over = match name.to_str().and_then(|name| name.strip_prefix('.')) {
            // What was being written.
            Some(by) => by.parse().is_ok_and(is_gone),
            None => read(&file.path()).is_some_and(|kept| {
                // A launcher that cannot be seen has been served again by then, or is gone.
                let is_over = if kept.launcher == 0 { is_old(&file) } else { is_gone(kept.launcher) };
                is_over && is_gone(kept.by.cast_signed())
            }),
        };
        if over {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

fn is_old(file: &DirEntry) -> bool {
    let written = file.metadata().and_then(|data| data.modified());
    written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > OLD))
}

fn directory(config: &Config) -> PathBuf {
    config.socket().with_file_name("kept")
}

fn path(config: &Config, job: &str) -> Option<PathBuf> {
    Some(directory(config).join(file_name(job)?))
}

fn read(path: &Path) -> Option<Kept> {
    let bytes = std::fs::read(path).ok()?;
    ft_wire::decode(bytes.get(ft_wire::FRAME_HEADER..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::part::Share;
    use std::os::unix::fs::PermissionsExt;

    fn config(directory: &Path) -> Config {
        Config::of_text(&format!("[control]\nsocket = \"{}/ftd.sock\"\n", directory.display()), "node0")
    }

    fn kept(launcher: i32) -> Kept {
        let share = Share { job: "ftrun-node0-1".into(), me: 0, slots: 0, bind: None };
        let (from, to, user) = ("node0".into(), String::new(), "u".into());
        let any = Start { protocol: 7, from, to, uid: 1000, user, window: 9, share, link: 0 };
        let mut kept = Kept::new(launcher, true, any, None);
        for number in 0..3 {
            kept.hosts.push(Host { name: format!("node{number}"), slots: 1 });
            kept.links.push(Link { number, way: Way::At(vec![([198, 18, 0, 1], 9728).into()]) });
        }
        kept
    }

    #[test]
    fn a_job_is_taken_over_by_its_own_user_as_far_as_its_launcher_knows_it() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let job = "ftrun-node0-1";
        assert!(Kept::take_over(&config, job, (1000, 5), 2).is_none(), "nothing is kept");
        kept(4).write(&config).unwrap();
        let file = path(&config, job).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(file.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        for (job, uid, nodes) in [
            (job, 1001, 2),
            (job, 0, 2),
            (job, 1000, 4),
            (job, 1000, 0),
            ("../kept/ftrun-node0-1", 1000, 2),
            ("", 1000, 2),
        ] {
            assert!(Kept::take_over(&config, job, (uid, 5), nodes).is_none(), "{job} by {uid}, {nodes} nodes");
        }
        let taken = Kept::take_over(&config, job, (1000, 5), 2).unwrap();
        assert_eq!((taken.hosts.len(), taken.links.len(), taken.launcher), (2, 2, 5));
        assert_eq!(taken.links[1], kept(4).links[1]);
    }

    #[test]
    fn who_was_replaced_removes_nothing_and_what_nobody_comes_for_goes() {
        let directory = tempfile::tempdir().unwrap();
        let (config, own) = (config(directory.path()), std::process::id().cast_signed());
        let file = path(&config, "ftrun-node0-1").unwrap();
        let mut one = kept(own);
        one.write(&config).unwrap();
        one.by += 1;
        one.remove(&config);
        assert!(file.exists());
        // Its launcher is there and asks for another one soon.
        one.by = u32::MAX >> 1;
        one.write(&config).unwrap();
        sweep(&config);
        assert!(file.exists());
        one.launcher = i32::MAX;
        one.write(&config).unwrap();
        sweep(&config);
        assert!(!file.exists());
        one.write(&config).unwrap();
        one.remove(&config);
        assert!(!file.exists());
    }
}
