//! The launcher's part on one node of a job over several: `ftrun` as the node's daemon starts it, as the job's user. It is told the
//! command line by the daemon, makes ready what this node needs, and is a launcher whose terminal is on another node.

use crate::batch::Batch;
use crate::launcher::Launcher;
use crate::options::{self, Request};
use crate::output::Output;
use crate::tasks::Tasks;
use crate::{Refusal, describe, helpers, limits, own_proc, say};
use ft_sys::channel::{Channel, ChannelError};
use ft_sys::image::RESOURCES;
use ft_wire::cluster::Cluster;
use ft_wire::part::{self, Begin, FromPart, Order, PART_FD, SILENT, ToPart};
use ft_wire::{Role, Slot};
use nix::sys::resource::{getrlimit, setrlimit};
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::stat::{Mode, umask};
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The daemon that has started this says at once why.
const DAEMON: Duration = Duration::from_secs(10);
/// … and within this time that all others are ready, or that they are not.
const OTHERS: Duration = Duration::from_secs(300);
/// A port that is free for TCP may be somebody's for UDP.
const PORTS: usize = 64;

/// What a launcher has that is only a part of one.
#[derive(Debug)]
pub struct Part {
    link: Channel,
    writer: OwnedFd,
    open: bool,
    /// When something was heard of the launcher last, or nothing need have been.
    heard: Instant,
    begin: Begin,
    sockets: Option<(TcpListener, UdpSocket)>,
    cluster: Option<Box<Cluster>>,
    /// Its shepherds, where they are tasks of Slurm's.
    pub tasks: Option<Tasks>,
    /// The sbatch in which they are, and the link.
    pub batch: Option<(Batch, OwnedFd)>,
}

