//! The first moments of a part. The daemon starts this program once more, as root, and waits until that is loaded; it becomes the job's
//! user, and `ftrun`. A user may stop what is the user's: so the daemon waits for nothing that is.

use crate::groups::Groups;
use crate::home::Home;
use ft_sys::account;
use ft_sys::as_user::{Credentials, become_user, execute};
use ft_sys::channel::Channel;
use ft_sys::helper::Helper;
use ft_wire::Role;
use ft_wire::part::{FromPart, PART, PART_FD, ToPart};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the daemon calls this.
pub const COMMAND: &str = "start-part";
/// This program, also when another one is installed in its place.
const OWN: &str = "/proc/self/exe";
/// The daemon, which has just started this, listens.
const DAEMON: Duration = Duration::from_secs(10);

/// Who is to be born.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// `ftrun`, or `ftctl`.
    pub program: PathBuf,
    /// What it is started for: [`PART`](ft_wire::part::PART), to clean up behind one, or to find an agent.
    pub word: String,
    /// The job's name.
    pub job: String,
    /// The user's name.
    pub user: String,
    /// Who it is to be; who this daemon is, without.
    pub credentials: Option<Credentials>,
    /// With which nice value.
    pub nice: i32,
    /// The environment: `NAME=value`, each with a zero behind it.
    pub env: Vec<u8>,
    /// The step of Slurm's in which it is to live.
    pub home: Option<Home>,
}

/// Starts it, with this link; `mounts` are those of the step in which it is to live. Returns its pid; the caller waits for it.
///
/// # Errors
/// What the system said.
pub fn start(birth: &Birth, link: BorrowedFd<'_>, mounts: Option<BorrowedFd<'_>>) -> io::Result<i32> {
    let mut memory = File::from(ft_sys::memory::create_memfd("ft-part", 0)?);
    // Not among the arguments, which everybody may read, and not in the environment, which loads libraries into what is root's still.
    memory.write_all(&ft_wire::encode(birth, 0).map_err(io::Error::other)?)?;
    memory.rewind()?;
    let descriptors: Vec<BorrowedFd<'_>> = [link, memory.as_fd()].into_iter().chain(mounts).collect();
    let numbers = descriptors.iter().map(|fd| fd.as_raw_fd().to_string().into());
    Helper {
        program: Path::new(OWN),
        arguments: std::iter::once(COMMAND.into()).chain(numbers).collect(),
        environment: Vec::new(),
        descriptors: &descriptors,
        output: None,
        own_session: true,
    }
    .start()
}

/// Is it: returns only where nothing comes of it, with the exit status.
pub fn be(link: RawFd, memory: RawFd, mounts: Option<RawFd>) -> u8 {
    let inherited = ft_sys::process::take_inherited_fd;
    let (Ok(link), Ok(memory)) = (inherited(link), inherited(memory)) else {
        ft_sys::log::say(format_args!("ftd: {COMMAND} is for ftd alone"));
        return 2;
    };
    let mounts = mounts.and_then(|mounts| inherited(mounts).ok());
    let Err(sentence) = attempt(&link, memory, mounts);
    // Who listens hears it as the part's.
    let mut channel = Channel::from_stream(UnixStream::from(link));
    let told = channel.exchange(Role::Launcher, DAEMON).and_then(|_| channel.receive::<ToPart>(Some(DAEMON)));
    let _ = told.and_then(|_| channel.send(&FromPart::Refused { status: 1, sentence }, &[]));
    1
}

fn attempt(link: &OwnedFd, memory: OwnedFd, mounts: Option<OwnedFd>) -> Result<std::convert::Infallible, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let mut frame = Vec::new();
    File::from(memory).read_to_end(&mut frame).map_err(failed("what ftd asks for cannot be read"))?;
    let body = frame.get(ft_wire::FRAME_HEADER..).unwrap_or_default();
    let birth: Birth = ft_wire::decode(body).map_err(|error| error.to_string())?;
    if let Some(who) = &birth.credentials
        && let Some(why) = account::refusal(&birth.user, who.uid)
    {
        return Err(why);
    }
    if let Some((home, mounts)) = birth.home.as_ref().zip(mounts) {
        home.enter(mounts).map_err(failed("ftrun cannot be brought to where the step of Slurm's is"))?;
    } else if birth.word == PART
        && let Err(error) = Groups::own().enter(&birth.job)
    {
        ft_sys::log::say(format_args!("ftd: job {} runs in ftd's own control group: {error}", birth.job));
    }
    become_user(birth.credentials.as_ref(), birth.nice).map_err(failed("ftrun cannot be the user's"))?;
    let name = birth.program.file_name().unwrap_or_default().to_string_lossy();
    let argv = [&*name, &birth.word, &birth.job];
    execute(&birth.program, &argv, &birth.env, (link.as_fd(), PART_FD)).map_err(failed("ftrun cannot be started"))
}
