//! The directory of a job, told from any other: in a file beside it, `<directory>.lock`, its launcher states that it makes a
//! directory of this name, and then which one that is. Who removes it asks that statement first, and removes nothing else.
//!
//! The statement is whole, and its launcher holds a lock on it, from the moment on in which it has a name. It is there before
//! the directory and goes after it: whenever a launcher is killed, what it leaves is known to be its. It has a second name in
//! the directory, once that is there: people who clean up in shared memory remove files.

use crate::beneath;
use crate::cgroup::Group;
use crate::death::is_dying;
use crate::gate;
use crate::identity::Identity;
use crate::unlocked::unlock;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use rustix::fs::OFlags;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the name of a statement has more than that of its directory.
pub const SUFFIX: &str = ".lock";
/// A statement's second name, in the directory.
const INNER: &str = "lock";
/// First line of a statement. Then come the directory's name, the statement's own identity, the system, and records that end
/// with a zero byte: what was made since.
const TITLE: &[u8] = b"a job of ftd";
const DIRECTORY: &str = "directory ";
/// Where the job's cgroup is about to be made, and its inode.
const PLACE: &str = "place ";
const GROUP: &str = "group ";
/// Longest statement that is read.
const LONGEST: u64 = 16 << 10;
/// How long a launcher that was killed may take to let go of its lock.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Pause between attempts to remove a directory in which somebody still makes files.
const AGAIN: Duration = Duration::from_millis(5);

/// Where the statement about this directory is.
pub fn statement_of(path: &Path) -> PathBuf {
    PathBuf::from([path.as_os_str(), OsStr::new(SUFFIX)].join(OsStr::new("")))
}

/// States that this process makes the directory `path`, which is not there yet.
///
/// # Errors
/// When the place is not there, or the statement cannot be written.
pub fn announce(path: &Path) -> io::Result<Flock<File>> {
    let place = path.parent().unwrap_or(Path::new("/"));
    let nameless = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(place)?;
    let mut lock = Flock::lock(nameless, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
    let own = Identity::of_descriptor(lock.as_raw_fd()).ok_or_else(io::Error::last_os_error)?.to_string();
    let name = path.file_name().unwrap_or_default().as_bytes();
    lock.write_all(&[TITLE, name, own.as_bytes(), system().as_bytes(), b""].join(&b'\n'))?;
    link(&lock, &statement_of(path))?;
    Ok(lock)
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    let file = crate::beneath::path_of(file);
    Ok(nix::unistd::linkat(AT_FDCWD, &file, AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}

/// States that the directory is made, and which it is.
///
/// # Errors
/// When it is not there, or the file cannot be written.
pub fn state_directory(path: &Path, lock: &mut File) -> io::Result<()> {
    let made = of_path(path).ok_or_else(io::Error::last_os_error)?.to_string();
    state(lock, DIRECTORY, made.as_bytes())?;
    link(lock, &path.join(INNER))
}

/// States where the job's cgroup is about to be made.
///
/// # Errors
/// When the file cannot be written.
pub fn announce_group(lock: &mut File, place: &Path) -> io::Result<()> {
    state(lock, PLACE, place.as_os_str().as_bytes())
}

/// States that the job's cgroup is made.
///
/// # Errors
/// When the file cannot be written.
pub fn state_group(lock: &mut File, group: &Group) -> io::Result<()> {
    state(lock, GROUP, group.inode().to_string().as_bytes())
}

fn state(lock: &mut File, what: &str, text: &[u8]) -> io::Result<()> {
    lock.write_all(&[what.as_bytes(), text, b"\0"].concat())
}

fn of_path(path: &Path) -> Option<Identity> {
    Identity::of_path(&CString::new(path.as_os_str().as_bytes()).ok()?)
}

/// This run of the machine and this name space of processes: elsewhere the numbers of processes mean others.
fn system() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino());
    format!("{} {space}", boot.trim())
}

/// Whether the launcher whose number this name bears is dying at this moment. Only a reason to wait: it proves nothing.
fn is_of_the_dying(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    let pid = name.and_then(|name| name.split('-').nth(2)).and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists() && is_dying(pid).unwrap_or(false))
}

