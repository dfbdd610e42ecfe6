//! The disposable `ft-ship` process of this node: started, spoken to, and killed at the job's end.

use crate::link::{Incoming, Link};
use crate::ordinary::ordinary;
use crate::outlet::Outlet;
use ft_sys::process::condition;
use ft_sys::pulse::{Pulse, Treatment};
use ft_wire::ship::{ToAgent, ToShip};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;

/// Names one `ft-ship` process of this agent; never reused.
pub type HostId = u64;

/// What is heard of an `ft-ship`.
#[derive(Debug)]
pub enum News {
    /// It says something.
    Said {
        /// Which.
        host: HostId,
        /// What.
        message: ToAgent,
    },
    /// It is gone.
    Closed {
        /// Which.
        host: HostId,
        /// Why, for people.
        reason: String,
    },
}

type Queue = (ToShip, Vec<OwnedFd>);

/// A running `ft-ship`.
#[derive(Debug)]
pub struct ShipHost {
    /// Its name.
    pub id: HostId,
    child: Child,
    pulse: Pulse,
    queue: UnboundedSender<Queue>,
}

impl ShipHost {
    /// Starts the program; what it says leaves through `news`.
    ///
    /// # Errors
    /// One sentence: it is not there, of another build, or the system does not start it.
    pub fn start(id: HostId, program: &Path, news: Outlet<News>) -> Result<ShipHost, String> {
        ft_sys::build_check::check(program).map_err(|error| error.to_string())?;
        let failed = |error: std::io::Error| format!("{} cannot be started: {error}", program.display());
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        // As standard input it reaches the child whatever its number is here.
        let child = ordinary(Command::new(program))
            .env("FT_SHIP_FD", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (queue, outgoing) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(relay(id, ours, outgoing, news));
        Ok(ShipHost { id, child, pulse: Pulse::default(), queue })
    }

    /// Sends a message; a host that is gone reports itself as closed.
    pub fn send(&self, message: ToShip, fds: Vec<OwnedFd>) {
        let _ = self.queue.send((message, fds));
    }

    /// It has said something.
    pub fn answered(&mut self) {
        self.pulse.answered();
    }

    /// Asks it whether it is there, gets one that does not answer going again, or kills it: its end is reported as any
    /// other. Returns what people are to be told.
    pub fn ask(&mut self, in_time: bool, now: Instant) -> Option<String> {
        if self.pulse.ask(in_time, now) {
            self.send(ToShip::Ask, Vec::new());
        }
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok())?;
        match self.pulse.treat(condition(pid), now) {
            Treatment::Leave => None,
            Treatment::Traced(by) => {
                Some(format!("ft-ship (process {pid}) does not answer; process {by} traces it: it is left alone"))
            }
            Treatment::Continue(first) => {
                ft_sys::process::kill(pid, nix::libc::SIGCONT);
                first.then(|| format!("ft-ship (process {pid}) was stopped and is continued"))
            }
            Treatment::End => {
                self.pulse.end(now);
                self.end();
                Some(format!("ft-ship (process {pid}) does not answer: it is ended and replaced"))
            }
        }
    }

    /// Kills it; its end is reported as any other.
    pub fn end(&mut self) {
        let _ = self.child.start_kill();
    }

    /// Kills it for good, and waits for its end in the background.
    pub fn kill(mut self) -> JoinHandle<()> {
        self.end();
        tokio::spawn(async move {
            let _ = self.child.wait().await;
        })
    }
}

async fn forward(link: Link, mut outgoing: UnboundedReceiver<Queue>) {
    while let Some((message, fds)) = outgoing.recv().await {
        link.send_with(&message, fds);
    }
}

async fn relay(id: HostId, stream: UnixStream, outgoing: UnboundedReceiver<Queue>, news: Outlet<News>) {
    let mut incoming = match Incoming::open(stream).await {
        Ok((_, link, incoming)) => {
            tokio::spawn(forward(link, outgoing));
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
        ft_sys::log::say(format_args!("ftd: ft-ship is cut off: {error}"));
    }
    news.send(News::Closed { host: id, reason: error.to_string() });
}
