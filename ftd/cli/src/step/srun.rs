//! The real srun, and what it needs of Slurm and of this machine.

use ft_sys::divide::{self, Fate};
use ft_wire::step::{BATCH, PORTS, STEP, StepId};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What Slurm has to leave to ftd. The user's own words come after these.
const WORDS: [&str; 4] = ["--mpi=none", "--kill-on-bad-exit=0", "--no-kill", "--wait=0"];
/// A controller that is there has taken a word within this time.
const CONTROLLER: Duration = Duration::from_secs(1);
/// The signals with which a terminal's keys end or stop whole process groups, of which srun is in the same.
const OF_KEYS: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP];

/// Signals that end it.
const ENDING: [i32; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGALRM];

/// The child.
#[derive(Debug)]
pub struct Srun {
    program: PathBuf,
    pid: i32,
    signals: SignalFd,
    status: Option<i32>,
    /// It was told to end.
    told: bool,
    /// What it has read and written when that was looked at last, and since when that has been so.
    moved: (String, Instant),
    /// It holds an allocation of its own, which ends with it.
    allocates: bool,
}

impl Srun {
    /// Starts it, with what its tasks have to know.
    ///
    /// # Errors
    /// What the system said.
    pub fn start(program: &OsStr, words: &[OsString], step: &str) -> io::Result<Srun> {
        divide::default_signal(libc::SIGCHLD);
        let set = crate::signals::heeded();
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // The standard library gives it no blocked signals.
        let mut command = Command::new(program);
        command.args(WORDS).args(words).env(STEP, step).env_remove(PORTS);
        match script() {
            Some(node) => command.env(BATCH, node),
            None => command.env_remove(BATCH),
        };
        let child = command.spawn()?;
        let allocates = std::env::var_os("SLURM_JOB_ID").is_none() && std::env::var_os("SLURM_JOBID").is_none();
        let moved = (String::new(), Instant::now());
        let pid = child.id() as i32;
        Ok(Srun { program: program.into(), pid, signals, status: None, told: false, moved, allocates })
    }

    /// Readable when there is something to [look](Self::look) at.
    pub fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Its exit status, when it has ended.
    pub fn status(&self) -> Option<i32> {
        self.status
    }

    /// Passes signals on, and looks how it is.
    pub fn look(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let number = info.ssi_signo as i32;
            self.told |= ENDING.contains(&number);
            let to_group = info.ssi_code > 0 && OF_KEYS.contains(&number);
            if number != libc::SIGCHLD && !to_group {
                self.signal(number);
            }
            if number == libc::SIGTSTP {
                // It cannot fail; SIGCONT brings this process back to this line.
                let _ = nix::sys::signal::raise(Signal::SIGSTOP);
            }
        }
        while self.status.is_none()
            && let Some(fate) = divide::fate(self.pid)
        {
            match fate {
                Fate::Exited(status) => self.status = Some(status),
                Fate::Killed(signal) => self.status = Some(128 + signal),
                Fate::Stopped => {}
            }
        }
    }

    /// Whether somebody has told it to end, so that nobody wonders what ends with it.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// For how long it has read and written nothing, though whoever reads what it prints would have taken more.
    pub fn stands_still(&mut self) -> Duration {
        let now = std::fs::read_to_string(format!("/proc/{}/io", self.pid)).unwrap_or_default();
        let (out, err) = (io::stdout(), io::stderr());
        let mut sinks = [PollFd::new(out.as_fd(), PollFlags::POLLOUT), PollFd::new(err.as_fd(), PollFlags::POLLOUT)];
        let _ = poll(&mut sinks, PollTimeout::ZERO);
        if now != self.moved.0 || sinks.iter().any(|sink| !sink.any().unwrap_or(true)) {
            self.moved = (now, Instant::now());
        }
        self.moved.1.elapsed()
    }

    fn signal(&self, number: i32) {
        if self.status.is_none() {
            ft_sys::process::kill(self.pid, number);
        }
    }

    /// Ends it, and what Slurm keeps for it. It says nothing to that.
    pub fn end(&mut self, step: Option<StepId>) {
        self.signal(libc::SIGKILL);
        self.status = Some(128 + libc::SIGKILL);
        divide::bury(self.pid);
        let Some(StepId { job, step }) = step else { return };
        let what = if self.allocates { job.to_string() } else { format!("{job}.{step}") };
        let mut scancel = Command::new(self.program.with_file_name("scancel"));
        let quiet = scancel.arg("--quiet").arg(what).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The user's settings may make it ask, or mean other jobs.
        let settings = std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"SCANCEL_"));
        settings.for_each(|(name, _)| {
            quiet.env_remove(name);
        });
        let Ok(mut child) = quiet.spawn() else { return };
        let until = Instant::now() + CONTROLLER;
        // One whose controller does not answer goes on by itself.
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// [`BATCH`], if this is called by the script of an sbatch.
fn script() -> Option<String> {
    let is_batch = std::env::var_os("ENVIRONMENT").is_some_and(|kind| kind == "BATCH");
    let node = std::env::var("SLURMD_NODENAME").ok().filter(|_| is_batch)?;
    Some(format!("{node} {}", ft_sys::process::host_name().ok()?))
}

/// A port on which the nodes may be heard: within Slurm's SrunPortRange, if it has one.
///
/// # Errors
/// None is free.
pub fn listen(srun: &OsStr) -> io::Result<TcpListener> {
    let Some((first, last)) = port_range(Path::new(srun)) else { return bind(0) };
    let count = u32::from(last - first) + 1;
    let start = std::process::id() % count;
    let mut error = io::Error::from(io::ErrorKind::AddrInUse);
    for nth in 0..count {
        match bind(first + ((start + nth) % count) as u16) {
            Ok(listener) => return Ok(listener),
            Err(one) => error = one,
        }
    }
    Err(error)
}

fn bind(port: u16) -> io::Result<TcpListener> {
    // Of both families, where there are two.
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// What Slurm's configuration says. Where the plugin could not ask for it `scontrol` does.
fn port_range(srun: &Path) -> Option<(u16, u16)> {
    if let Some(said) = std::env::var(PORTS).ok().filter(|said| !said.is_empty()) {
        return range(&said);
    }
    let mut scontrol = Command::new(srun.with_file_name("scontrol"));
    let said = scontrol.args(["show", "config"]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    range_in(&String::from_utf8_lossy(&said.stdout))
}

fn range_in(configuration: &str) -> Option<(u16, u16)> {
    let line = configuration.lines().find(|line| line.starts_with("SrunPortRange"))?;
    range(line.split_once('=')?.1)
}

fn range(said: &str) -> Option<(u16, u16)> {
    let (first, last) = said.trim().split_once('-')?;
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 > 0 && range.0 <= range.1).then_some(range)
}

/// Where this machine is, as far as its name says; Slurm tells the tasks where srun is.
pub fn addresses(port: u16) -> Vec<SocketAddr> {
    let name = ft_sys::process::host_name().unwrap_or_default();
    let found = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    let mut found: Vec<SocketAddr> = found.into_iter().filter(|address| !address.ip().is_loopback()).collect();
    if found.is_empty() {
        found.push(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_ports_is_slurms() {
        let of = |value: &str| range_in(&format!("SlurmctldPort = 6817\nSrunPortRange           = {value}\nX = 1\n"));
        assert_eq!(of("7000-7199"), Some((7000, 7199)));
        for other in ["0-0", "(null)", "9-8", "N/A"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(range_in(""), None);
    }
}
