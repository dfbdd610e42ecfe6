//! For a user who asks on another node: `ftd` starts this as that user, who looks for a job's agent here, and hands back a connection to it.

use crate::ask;
use crate::find::{self, Way};
use ft_sys::channel::{Channel, ChannelError};
use ft_wire::Role;
use ft_wire::ask::ToAgent;
use ft_wire::part::{FromPart, PART_FD, ToPart, WAY};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The daemon, which has just started this, listens.
const DAEMON: Duration = Duration::from_secs(10);

/// Whether this is what the process was started for.
pub fn is_wanted() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WAY)
}

/// Does it.
pub fn be() -> ExitCode {
    let Ok(link) = ft_sys::process::take_inherited_fd(PART_FD) else {
        let _ = writeln!(io::stderr(), "ftctl: {WAY} is for ftd alone");
        return ExitCode::from(2);
    };
    match attempt(Channel::from_stream(UnixStream::from(link))) {
        Ok(()) => ExitCode::SUCCESS,
        // It hears nothing more, either.
        Err(_) => ExitCode::FAILURE,
    }
}

fn attempt(mut link: Channel) -> Result<(), ChannelError> {
    link.exchange(Role::Launcher, DAEMON)?;
    let ToPart::Find { job, owner, memory } = link.receive(Some(DAEMON))?.0 else { return Err(ChannelError::Closed) };
    match agent(&job, owner, memory) {
        Ok(agent) => link.send(&FromPart::Here, &[agent.as_fd()]),
        Err(sentence) => link.send(&FromPart::Refused { status: 1, sentence }, &[]),
    }
}

/// A connection to the agent of this job, which is that user's.
fn agent(job: &str, owner: u32, memory: PathBuf) -> Result<UnixStream, String> {
    let none = format!("there is none in {} (FT_MEMORY_DIR)", memory.display());
    let own = find::directories(memory).map_err(|error| error.to_string())?;
    let is_meant = |found: &find::Found| ask::noted(found, &ToAgent::Name).is_ok_and(|name| name == job);
    let found = own.into_iter().find(|found| found.uid == owner && is_meant(found)).ok_or(none)?;
    match found.way {
        Way::Here(socket) => UnixStream::connect(&socket).map_err(|error| format!("{}: {error}", socket.display())),
        Way::Elsewhere(_) => Err("it is on another node".into()),
    }
}