/// What a launcher has stated about a directory; this user's, and the very file that it wrote.
#[derive(Debug)]
pub struct Statement {
    path: PathBuf,
    file: File,
    own: Identity,
    system: String,
    /// What was made; before that it is known by its name alone, which nobody else makes.
    directory: Option<Identity>,
    place: Option<PathBuf>,
    group: Option<u64>,
}

impl Statement {
    /// What is stated about the directory `path`, be it there or not.
    pub fn read(path: &Path) -> Option<Statement> {
        Self::read_from(path, &statement_of(path)).or_else(|| Self::read_from(path, &path.join(INNER)))
    }

    fn read_from(path: &Path, statement: &Path) -> Option<Statement> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(statement).ok()?;
        let metadata = file.metadata().ok()?;
        (metadata.is_file() && metadata.uid() == nix::unistd::Uid::effective().as_raw()).then_some(())?;
        let own = Identity::of_descriptor(file.as_raw_fd())?;
        let mut text = Vec::new();
        (&file).take(LONGEST).read_to_end(&mut text).ok()?;
        let mut lines = text.splitn(5, |byte| *byte == b'\n');
        let is_it = lines.next()? == TITLE
            && lines.next()? == path.file_name()?.as_bytes()
            && lines.next()? == own.to_string().as_bytes();
        is_it.then_some(())?;
        let system = String::from_utf8_lossy(lines.next()?).into_owned();
        let mut records: Vec<&[u8]> = lines.next()?.split(|byte| *byte == 0).collect();
        // What has no zero byte behind it is not written yet.
        records.pop();
        let record = |what: &str| records.iter().find_map(|record| record.strip_prefix(what.as_bytes()));
        let text = |what| std::str::from_utf8(record(what)?).ok();
        let directory = text(DIRECTORY).and_then(|text| text.parse().ok());
        let place = record(PLACE).map(|place| PathBuf::from(OsString::from_vec(place.to_vec())));
        let group = text(GROUP).and_then(|text| text.parse().ok());
        Some(Statement { path: path.to_path_buf(), file, own, system, directory, place, group })
    }

    /// The statement of a launcher that is dead, and its lock: nobody else sweeps up meanwhile.
    pub fn take(path: &Path) -> Option<(Statement, Flock<File>)> {
        let until = Instant::now() + LETTING_GO;
        let lock = loop {
            match Flock::lock(Self::read(path)?.open()?, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => break lock,
                // Its last thread lets go of the lock, and may take longer to be gone than the process seems to.
                Err(_) if is_of_the_dying(path) && Instant::now() < until => std::thread::sleep(AGAIN),
                Err(_) => return None,
            }
        };
        // Its last words may have been written since.
        Some((Self::read(path)?, lock))
    }

    /// Waits until the launcher holds its lock no more, and keeps others from cleaning up who were not here; those that are
    /// clean up together. `None` while the launcher lives.
    pub fn wait_abandoned(&self, patience: Duration) -> Option<Flock<File>> {
        let until = Instant::now() + patience;
        loop {
            match Flock::lock(self.open()?, FlockArg::LockSharedNonblock) {
                Ok(lock) => return Some(lock),
                Err(_) if Instant::now() >= until => return None,
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// The file itself, opened once more.
    fn open(&self) -> Option<File> {
        File::open(crate::beneath::path_of(&self.file)).ok()
    }

    /// Removes what was announced and not stated as made, if it is there and empty, and the statement.
    fn remove(&self) {
        if let (Some(place), None) = (&self.place, self.group) {
            Group::remove_empty(place);
        }
        let own = |found: fs::Metadata| found.is_dir() && found.uid() == nix::unistd::Uid::effective().as_raw();
        if self.directory.is_none() && fs::symlink_metadata(&self.path).is_ok_and(own) {
            let _ = fs::remove_dir(&self.path);
        }
        let statement = statement_of(&self.path);
        if of_path(&statement) == Some(self.own) {
            let _ = fs::remove_file(statement);
        }
    }
}

/// A directory that is proven to be a job's.
#[derive(Debug)]
pub struct Proven {
    statement: Statement,
    /// Names the directory, wherever it has been moved since.
    directory: File,
    identity: Identity,
}

impl Proven {
    /// Looks whether this is a job's directory, of this user.
    pub fn recognise(path: &Path) -> Option<Proven> {
        Self::stated(Statement::read(path)?).ok()
    }

    /// The directory that the statement is about, if it is there.
    ///
    /// # Errors
    /// Gives the statement back.
    pub fn stated(statement: Statement) -> Result<Proven, Box<Statement>> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let open = File::options().read(true).custom_flags(flags).open(&statement.path).ok();
        let found = open.and_then(|directory| Some((Identity::of_descriptor(directory.as_raw_fd())?, directory)));
        match found.filter(|(identity, _)| statement.directory == Some(*identity)) {
            Some((identity, directory)) => Ok(Proven { statement, directory, identity }),
            None => Err(Box::new(statement)),
        }
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.statement.path
    }

    /// Whether it was made in this run of the machine, where processes have the same numbers.
    pub fn is_of_this_system(&self) -> bool {
        self.statement.system == system()
    }

    /// The job's cgroup, if it has one and it is there.
    pub fn group(&self) -> Option<Group> {
        Group::known(self.statement.place.as_ref()?, self.statement.group?)
    }

    /// See [`Statement::wait_abandoned`].
    pub fn wait_abandoned(&self, patience: Duration) -> Option<Flock<File>> {
        self.statement.wait_abandoned(patience)
    }

    /// A path below the directory itself, whatever stands at its old name.
    fn inside(&self, name: &OsStr) -> PathBuf {
        crate::beneath::path_of(&self.directory).join(name)
    }

    /// Removes it with all that is in it, in which others may still be making files for a while; several may do so at once.
    /// The statement goes last: what one that is killed meanwhile has left can be recognised still.
    pub fn remove(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while !self.try_remove() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(AGAIN);
        }
        gate::reach("job-dir.removed", None);
        self.statement.remove();
    }

    fn try_remove(&self) -> bool {
        let is_here = || of_path(self.path()) == Some(self.identity);
        if !is_here() {
            return true;
        }
        let entries = fs::read_dir(self.inside(OsStr::new("."))).into_iter().flatten().flatten();
        for name in entries.map(|entry| entry.file_name()).filter(|name| name != INNER) {
            let path = self.inside(&name);
            // What cannot be removed keeps the directory from being removed, and is tried again.
            let _ = match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => remove_tree(&path),
                _ => fs::remove_file(&path),
            };
        }
        let is_empty =
            |mut entries: fs::ReadDir| entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == INNER));
        if !fs::read_dir(self.inside(OsStr::new("."))).is_ok_and(is_empty) {
            return false;
        }
        let _ = fs::remove_file(self.inside(OsStr::new(INNER)));
        gate::reach("job-dir.emptied", None);
        // Empty, or nothing is removed.
        fs::remove_dir(self.path()).is_ok() || !is_here()
    }
}

