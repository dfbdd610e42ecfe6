//! `--output-filename`: what each rank writes goes into files of its own, beside each other for all worlds of the job.

use crate::output::Stream;
use crate::sink::{Sink, Trouble};
use ft_wire::Rank;
use nix::libc;
use nix::sys::eventfd::EventFd;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file: it has a thread of its own from the first line on.
#[derive(Debug)]
enum Target {
    Silent(File),
    Written(Sink),
}

/// The files of the ranks of this node.
#[derive(Debug)]
pub struct RankFiles {
    name: PathBuf,
    wake: Arc<EventFd>,
    targets: BTreeMap<(Rank, Stream), Target>,
}

/// Makes the directory in which the files are to be; a name that ends with a slash is all directory.
///
/// # Errors
/// Names it.
pub fn make_directory(name: &Path) -> Result<(), (PathBuf, io::Error)> {
    let is_directory = name.as_os_str().as_encoded_bytes().ends_with(b"/");
    let directory =
        if is_directory { Some(name) } else { name.parent() }.filter(|parent| !parent.as_os_str().is_empty());
    directory.map_or(Ok(()), |parent| std::fs::create_dir_all(parent).map_err(|error| (parent.to_path_buf(), error)))
}

impl RankFiles {
    /// Makes the files of so many ranks anew. `wake` is told when something was written. What cannot be opened is said in sentences, and
    /// its rank's output is not kept in a file.
    pub fn open(name: &Path, ranks: Rank, wake: &Arc<EventFd>) -> (RankFiles, Vec<String>) {
        let mut files = RankFiles { name: name.into(), wake: Arc::clone(wake), targets: BTreeMap::new() };
        let mut sentences = Vec::new();
        for key in (0..ranks).flat_map(|rank| [(rank, Stream::Out), (rank, Stream::Err)]) {
            let path = files.path(key);
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).custom_flags(libc::O_APPEND | libc::O_NONBLOCK);
            match options.open(&path) {
                Ok(file) => drop(files.targets.insert(key, Target::Silent(file))),
                Err(error) => sentences.push(format!("--output-filename: {}: {error}", path.display())),
            }
        }
        (files, sentences)
    }

    fn path(&self, (rank, stream): (Rank, Stream)) -> PathBuf {
        let mut path = OsString::from(&self.name);
        path.push(format!(".{rank}.{}", if stream == Stream::Out { "out" } else { "err" }));
        path.into()
    }

    /// Writes what a rank has written. False: there is no file for it.
    pub fn push(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) -> bool {
        let key = (rank, stream);
        let sink = match self.targets.remove(&key) {
            None => return false,
            Some(Target::Written(sink)) => Ok(sink),
            Some(Target::Silent(file)) => Sink::new(Box::new(file), Arc::clone(&self.wake)),
        };
        // Without a thread for it, it goes where it would go without the file.
        let Ok(mut sink) = sink else { return false };
        sink.push(bytes);
        self.targets.insert(key, Target::Written(sink));
        true
    }

    /// Bytes that wait to be written for a rank.
    pub fn pending(&self, rank: Rank, stream: Stream) -> usize {
        match self.targets.get(&(rank, stream)) {
            Some(Target::Written(sink)) => sink.pending(),
            _ => 0,
        }
    }

    /// All that are written to, by name.
    pub fn sinks(&self) -> impl Iterator<Item = (String, &Sink)> {
        self.targets.iter().filter_map(|(key, target)| match target {
            Target::Written(sink) => Some((self.path(*key).display().to_string(), sink)),
            Target::Silent(_) => None,
        })
    }

    /// What has gone wrong since the last call.
    pub fn troubles(&self) -> Vec<(String, Trouble)> {
        self.sinks()
            .flat_map(|(name, sink)| sink.troubles().into_iter().map(move |trouble| (name.clone(), trouble)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: PathBuf, expected: &str) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::fs::read_to_string(&path).unwrap() != expected {
            assert!(std::time::Instant::now() < until, "{}: {:?}", path.display(), std::fs::read_to_string(&path));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn a_job_begins_its_files_anew() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("new/out");
        make_directory(&name).unwrap();
        let path = |end: &str| directory.path().join(format!("new/out.{end}"));
        std::fs::write(path("3.out"), "of an older job\n").unwrap();
        let wake = Arc::new(EventFd::new().unwrap());
        let (mut files, sentences) = RankFiles::open(&name, 4, &wake);
        assert!(sentences.is_empty() && !files.push(4, Stream::Out, b"nobody's\n"));
        assert!(files.push(3, Stream::Out, b"one\n") && files.push(3, Stream::Err, b"wrong\n"));
        assert!(files.push(3, Stream::Out, b"two\n"));
        written(path("3.out"), "one\ntwo\n");
        written(path("3.err"), "wrong\n");
        written(path("0.out"), "");
        let name = directory.path().join("whole/");
        make_directory(&name).unwrap();
        assert!(RankFiles::open(&name, 1, &wake).1.is_empty() && directory.path().join("whole/.0.out").exists());
        assert_eq!(RankFiles::open(Path::new("/no/such/out"), 1, &wake).1.len(), 2);
    }
}
