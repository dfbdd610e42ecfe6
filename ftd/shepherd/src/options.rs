//! The command line. The launcher writes it, so it is not for people.

use crate::held::Held;
use std::ffi::OsString;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Where the job's standard input is.
#[derive(Debug)]
pub enum Stdin {
    /// Nowhere.
    Null,
    /// A regular file, read from this offset on in each world.
    File(OwnedFd, u64),
    /// A spool that the launcher fills.
    Spool(OwnedFd),
}

/// What the launcher said.
#[derive(Debug)]
pub struct Options {
    /// The slot.
    pub slot: ft_wire::Slot,
    /// The agent's socket.
    pub socket: PathBuf,
    /// The job's directory, in which that is; removed when the launcher dies.
    pub job_dir: PathBuf,
    /// Open for as long as the launcher lives.
    pub lifeline: UnixStream,
    /// The programs and their working directories as they were when the job began, if the launcher opened them.
    pub held: Vec<Held>,
    /// Standard input of rank 0.
    pub stdin: Stdin,
    /// Where the launcher wants the pipes that processes write to. Without, they have this process's standard output and
    /// error, as under a resource manager.
    pub pipes: Option<UnixStream>,
    /// The user's soft limits of open files and of processes; ftd's own may be higher.
    pub soft_limits: Option<(u64, u64)>,
    /// The nice value of the user's own processes, where this one's is a higher priority.
    pub nice: Option<i32>,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Options, String> {
        let (mut slot, mut socket, mut lifeline, mut stdin) = (None, None, None, Stdin::Null);
        let (mut held, mut pipes, mut soft_limits, mut nice) = (Vec::new(), None, None, None);
        while let Some(name) = arguments.next() {
            let name = name.to_string_lossy().into_owned();
            let mut value = || arguments.next().ok_or(format!("{name} needs a value; ft-shepherd is started by ftrun"));
            match name.as_str() {
                "--slot" => slot = Some(number::<ft_wire::Slot>(&name, value()?)?),
                "--socket" => socket = Some(PathBuf::from(value()?)),
                "--lifeline" => lifeline = Some(descriptor(&name, value()?)?),
                "--pipes" => pipes = Some(UnixStream::from(descriptor(&name, value()?)?)),
                "--stdin-spool" => stdin = Stdin::Spool(descriptor(&name, value()?)?),
                "--stdin-file" => stdin = Stdin::File(descriptor(&name, value()?)?, number(&name, value()?)?),
                "--soft-limits" => soft_limits = Some((number(&name, value()?)?, number(&name, value()?)?)),
                "--nice" => nice = Some(number(&name, value()?)?),
                "--held" => {
                    let (program, directory) = (descriptor(&name, value()?)?, descriptor(&name, value()?)?);
                    let content = descriptor(&name, value()?)?;
                    let (then, is_binary) = (number(&name, value()?)?, number(&name, value()?)?);
                    held.push(Held::new(program, then, is_binary, content, directory));
                }
                _ => return Err(format!("unknown option {name}; ft-shepherd is started by ftrun")),
            }
        }
        let missing = |name: &str| format!("{name} is missing; ft-shepherd is started by ftrun");
        let lifeline = UnixStream::from(lifeline.ok_or(missing("--lifeline"))?);
        lifeline.set_nonblocking(true).map_err(|error| format!("--lifeline: {error}"))?;
        let socket = socket.ok_or(missing("--socket"))?;
        let directory = socket.parent().filter(|directory| directory.parent().is_some()).map(Path::to_path_buf);
        Ok(Options {
            slot: slot.ok_or(missing("--slot"))?,
            job_dir: directory.ok_or(format!("--socket {} is not in a job's directory", socket.display()))?,
            socket,
            lifeline,
            held,
            stdin,
            pipes,
            soft_limits,
            nice,
        })
    }
}

fn number<T: std::str::FromStr>(name: &str, value: OsString) -> Result<T, String> {
    value.to_str().and_then(|text| text.parse().ok()).ok_or(format!("{name} needs a number, not {value:?}"))
}

fn descriptor(name: &str, value: OsString) -> Result<OwnedFd, String> {
    let fd: RawFd = number(name, value)?;
    ft_sys::process::take_inherited_fd(fd).map_err(|error| format!("{name} {fd}: {error}"))
}