/// Makes a directory below the job's, and what lies between, where it is not there. The job's own is not made: where it is gone
/// the job is over, and nobody would remove it again.
///
/// # Errors
/// The first directory that cannot be made.
pub fn make_below(job_dir: &Path, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(job_dir).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut made = job_dir.to_path_buf();
    for name in below {
        made.push(name);
        match fs::create_dir(&made) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !made.is_dir() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes a directory with all that is in it, also when a program has left directories there in which nobody may write. What
/// a link there leads to, and what lies on another mount, is not in it: it stays, and so does what the mount stands in.
///
/// # Errors
/// The first of what stays.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let parent = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
    remove_at(&parent, name)
}

fn remove_at(parent: &File, name: &OsStr) -> io::Result<()> {
    let path = beneath::path_of(parent).join(name);
    if !fs::symlink_metadata(&path)?.is_dir() {
        return fs::remove_file(path);
    }
    let handle = beneath::open(parent.as_fd(), Path::new(name), OFlags::PATH | OFlags::DIRECTORY)?;
    unlock(&handle, 0o700);
    let mut first = Ok(());
    for entry in fs::read_dir(beneath::path_of(&handle))? {
        match entry.and_then(|entry| remove_at(&handle, &entry.file_name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => first = first.and(Err(error)),
            _ => {}
        }
    }
    first.and_then(|()| fs::remove_dir(path))
}

/// Removes the directory that its launcher has named, if it is a job's, and whatever that launcher had come to make of it.
/// To be called by who knows that the launcher is dead, and by the launcher.
pub fn remove(path: &Path, patience: Duration) {
    match Statement::read(path).map(Proven::stated) {
        Some(Ok(proven)) => proven.remove(patience),
        Some(Err(statement)) => statement.remove(),
        None => {}
    }
}

/// The same, by others, when the launcher has let go of its lock.
pub fn remove_abandoned(path: &Path, patience: Duration) {
    if let Some(_held) = Statement::read(path).and_then(|statement| statement.wait_abandoned(patience)) {
        remove(path, patience);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_jobs_directory_is_not_made_anew() {
        let outside = tempfile::tempdir().unwrap();
        let job_dir = outside.path().join("job");
        let error = make_below(&job_dir, &job_dir.join("pmix/w1")).unwrap_err();
        assert_eq!((error.kind(), job_dir.exists()), (io::ErrorKind::NotFound, false));
        fs::create_dir(&job_dir).unwrap();
        make_below(&job_dir, &job_dir.join("pmix/w1")).unwrap();
        make_below(&job_dir, &job_dir.join("pmix/w1")).unwrap();
        assert!(job_dir.join("pmix/w1").is_dir());
        fs::write(job_dir.join("file"), "x").unwrap();
        assert!(make_below(&job_dir, &job_dir.join("file")).is_err() && make_below(&job_dir, outside.path()).is_err());
    }

    /// A job's directory, whose launcher is dead.
    pub(crate) fn stated(path: &Path) {
        let mut lock = announce(path).unwrap();
        fs::create_dir(path).unwrap();
        state_directory(path, &mut lock).unwrap();
        fs::create_dir_all(path.join("ckpt/deep")).unwrap();
        fs::write(path.join("ckpt/deep/file"), "x").unwrap();
    }

    fn copy(from: &Path, to: &Path) {
        assert!(std::process::Command::new("cp").args(["-a".as_ref(), from, to]).status().unwrap().success());
    }

    #[test]
    fn a_job_s_directory_is_removed_and_nothing_else() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |name: &str| root.path().join(name);
        stated(&at("job"));
        // A copy, another name, a link, and somebody's directory in which a socket lies.
        copy(&at("job"), &at("copy"));
        copy(&at("job.lock"), &at("copy.lock"));
        stated(&at("other"));
        fs::rename(at("other"), at("renamed")).unwrap();
        fs::rename(at("other.lock"), at("renamed.lock")).unwrap();
        std::os::unix::fs::symlink(at("job"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("job.lock"), at("link.lock")).unwrap();
        fs::create_dir(at("home")).unwrap();
        fs::write(at("home/file"), "x").unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::write(at("empty.lock"), TITLE).unwrap();
        for name in ["copy", "renamed", "link", "home", "empty", "missing"] {
            assert!(Proven::recognise(&at(name)).is_none(), "{name}");
            remove(&at(name), Duration::ZERO);
            remove_abandoned(&at(name), Duration::ZERO);
        }
        assert!(at("copy/ckpt/deep/file").exists() && at("renamed/ckpt").exists() && at("home/file").exists());
        assert!(fs::symlink_metadata(at("link")).is_ok() && at("empty").exists());
        // One of its two names is enough.
        fs::remove_file(at("job.lock")).unwrap();
        let proven = Proven::recognise(&at("job")).unwrap();
        assert!(proven.is_of_this_system() && proven.group().is_none());
        proven.remove(Duration::ZERO);
        assert!(!at("job").exists() && !at("job.lock").exists());
        let kept = fs::read_dir(root.path()).unwrap().count();
        assert_eq!(kept, 9, "{:?}", fs::read_dir(root.path()).unwrap().collect::<Vec<_>>());
    }

    /// A launcher has threads: the process is a zombie before the last of them has let go of the lock.
    #[test]
    fn a_launcher_that_was_killed_just_now_is_dead() {
        use std::io::BufRead;
        const LAUNCHER: &str = "import fcntl, sys, threading, time\n\
            lock = open(sys.stdin.readline().strip())\n\
            fcntl.flock(lock, fcntl.LOCK_EX)\n\
            for _ in range(3): threading.Thread(target=time.sleep, args=[60]).start()\n\
            print(flush=True)\n";
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        for _ in 0..30 {
            let piped = std::process::Stdio::piped;
            let mut python = std::process::Command::new("/usr/bin/python3");
            let mut launcher = python.args(["-c", LAUNCHER]).stdin(piped()).stdout(piped()).spawn().unwrap();
            let path = root.path().join(format!("ftd-0-{}-0", launcher.id()));
            stated(&path);
            writeln!(launcher.stdin.as_mut().unwrap(), "{}", statement_of(&path).display()).unwrap();
            let mut said = String::new();
            std::io::BufReader::new(launcher.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
            assert!(Statement::take(&path).is_none(), "it lives");
            launcher.kill().unwrap();
            // As everybody sees it end who is not its parent.
            let process = crate::proc::of(launcher.id() as i32);
            while crate::proc::stat(&process).unwrap().is_some_and(|stat| stat.state != 'Z') {}
            assert!(Statement::take(&path).is_some());
            launcher.wait().unwrap();
        }
    }

    #[test]
    fn what_stands_at_its_place_later_stays() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = root.path().join("job");
        stated(&path);
        let proven = Proven::recognise(&path).unwrap();
        fs::rename(&path, root.path().join("away")).unwrap();
        fs::create_dir(&path).unwrap();
        remove(&path, Duration::ZERO);
        proven.remove(Duration::ZERO);
        assert!(path.exists() && root.path().join("away/ckpt/deep/file").exists());
    }

    #[test]
    fn whatever_a_launcher_had_come_to_make_goes_when_it_is_dead() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = root.path().join("job");
        for step in 0..4 {
            let mut lock = announce(&path).unwrap();
            if step > 0 {
                fs::create_dir(&path).unwrap();
            }
            if step > 1 {
                state_directory(&path, &mut lock).unwrap();
            }
            if step > 2 {
                fs::remove_dir_all(&path).unwrap();
            }
            remove_abandoned(&path, Duration::ZERO);
            assert!(Statement::take(&path).is_none() && statement_of(&path).exists(), "step {step}: it lives");
            // A last word that was cut.
            lock.write_all(b"group 1").unwrap();
            drop(lock);
            assert!(Statement::take(&path).is_some_and(|(statement, _)| statement.group.is_none()), "step {step}");
            remove_abandoned(&path, Duration::ZERO);
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "step {step}");
        }
        // What is in it is not the launcher's: that states first.
        drop(announce(&path).unwrap());
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        remove_abandoned(&path, Duration::ZERO);
        assert!(path.join("file").exists() && !statement_of(&path).exists());
    }
}
