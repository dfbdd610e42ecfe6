//! For a user who asks on another node: `ftd` starts this as that user, who looks for a job's agent here, and hands back a connection to it.

use crate::ask::{self, AskError};
use crate::find::{self, Found, Way};
use ft_sys::channel::{Channel, ChannelError};
use ft_wire::Role;
use ft_wire::ask::ToAgent;
use ft_wire::part::{FromPart, PART_FD, ToPart, WAY};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// The daemon, which has just started this, listens.
const DAEMON: Duration = Duration::from_secs(10);
/// So many agents are asked at a time which job they are of.
const AT_A_TIME: usize = 32;

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
    let place = memory.display().to_string();
    let own = find::directories(memory).map_err(|error| error.to_string())?;
    let own = own.into_iter().filter(|found| found.uid == owner).collect();
    let mut why = String::new();
    for (found, said) in names(own) {
        match (said, found.way) {
            (Ok(name), Way::Here(socket)) if name == job => {
                return UnixStream::connect(&socket).map_err(|error| format!("{}: {error}", socket.display()));
            }
            (Err(error), _) if !find::is_over(&error) => why = format!(" that says so, and {error}"),
            _ => {}
        }
    }
    Err(format!("there is none in {place} (FT_MEMORY_DIR){why}"))
}

/// What their agents say they are called, as it comes: one that stands still keeps the others waiting for nothing.
fn names(all: Vec<Found>) -> impl Iterator<Item = (Found, Result<String, AskError>)> {
    let (tell, told) = mpsc::channel();
    let threads = all.len().min(AT_A_TIME);
    let left = Arc::new(Mutex::new(all.into_iter()));
    for _ in 0..threads {
        let (left, tell) = (left.clone(), tell.clone());
        let asks = move || {
            loop {
                // The lock is let go before anybody is asked.
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(found) = next else { return };
                let said = ask::noted(&found, &ToAgent::Name);
                if tell.send((found, said)).is_err() {
                    return;
                }
            }
        };
        // Those that there are ask all.
        if thread::Builder::new().spawn(asks).is_err() {
            break;
        }
    }
    told.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::AGENT_SOCKET;
    use ft_wire::ask::FromAgent;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    const OWN: fn() -> u32 = || nix::unistd::Uid::effective().as_raw();

    fn listener(memory: &tempfile::TempDir, word: &str) -> UnixListener {
        let directory = memory.path().join(format!("ftd-{}-{word}", OWN()));
        std::fs::create_dir(&directory).unwrap();
        UnixListener::bind(directory.join(AGENT_SOCKET)).unwrap()
    }

    /// An agent that answers one question, or does not know it and closes.
    fn answers(listener: UnixListener, answer: Option<&'static str>) {
        thread::spawn(move || {
            let mut link = Channel::from_stream(listener.accept().unwrap().0);
            link.exchange(Role::Agent, DAEMON).unwrap();
            assert_eq!(link.receive::<ToAgent>(Some(DAEMON)).unwrap().0, ToAgent::Name);
            answer.into_iter().for_each(|name| link.send(&FromAgent::Noted(name.into()), &[]).unwrap());
            drop(link);
            // Who has found it dials once more.
            answer.into_iter().for_each(|_| drop(listener.accept()));
        });
    }

    #[test]
    fn an_agent_is_found_beside_others_that_stand_still() {
        let memory = tempfile::tempdir().unwrap();
        let _stopped = ["1-a", "1-b"].map(|word| listener(&memory, word));
        answers(listener(&memory, "2-c"), Some("another"));
        answers(listener(&memory, "3-d"), Some("slurm-7-0-a"));
        let begun = Instant::now();
        agent("slurm-7-0-a", OWN(), memory.path().into()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_an_agent_says_instead_of_its_name_is_told() {
        let memory = tempfile::tempdir().unwrap();
        drop(listener(&memory, "1-ended"));
        let none = agent("a", OWN(), memory.path().into()).unwrap_err();
        assert_eq!(none, format!("there is none in {} (FT_MEMORY_DIR)", memory.path().display()));
        answers(listener(&memory, "2-old"), None);
        let old = agent("a", OWN(), memory.path().into()).unwrap_err();
        assert!(old.starts_with(&format!("{none} that says so, and the agent behind ")), "{old}");
        assert!(old.ends_with(" does not answer what was asked"), "{old}");
    }
}
