//! The disposable `ft-pmix` process of a world: started, spoken to, and killed when its world is gone.

use crate::aside;
use crate::link::{Incoming, Link};
use crate::ordinary::ordinary;
use crate::outlet::Outlet;
use ft_sys::build_check::BuildError;
use ft_sys::process::condition;
use ft_sys::pulse::{Pulse, Treatment};
use ft_wire::pmix::{ToAgent, ToPmix};
use ft_wire::{FrameError, World};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;

/// Names one `ft-pmix` process of this agent; never reused.
pub type HostId = u64;

/// What is heard of an `ft-pmix`.
#[derive(Debug)]
pub enum News {
    /// It says something.
    Said {
        /// Which.
        host: HostId,
        /// What.
        message: ToAgent,
    },
    /// What its ranks are to be told is longer than what it can be told.
    TooLong {
        /// Which.
        host: HostId,
        /// How long it is.
        error: String,
    },
    /// It is gone.
    Closed {
        /// Which.
        host: HostId,
        /// Why, for people.
        reason: String,
    },
    /// This world has none, for it could not be started, and it is time to try again.
    Again(World),
}

/// Why there is no `ft-pmix`.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The file is not what it was when the job was started.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The system does not start it.
    #[error("{} cannot be started: {error}", program.display())]
    Start {
        /// Its file.
        program: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Where hwloc looks for what it can load besides itself.
const HWLOC: &str = "HWLOC_PLUGINS_PATH";

/// A running `ft-pmix`.
#[derive(Debug)]
pub struct PmixHost {
    /// Its name.
    pub id: HostId,
    tmpdir: PathBuf,
    child: Child,
    pulse: Pulse,
    queue: UnboundedSender<ToPmix>,
}

impl PmixHost {
    /// Starts the program, on the library that is named or on its own, with a directory for its session files below the job's; what
    /// it says leaves through `news`.
    ///
    /// # Errors
    /// When the program cannot be started, or is of another build by now.
    pub fn start(
        id: HostId,
        program: &Path,
        libpmix: Option<&Path>,
        (job_dir, tmpdir): (&Path, &Path),
        news: Outlet<News>,
    ) -> Result<PmixHost, HostError> {
        let start = |error| HostError::Start { program: program.to_path_buf(), error };
        match ft_sys::build_check::check(program) {
            // Descriptors or memory that are short now, or an installation that is being replaced.
            Err(BuildError::Unreadable { error, .. }) => return Err(start(error)),
            checked => checked?,
        }
        Self::start_checked(id, program, libpmix, (job_dir, tmpdir), news).map_err(start)
    }

    fn start_checked(
        id: HostId,
        program: &Path,
        libpmix: Option<&Path>,
        (job_dir, tmpdir): (&Path, &Path),
        news: Outlet<News>,
    ) -> io::Result<PmixHost> {
        ft_sys::job_dir::make_below(job_dir, tmpdir)?;
        let (ours, theirs) = UnixStream::pair()?;
        // As standard input it reaches the child whatever its number is here.
        let child = ordinary(Command::new(program))
            .env("FT_PMIX_FD", "0")
            .env("FT_PMIX_TMPDIR", tmpdir)
            // Of one name it takes the place of the one that the program asks for.
            .envs(libpmix.map(|library| ("LD_PRELOAD", library)))
            // Without any, and without a user whom the system knows, libpmix 4 crashes.
            .envs(std::env::var_os("HOME").is_none().then_some(("HOME", tmpdir)))
            // libpmix looks at the machine, of which the ranks hear nothing from it; that loads a parser, X11 and OpenCL where the machine has
            // them, and with them its start takes twice as long. Here there is nothing of the kind.
            .envs(std::env::var_os(HWLOC).is_none().then_some((HWLOC, tmpdir)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (queue, outgoing) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(relay(id, ours, outgoing, news));
        Ok(PmixHost { id, tmpdir: tmpdir.to_path_buf(), child, pulse: Pulse::default(), queue })
    }

    /// Sends a message; a host that is gone reports itself as closed.
    pub fn send(&self, message: ToPmix) {
        let _ = self.queue.send(message);
    }

    /// Whether the process is dead, whatever has been heard of it so far.
    pub fn is_dead(&self) -> bool {
        self.pid().is_none_or(|pid| ft_sys::death::is_dying(pid).unwrap_or(false))
    }

    fn pid(&self) -> Option<i32> {
        self.child.id().and_then(|pid| i32::try_from(pid).ok())
    }

    /// It has said something.
    pub fn answered(&mut self) {
        self.pulse.one_of_many_answered();
    }

    /// Asks it whether it is there, gets one that does not answer going again, or kills it: its end is reported as any
    /// other. Returns what people are to be told.
    pub fn ask(&mut self, in_time: bool, now: Instant) -> Option<String> {
        if self.pulse.ask(in_time, now) {
            self.send(ToPmix::Ask);
        }
        let pid = self.pid()?;
        match self.pulse.treat(condition(pid), now) {
            Treatment::Leave => None,
            Treatment::Traced(by) => {
                Some(format!("ft-pmix (process {pid}) does not answer; process {by} traces it: it is left alone"))
            }
            Treatment::Continue(first) => {
                ft_sys::process::kill(pid, nix::libc::SIGCONT);
                first.then(|| format!("ft-pmix (process {pid}) was stopped and is continued"))
            }
            Treatment::End => {
                self.pulse.end(now);
                let _ = self.child.start_kill();
                Some(format!("ft-pmix (process {pid}) does not answer: it is ended and replaced"))
            }
        }
    }

    /// Kills the process, waits for its end in the background, and removes its session files. Before that is done it may still
    /// make some.
    pub fn kill(mut self) -> JoinHandle<()> {
        let _ = self.child.start_kill();
        tokio::spawn(async move {
            let _ = self.child.wait().await;
            let _ = tokio::fs::remove_dir_all(&self.tmpdir).await;
        })
    }
}

/// What is too long for it the next one would not be told, either.
async fn forward(link: Link, mut outgoing: UnboundedReceiver<ToPmix>, too_long: impl Fn(FrameError)) {
    while let Some(message) = outgoing.recv().await {
        let bytes = match &message {
            ToPmix::FenceDone { data, .. } | ToPmix::ModexDone { data, .. } => data.len(),
            ToPmix::GroupDone { shared, .. } => shared.len(),
            ToPmix::Raise(event) => event.infos.iter().map(|(_, value)| value.len()).sum(),
            ToPmix::Found { found, .. } => found.iter().map(|(_, _, value)| value.len()).sum(),
            _ => 0,
        };
        if bytes < aside::MANY {
            link.send(&message);
        } else {
            match tokio::task::spawn_blocking(move || ft_wire::encode(&message, 0)).await {
                Ok(Err(error)) => too_long(error),
                Ok(frame) => link.send_encoded(frame, Vec::new()),
                Err(_) => {}
            }
        }
    }
}

async fn relay(id: HostId, stream: UnixStream, outgoing: UnboundedReceiver<ToPmix>, news: Outlet<News>) {
    let mut incoming = match Incoming::open(stream).await {
        Ok((_, link, incoming)) => {
            let (too_long, host) = (news.clone(), id);
            tokio::spawn(forward(link, outgoing, move |error| {
                too_long.send(News::TooLong { host, error: error.to_string() });
            }));
            incoming
        }
        Err(error) => {
            news.send(News::Closed { host: id, reason: error.to_string() });
            return;
        }
    };
    let error = loop {
        match incoming.next_metered::<ToAgent>().await {
            Ok((message, _, room)) => {
                news.send_metered(News::Said { host: id, message }, room);
            }
            Err(error) => break error,
        }
    };
    if error.is_trouble() {
        ft_sys::log::say(format_args!("ftd: ft-pmix is cut off: {error}"));
    }
    news.send(News::Closed { host: id, reason: error.to_string() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::{PREAMBLE_LEN, Preamble, Role};
    use std::io::{Read, Write};
    use std::time::Duration;

    #[tokio::test]
    async fn of_what_is_too_long_for_it_the_agent_hears_and_what_follows_comes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&Preamble::ours(Role::Pmix).to_bytes()).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (news, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let (queue, outgoing) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(relay(7, ours, outgoing, Outlet::new(move |said, _| news.send(said).is_ok())));
        let data = vec![0; ft_wire::MAX_BODY];
        queue.send(ToPmix::FenceDone { token: 1, status: 0, data }).unwrap();
        queue.send(ToPmix::Done { token: 2, status: 0 }).unwrap();
        match tokio::time::timeout(Duration::from_secs(60), heard.recv()).await.unwrap() {
            Some(News::TooLong { host: 7, error }) => assert!(error.contains("longer than the limit"), "{error}"),
            other => panic!("{other:?}"),
        }
        let next = ft_wire::encode(&ToPmix::Done { token: 2, status: 0 }, 0).unwrap();
        let mut came = vec![0; PREAMBLE_LEN + next.len()];
        let (came, read) = tokio::task::spawn_blocking(move || (theirs.read_exact(&mut came), came)).await.unwrap();
        came.unwrap();
        assert_eq!(read[PREAMBLE_LEN..], next);
    }
}