/// Why a part ends before it is one.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// There is no link.
    #[error("{0} is for ftd alone, which starts ftrun so on the nodes of a job")]
    NotStarted(&'static str),
    /// It broke.
    #[error("the link to ftd: {0}")]
    Link(#[from] ChannelError),
    /// As above.
    #[error("the link to ftd: {0}")]
    Io(#[from] io::Error),
    /// Something else came over it.
    #[error("ftd said something else than what a part begins with")]
    Unexpected,
}

/// Runs the part; returns its exit status.
pub fn run() -> i32 {
    match attempt() {
        Ok(status) => status,
        Err(error) => {
            say(&error.to_string());
            1
        }
    }
}

fn attempt() -> Result<i32, PartError> {
    let inherited = ft_sys::process::take_inherited_fd(PART_FD);
    let stream = UnixStream::from(inherited.map_err(|_| PartError::NotStarted(ft_wire::part::PART))?);
    let mut link = Channel::from_stream(stream);
    link.exchange(Role::Launcher, DAEMON)?;
    let begin = match link.receive(Some(DAEMON))?.0 {
        ToPart::Begin(begin) => begin,
        ToPart::BeginStep { begin, node } => {
            // From here on the daemon has nothing to say.
            drop(link);
            return crate::in_step::run(begin, *node);
        }
        _ => return Err(PartError::Unexpected),
    };
    let tell = |link: &mut Channel, word: FromPart| link.send(&word, &[]);
    let (ready, sockets) = match prepare(&begin, options::parse) {
        Ok(ready) => ready,
        Err(refusal) => {
            let (status, sentence) = (refusal.status(), refusal.to_string());
            tell(&mut link, FromPart::Refused { status, sentence })?;
            return Ok(1);
        }
    };
    let port = sockets.as_ref().and_then(|(tcp, _)| tcp.local_addr().ok()).map_or(0, |address| address.port());
    let host = ft_sys::process::host_name()?;
    tell(&mut link, FromPart::Prepared { port, host, protocol: ft_wire::version() })?;
    let ToPart::Go { mut cluster } = link.receive(Some(OTHERS))?.0 else { return Err(PartError::Unexpected) };
    if let Some(cluster) = &mut cluster {
        cluster.store.socket = begin.store.clone();
    }
    let Ready { options, mut spec, helpers, held, soft } = ready;
    spec.node = Some(begin.node.clone());
    spec.cluster = cluster.as_deref().cloned();
    spec.nice = Some(begin.nice);
    spec.copy_rate = ft_sys::rate::stricter(spec.copy_rate, begin.copy_rate);
    spec.fabric.clone_from(&begin.fabric);
    let mut second = Channel::from_stream(link.try_clone()?);
    let part = Part::new(link, begin, sockets, cluster, None)?;
    match Launcher::start(options, spec, helpers, held, soft, Some(part)) {
        Ok(launcher) => Ok(launcher.run()),
        Err(error) => {
            fails(&mut second, error.to_string())?;
            Ok(1)
        }
    }
}

/// The last word of a part that could not begin.
///
/// # Errors
/// Nobody hears it.
pub fn fails(link: &mut Channel, reason: String) -> Result<(), ChannelError> {
    link.send(
        &FromPart::Ended { status: 1, of_job: false, unrecorded: false, lost_output: false, reason: Some(reason) },
        &[],
    )
}

/// All that can be known before the others are asked.
pub struct Ready {
    /// The command line.
    pub options: options::Options,
    /// The job, but for what the others say.
    pub spec: ft_wire::launcher::JobSpec,
    /// ftd's other programs.
    pub helpers: helpers::Helpers,
    /// The programs and their working directories.
    pub held: Vec<crate::held::Held>,
    /// The user's limits.
    pub soft: limits::Soft,
}

/// Where the agent will be reached.
pub type Sockets = Option<(TcpListener, UdpSocket)>;

/// How a command line is read.
type Parse = fn(Vec<OsString>) -> Result<Request, options::OptionError>;

/// Makes ready what is needed here.
///
/// # Errors
/// One sentence.
pub fn prepare(begin: &Begin, parse: Parse) -> Result<(Ready, Sockets), Refusal> {
    umask(Mode::from_bits_truncate(begin.umask));
    for (resource, wanted) in RESOURCES.into_iter().zip(&begin.limits) {
        if let Ok((_, hard)) = getrlimit(resource) {
            let _ = setrlimit(resource, (*wanted).min(hard), hard);
        }
    }
    let cwd = &begin.cwd;
    std::env::set_current_dir(cwd).map_err(|error| Refusal::Directory {
        option: "the working directory",
        path: cwd.clone(),
        error,
    })?;
    let words = part::split(&begin.words).map(|word| OsString::from_vec(word.to_vec()));
    let Request::Run(options) = parse(words.collect())? else { return Err(Refusal::NoJob) };
    let options = *options;
    ft_sys::slice::shorten();
    ft_sys::process::survive_file_size_limit();
    own_proc::check()?;
    let helpers = helpers::Helpers::find()?;
    helpers.check()?;
    let (spec, held) = describe(&options, own_slots(begin, options.ranks), &helpers)?;
    let soft = limits::raise(own_slots(begin, options.ranks))?;
    let sockets = begin.share.bind.map(bind).transpose()?;
    Ok((Ready { options, spec, helpers, held, soft }, sockets))
}

/// How many ranks' processes there may be here: on the only node of a job there are no others, unless Slurm has said how many.
fn own_slots(begin: &Begin, ranks: u32) -> u32 {
    if begin.share.bind.is_some() || ranks == 0 { begin.share.slots } else { ranks }
}

/// A port of that address that is free for TCP and for UDP.
fn bind(address: IpAddr) -> Result<(TcpListener, UdpSocket), Refusal> {
    let refuse = |error| Refusal::Bind { address, error };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORTS {
        let tcp = TcpListener::bind((address, 0)).map_err(refuse)?;
        match UdpSocket::bind(tcp.local_addr().map_err(refuse)?) {
            Ok(udp) => return Ok((tcp, udp)),
            Err(error) => last = error,
        }
    }
    Err(refuse(last))
}

impl Part {
    /// One that has heard that all are ready.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new(
        link: Channel,
        begin: Box<Begin>,
        sockets: Sockets,
        cluster: Option<Box<Cluster>>,
        tasks: Option<Tasks>,
    ) -> io::Result<Part> {
        let writer = link.try_clone()?;
        let heard = Instant::now();
        Ok(Part { link, writer, open: true, heard, begin: *begin, sockets, cluster, tasks, batch: None })
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.begin.share.job
    }

    /// Where the output of this node goes.
    ///
    /// # Errors
    /// When no descriptor or thread is left.
    pub fn output(&self) -> io::Result<Output> {
        Output::far(Box::new(self.writer.try_clone()?))
    }

    /// The first slot here.
    pub fn first_slot(&self) -> Slot {
        self.cluster.as_ref().and_then(|cluster| cluster.own()).map_or(0, |node| node.first_slot)
    }

    /// How many slots there are here, of a job of so many ranks.
    pub fn slots(&self, ranks: u32) -> u32 {
        if self.tasks.is_some() { self.begin.share.slots } else { own_slots(&self.begin, ranks) }
    }

    /// The slot that follows this one.
    pub fn slot_after(&self, slot: Slot) -> Slot {
        self.cluster.as_ref().map_or(slot + 1, |cluster| cluster.slot_after(slot))
    }

    /// Where the agents of other nodes reach this node's.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().flat_map(|(tcp, udp)| [tcp.as_fd(), udp.as_fd()])
    }

    /// Whether somebody may still ask for something.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Nobody does.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Nobody hears this part any more, and it hears nobody: what it says to one that stands still must not hold it up.
    pub fn hang_up(&mut self) {
        self.close();
        let _ = shutdown(self.writer.as_raw_fd(), Shutdown::Both);
    }

    /// Whether the launcher, or who is between it and this part, stands still. `in_time`: this process itself has run. Between a step's front
    /// and its parts there is nobody, and that one may be stopped as srun may be.
    pub fn is_silent(&mut self, now: Instant, in_time: bool) -> bool {
        if !in_time {
            self.heard = now;
        }
        self.open && self.tasks.is_none() && now.duration_since(self.heard) >= SILENT
    }

    /// What is asked for next, if anything is.
    ///
    /// # Errors
    /// Nobody will ask any more.
    pub fn next(&mut self) -> Result<Option<Order>, ChannelError> {
        match self.link.try_receive()? {
            Some((ToPart::Order(order), _)) => {
                self.heard = Instant::now();
                Ok(Some(order))
            }
            // The daemon says the rest once, at the beginning.
            Some(_) | None => Ok(None),
        }
    }
}

impl AsFd for Part {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_for_both() {
        let (tcp, udp) = bind(IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!(tcp.local_addr().unwrap(), udp.local_addr().unwrap());
        assert!(bind(IpAddr::from([198, 18, 255, 254])).unwrap_err().to_string().contains("198.18.255.254"));
    }
}
