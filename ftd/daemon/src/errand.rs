//! A connection of a job's: the launcher's on this node, or another daemon's. Each is served by a process of its own, this program once
//! more, as `sshd` serves its sessions: so the daemon's end ends no job, and what bytes of users and of the network do to who reads them
//! they do to nobody else.

use crate::metrics::Refusal;
use crate::state::State;
use ft_sys::helper::Helper;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

/// How the daemon calls this, for each [`Whose`]: who looks at a node's processes sees which serves what.
pub const COMMANDS: [&str; 3] = ["serve-ftrun", "serve-node", "serve-own"];
/// This program, also when another one is installed in its place.
const OWN: &str = "/proc/self/exe";

/// Whose connection it is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whose {
    /// The launcher's of this user.
    Launcher(u32),
    /// One that dials as another node's daemon.
    Peer(SocketAddr),
    /// Another process of this node's daemon.
    Own,
}

impl Whose {
    fn command(&self) -> &'static str {
        let [of_launcher, of_peer, of_own] = COMMANDS;
        match self {
            Whose::Launcher(_) => of_launcher,
            Whose::Peer(_) => of_peer,
            Whose::Own => of_own,
        }
    }
}

/// What the process is told.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errand {
    /// Whose connection it is.
    pub whose: Whose,
    /// [`crate::config::Config::texts`].
    pub config: (PathBuf, String, (String, Option<String>)),
}

/// What the process says of one that dials as another node's daemon: a byte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// It has shown its certificate.
    Shown,
    /// It is served.
    Served,
    /// It is not.
    Refused(Refusal),
}

impl Report {
    fn byte(self) -> u8 {
        match self {
            Report::Shown => 0,
            Report::Served => 1,
            Report::Refused(refusal) => 2 + refusal.number(),
        }
    }

    fn of(byte: u8) -> Option<Report> {
        match byte {
            0 => Some(Report::Shown),
            1 => Some(Report::Served),
            other => Refusal::of_number(other - 2).map(Report::Refused),
        }
    }
}

/// Where the process says it.
#[derive(Debug)]
pub struct Reports(File);

impl Reports {
    /// To this end of a pipe.
    pub fn to(pipe: OwnedFd) -> Reports {
        Reports(pipe.into())
    }

    /// To a daemon that is gone nothing is said.
    pub fn say(&mut self, report: Report) {
        let _ = self.0.write_all(&[report.byte()]);
    }
}

/// Has a connection served, and waits for the end of that. `heard` is told what the process says.
///
/// # Errors
/// What the system said: it is not served.
pub async fn run(connection: impl AsFd, whose: Whose, state: &State, mut heard: impl FnMut(Report)) -> io::Result<()> {
    let (theirs, mut reports) = pipe::pipe()?;
    let theirs = theirs.into_blocking_fd()?;
    let mut ends = signal(SignalKind::child())?;
    let errand = Errand { whose, config: state.config().texts() };
    let pid = start(connection.as_fd(), theirs.as_fd(), &errand)?;
    drop((connection, theirs));
    let mut byte = [0];
    while reports.read(&mut byte).await.is_ok_and(|count| count > 0) {
        Report::of(byte[0]).into_iter().for_each(&mut heard);
    }
    while let Ok(None) = ft_sys::wait::look_for(pid) {
        let _ = ends.recv().await;
    }
    Ok(())
}

fn start(connection: BorrowedFd<'_>, reports: BorrowedFd<'_>, errand: &Errand) -> io::Result<i32> {
    let mut memory = File::from(ft_sys::memory::create_memfd("ft-errand", 0)?);
    memory.write_all(&ft_wire::encode(errand, 0).map_err(io::Error::other)?)?;
    memory.rewind()?;
    let numbers = [connection.as_raw_fd(), memory.as_raw_fd(), reports.as_raw_fd()];
    Helper {
        program: Path::new(OWN),
        arguments: std::iter::once(errand.whose.command().into())
            .chain(numbers.map(|fd| fd.to_string().into()))
            .collect(),
        // The service manager hears of the daemon alone.
        environment: vec![("NOTIFY_SOCKET", String::new())],
        descriptors: &[connection, memory.as_fd(), reports],
        output: None,
        own_session: true,
    }
    .start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_as_they_were_said() {
        let all = [Report::Shown, Report::Served].into_iter().chain(Refusal::ALL.map(Report::Refused));
        for report in all {
            assert_eq!(Report::of(report.byte()), Some(report));
        }
        assert_eq!(Report::of(99), None);
    }
}
