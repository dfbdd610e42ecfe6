//! Where a process of the slot writes to.

use ft_sys::channel::{Channel, ChannelError};
use ft_sys::standard::SlotsPipe;
use ft_wire::shepherd::Pipes;
use ft_wire::{Rank, World};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Standard output and standard error of a process to be.
type Ends = (OwnedFd, OwnedFd);
/// A variable for its environment.
type Variable = (Vec<u8>, Vec<u8>);

/// The way to whoever reads what processes write.
#[derive(Debug)]
pub struct Output {
    launcher: Option<Channel>,
    /// The reading ends, which tell whether anybody can write still. Nothing is read here.
    held: Vec<OwnedFd>,
    /// What they are called in [`ft_sys::filters::Piping`].
    pipes: Vec<u64>,
}

impl Output {
    /// Pipes go to the launcher through this socket, if there is one.
    pub fn new(launcher: Option<UnixStream>) -> Output {
        Output { launcher: launcher.map(Channel::from_stream), held: Vec::new(), pipes: Vec::new() }
    }

    /// What a process is to write to, if not this process's own streams, and the variable that tells it so.
    ///
    /// # Errors
    /// When no descriptor is left, or the launcher does not take them.
    pub fn open(&mut self, world: World, rank: Rank) -> io::Result<(Option<Ends>, Option<Variable>)> {
        let Some(launcher) = &mut self.launcher else {
            return Ok((None, identity(io::stdout().as_fd())));
        };
        let pipe = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(io::Error::from);
        let ((out, out_end), (err, err_end)) = (pipe()?, pipe()?);
        launcher.send(&Pipes { world, rank }, &[out.as_fd(), err.as_fd()]).map_err(|error| match error {
            ChannelError::Io(error) => error,
            error => io::Error::other(error),
        })?;
        let variable = identity(out_end.as_fd());
        self.pipes = [&out, &err].into_iter().filter_map(|fd| ft_sys::filters::pipe_of(fd.as_fd())).collect();
        self.held = vec![out, err];
        Ok((Some((out_end, err_end)), variable))
    }

    /// What hangs up when nobody can write any more; only those for which somebody can.
    pub fn held(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let hung_up = |fd: BorrowedFd<'_>| {
            let mut asked = [PollFd::new(fd, PollFlags::empty())];
            poll(&mut asked, PollTimeout::ZERO) != Ok(0)
        };
        self.held.iter().map(AsFd::as_fd).filter(move |fd| !hung_up(*fd))
    }

    /// Whether somebody can write.
    pub fn is_held(&self) -> bool {
        self.held().next().is_some()
    }

    /// Whether this process can.
    pub fn is_held_by(&self, pid: i32) -> bool {
        ft_sys::filters::has_open(pid, &self.pipes)
    }

    /// Whether something lies in the pipes that the launcher has not read.
    pub fn is_unread(&self) -> bool {
        self.held.iter().any(|fd| ft_sys::filters::is_unread(fd.as_fd()))
    }

    /// What these pipes are called in [`ft_sys::filters::Piping`].
    pub fn pipes(&self) -> &[u64] {
        &self.pipes
    }

    /// Nobody is left who could write.
    pub fn leave(&mut self) {
        self.held.clear();
        self.pipes.clear();
    }
}

/// Tells the preload which pipe makes a standard output that is to be live. What a wrapper puts there instead, a file for
/// example, is left as the program wants it.
fn identity(stdout: BorrowedFd<'_>) -> Option<Variable> {
    let stat = fstat(stdout).ok()?;
    let is_pipe = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO;
    let name = SlotsPipe::name(stdout).filter(|_| is_pipe)?;
    Some((b"FT_STDOUT".to_vec(), name.into_bytes()))
}
