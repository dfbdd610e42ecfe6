//! The launcher of a job over several nodes: asks this node's daemon for its parts on all of them, passes on what the user says, and
//! puts together what they say. It decides nothing about the job: the agents do. The near ends of the links to the parts are here, so that
//! whoever serves this process between may die ([`Connection`]).

mod links;

use crate::cancel::Cancelled;
use crate::connection::{Connection, GONE};
use crate::ends::Ends;
use crate::front::Front;
use crate::hosts::{Hosts, HostsError};
use crate::link::Link;
use crate::options::Options;
use crate::output::{AGENT, Output};
use crate::signals::{Meaning, Signals};
use crate::stdin::{Piece, Relay};
use crate::time_limit::TimeLimit;
use ft_sys::channel::ChannelError;
use ft_sys::job_time;
use ft_sys::timescale::scaled;
use ft_wire::Epoch;
use ft_wire::cluster::{Cluster, ClusterNode};
use ft_wire::part::{Carried, FromJobs, FromPart, Image, MAX_IMAGE, MAX_LAUNCH, Order, Request, Resume, ToJobs};
use ft_wire::step::DAEMON;
use ftd_core::policy::Mode;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// All parts are ready within this time, or a daemon has said why not.
const BEGIN: Duration = Duration::from_secs(120);
/// When one part has ended its node's part of the job, each of the others has so long to say something.
const END: Duration = Duration::from_secs(60);
/// A process that serves this one and does not answer for so long is as good as dead; parts end what there is of the job after 15 s.
const SILENT: Duration = Duration::from_secs(6);
/// So many words are heard before all else is looked at again.
const WORDS: usize = 256;
/// The front is looked at this often, and the daemon asked.
const LOOK: Duration = Duration::from_secs(1);
/// While another process group has the terminal this is how often it is looked at.
const TERMINAL_AGAIN: Duration = Duration::from_millis(200);
/// Parts that have been told to end at once have this long.
const LEAVE: Duration = Duration::from_secs(15);
/// Who has asked for the end waits this long for a reader that stands still.
const READER: Duration = Duration::from_secs(5);

/// Why there is no job, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The nodes.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// No daemon.
    #[error("no ftd answers on {}: {error}; --hosts needs it on this node and on those of the job (systemctl status ftd)", path.display())]
    Nobody {
        /// On which socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It says something else.
    #[error("ftd ({}): {error}{}", path.display(), error.of_daemon())]
    Link {
        /// On which socket.
        path: PathBuf,
        /// What.
        error: ChannelError,
    },
    /// It refuses.
    #[error("{sentence}")]
    Refused {
        /// The exit status for that.
        status: u8,
        /// Why.
        sentence: String,
    },
    /// The command line with its environment is longer than a daemon takes.
    #[error("the command line and the environment together are longer than the {} MiB that ftd takes", MAX_IMAGE >> 20)]
    TooLong,
    /// As above.
    #[error("the names of {0} nodes are more than ftd takes: a job has at most {most} nodes", most = ft_wire::part::MOST_NODES)]
    TooMany(usize),
    /// It does not answer.
    #[error("ftd ({}) has not said within {} s whether the job begins on {nodes}: the job was given up", path.display(), BEGIN.as_secs())]
    Silent {
        /// On which socket.
        path: PathBuf,
        /// The nodes of the job.
        nodes: String,
    },
    /// Something that every process needs.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl ClusterError {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            ClusterError::Hosts(_) => 2,
            ClusterError::Refused { status, .. } => *status,
            _ => 1,
        }
    }
}

/// A node of the job.
#[derive(Debug)]
struct Node {
    name: String,
    link: Link,
    /// Nothing more comes from it.
    over: bool,
    /// It is looked for: another part may be there soon; nothing, where it never was.
    lost: Option<bool>,
    /// Why nothing more comes from it, behind what is here.
    why: Option<String>,
    /// How often its agent has said what.
    notices: BTreeMap<String, usize>,
}

impl Node {
    fn new(name: String, link: Link) -> Node {
        Node { name, link, over: false, lost: None, why: None, notices: BTreeMap::new() }
    }
}

/// The job, as it is seen from here.
struct Above<'a> {
    options: &'a Options,
    daemon: Connection,
    image: Image,
    /// What each part is told of the others, if there are any.
    cluster: Option<Rc<Cluster>>,
    job: String,
    window: u32,
    /// Parts that wait to be told that they may start.
    waiting: VecDeque<u32>,
    /// There was no room for what parts say.
    full: bool,
    /// More words may be here than were heard at a time: what was read of them already makes nothing ready.
    more: bool,
    /// Nobody comes in any more.
    ends: bool,
    signals: Signals,
    front: Front,
    looked: Instant,
    output: Output,
    input: Relay,
    nodes: Vec<Node>,
    notices: BTreeMap<String, usize>,
    announced: Epoch,
    cancelled: Option<Cancelled>,
    limit: TimeLimit,
    /// When the job is begun at the latest.
    begin: Instant,
    /// Parts that have not ended by then never will.
    until: Option<Instant>,
    /// Since when the daemon has not answered, though that could have been read; nothing when it owes no answer.
    asked: Option<Instant>,
    /// When it is asked next.
    asks: Instant,
    /// A part has ended in the job's own way; since when nothing has come from any other, though it could have been taken.
    quiet: Option<Instant>,
    /// What the job's agents say of its end.
    said: Ends,
    /// What was the first to go wrong otherwise, so that the job did not go on.
    broken: Option<(i32, String)>,
    lost_output: bool,
    /// A part did not say that it has ended.
    late: bool,
}

/// What a descriptor that is ready belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Signals,
    Link,
    Input,
    Written,
}

/// The nodes for which other machines, or this one's daemon, are to be asked. A job on this machine alone needs none where none runs, nor where
/// the nodes have a name that no daemon has.
///
/// # Errors
/// What is wrong with the nodes.
pub fn needed(options: &Options) -> Result<Option<&Hosts>, ClusterError> {
    let Some(hosts) = &options.hosts else { return Ok(None) };
    let system = |error| ClusterError::System { what: "this machine's name cannot be read", error };
    let told = std::env::var_os("FT_DAEMON").is_some_and(|path| !path.is_empty());
    let asked = (told || std::path::Path::new(DAEMON).exists()) && !hosts.name_loopback()?;
    if asked || options.spares > 0 || !hosts.are_here(&ft_sys::process::host_name().map_err(system)?)? {
        return Ok(Some(hosts));
    }
    if !options.beyond_slots {
        hosts.share(options.ranks, 0, options.per_node)?;
    }
    Ok(None)
}

/// Runs the job; returns its exit status.
///
/// # Errors
/// One sentence; there is no job then.
pub fn run(options: &Options, hosts: &Hosts) -> Result<i32, ClusterError> {
    let (request, image) = request(options, hosts)?;
    crate::missing_variables(options);
    let system = |what| move |error| ClusterError::System { what, error };
    let signals = Signals::open().map_err(system("signals cannot be read"))?;
    let daemon =
        std::env::var_os("FT_DAEMON").filter(|path| !path.is_empty()).map_or_else(|| DAEMON.into(), PathBuf::from);
    let failed = |error| match error {
        ChannelError::Dial { path, error } => ClusterError::Nobody { path, error },
        error => ClusterError::Link { path: daemon.clone(), error },
    };
    let mut daemon = Connection::open(daemon.clone()).map_err(failed)?;
    let nodes = request.hosts.iter().map(|host| host.name.clone()).collect::<Vec<_>>().join(", ");
    let message = ToJobs::Launch(Box::new(request));
    daemon.launch(&message, &image);
    let output = Output::new(options.label, options.once(), options.files()).map_err(system("standard output"))?;
    let mut above = Above {
        options,
        daemon,
        image,
        cluster: None,
        job: String::new(),
        window: 0,
        waiting: VecDeque::new(),
        full: false,
        more: false,
        ends: false,
        signals,
        front: Front::default(),
        looked: Instant::now(),
        output,
        input: Relay::open(options.mode != Mode::None).map_err(system("standard input"))?,
        nodes: Vec::new(),
        notices: BTreeMap::new(),
        announced: 0,
        cancelled: None,
        limit: TimeLimit::new(options.timeout, job_time::now()),
        begin: job_time::now() + scaled(BEGIN),
        until: None,
        asked: None,
        asks: job_time::now(),
        quiet: None,
        said: Ends::default(),
        broken: None,
        lost_output: false,
        late: false,
    };
    above.run(&nodes)?;
    Ok(above.leave())
}

fn request(options: &Options, hosts: &Hosts) -> Result<(Request, Image), ClusterError> {
    let here = |error| ClusterError::System {
        what: "the directory in which ftrun was started cannot be used any more",
        error,
    };
    let image = ft_sys::image::of_this_process(words(options), std::env::vars_os()).map_err(here)?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let request = Request {
        protocol: ft_wire::version(),
        ranks: options.ranks,
        heartbeat_ms: options.heartbeat.map(|(_, timeout)| ms(timeout)),
        heartbeat_period_ms: options.heartbeat.map(|(period, _)| ms(period)),
        hosts: hosts.share(options.ranks, options.spares, options.per_node)?,
        spares: options.spares,
        survives: options.mode != Mode::None,
        wait_ms: ms(options.wait),
        oversubscribe: options.oversubscribe,
    };
    let fits = |length: Result<Vec<u8>, _>, most| length.is_ok_and(|frame| frame.len() + 64 <= most);
    if !fits(ft_wire::encode(&request, 0), MAX_LAUNCH) {
        return Err(ClusterError::TooMany(request.hosts.len()));
    }
    if !fits(ft_wire::encode(&image, 0), MAX_IMAGE) {
        return Err(ClusterError::TooLong);
    }
    Ok((request, image))
}

/// The command line for the parts, which do not look for nodes: who counts ranks by them has done so here.
fn words(options: &Options) -> impl Iterator<Item = OsString> {
    let mut typed = std::env::args_os();
    let name = typed.next();
    let ranks = ["-n".into(), options.ranks.to_string().into()].into_iter().filter(|_| options.ranks_of_nodes);
    name.into_iter().chain(ranks).chain(typed)
}

impl Above<'_> {
    fn run(&mut self, nodes: &str) -> Result<(), ClusterError> {
        while !self.is_over() {
            if self.nodes.is_empty() && job_time::now() >= self.begin {
                return Err(ClusterError::Silent { path: self.daemon.path().into(), nodes: nodes.into() });
            }
            let ready = self.wait().map_err(|error| ClusterError::System { what: "poll", error })?;
            if ready.contains(&Ready::Signals) {
                while let Some(meaning) = self.signals.next() {
                    self.signal(meaning);
                }
            }
            if ready.contains(&Ready::Link) || self.more {
                self.listen()?;
            }
            if ready.contains(&Ready::Input) {
                let read = self.input.read();
                self.feed(read);
            }
            if self.input.waits_for_terminal() {
                self.input.look_at_terminal();
            }
            let now = job_time::now();
            self.output.tick(now);
            self.take();
            self.look_at_limit(job_time::now());
            self.look_at_cancelled(now);
            self.look_at_front();
            self.look_at_daemon();
            self.ask(now);
        }
        Ok(())
    }

    /// A daemon that stands still takes what it is told as long as the system has room for it, and nothing may have to be told.
    fn ask(&mut self, now: Instant) {
        if self.nodes.iter().all(|node| node.over) || self.daemon.is_lost() {
            return;
        }
        if self.asked.is_some_and(|since| now >= since + scaled(SILENT)) {
            self.lose_daemon(&ChannelError::TimedOut(SILENT));
        } else if self.asked.is_none() && now >= self.asks {
            (self.asked, self.asks) = (Some(now), now + scaled(LOOK));
            self.say(&ToJobs::Ask);
        }
    }

    /// Whether nothing more is to be heard.
    fn is_over(&mut self) -> bool {
        // What is not taken is not missing.
        if !self.output.has_room() {
            self.heard();
        }
        let begun = !self.nodes.is_empty();
        if begun && self.nodes.iter().all(|node| node.over) {
            return true;
        }
        if self.cancelled.is_some() && !begun {
            return true;
        }
        let now = job_time::now();
        let ending = self.quiet.is_some_and(|since| now >= since + scaled(END));
        if ending || self.until.is_some_and(|until| now >= until) {
            let silent: Vec<&str> =
                self.nodes.iter().filter(|node| !node.over).map(|node| node.name.as_str()).collect();
            let sentence = format!("{} did not say in time that nothing is left of the job there", silent.join(", "));
            self.output.say(&format!("ftrun: {sentence}"));
            self.late = !self.said.are_done();
            return true;
        }
        false
    }

    fn wait(&self) -> io::Result<Vec<Ready>> {
        let stdin = io::stdin();
        let mut waited = vec![(Ready::Signals, PollFd::new(self.signals.as_fd(), PollFlags::POLLIN))];
        // Who serves this process may have died, whether there is room for what parts say or not.
        if let Some(link) = self.daemon.to_read() {
            waited.push((Ready::Link, PollFd::new(link, PollFlags::POLLIN)));
        }
        if self.input.wants_to_read() {
            waited.push((Ready::Input, PollFd::new(stdin.as_fd(), PollFlags::POLLIN)));
        }
        waited.push((Ready::Written, PollFd::new(self.output.written(), PollFlags::POLLIN)));
        let deadlines = [
            self.output.deadline(),
            self.until,
            self.quiet.map(|since| since + scaled(END)),
            self.nodes.is_empty().then_some(self.begin),
            self.limit.deadline().filter(|_| self.cancelled.is_none() && self.until.is_none()),
            self.cancelled.filter(|_| self.until.is_none()).map(|cancelled| cancelled.deadline()),
            self.input.waits_for_terminal().then(|| job_time::now() + TERMINAL_AGAIN),
        ];
        let left = deadlines.into_iter().flatten().min().map_or(LOOK, job_time::until);
        let left = left.min(self.daemon.tries_in().unwrap_or(LOOK)).min(LOOK);
        let left = if self.more { Duration::ZERO } else { left };
        let (of, mut fds): (Vec<Ready>, Vec<PollFd<'_>>) = waited.into_iter().unzip();
        match poll(&mut fds, ft_sys::patience::at_most(job_time::piece(left))) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        Ok(of.into_iter().zip(&fds).filter(|(_, fd)| fd.any().unwrap_or(true)).map(|(ready, _)| ready).collect())
    }

    /// Before the job has begun nobody is there to be told. A daemon that is gone is noticed by its link.
    fn tell(&mut self, to: Option<u32>, order: Order) {
        if self.nodes.iter().all(|node| node.over) {
            return;
        }
        if matches!(order, Order::Cancel(_) | Order::Kill(_)) && !std::mem::replace(&mut self.ends, true) {
            self.say(&ToJobs::Ends);
        }
        for number in 0..self.nodes.len() as u32 {
            let Some(node) = self.open(number).filter(|_| to.is_none_or(|to| to == number)) else { continue };
            if node.link.give(order.clone()) {
                self.send_over(number);
            } else {
                self.hang_up(number, "the part of the job there takes nothing of what it is told");
            }
        }
    }

    /// Sends what was read of standard input to where rank 0 is.
    fn feed(&mut self, piece: Option<Piece>) {
        if let Some((node, read)) = piece {
            self.tell(Some(node), read.map_or(Order::InputEnd, Order::Input));
        }
        if let Some(sentence) = self.input.trouble() {
            self.output.say(&format!("ftrun: {sentence}"));
        }
    }

    fn say(&mut self, message: &ToJobs) {
        // Over links it is sent again, and all else is said with `Resume`.
        if let Err(error @ ChannelError::TimedOut(_)) = self.daemon.say(message) {
            self.lose_daemon(&error);
        }
    }

    /// The connection to the daemon is lost, and with it what was under way: another process there may serve this one.
    fn lose_daemon(&mut self, error: &ChannelError) {
        ft_sys::gate::reach("launcher.alone", None);
        self.look_elsewhere(&error.to_string(), matches!(error, ChannelError::TimedOut(_)));
    }

    fn look_elsewhere(&mut self, why: &str, stands_still: bool) {
        self.asked = None;
        self.daemon.lose(why, stands_still);
        // Nothing is sent before the ends of each link have said how far they are.
        for node in self.nodes.iter_mut().filter(|node| !node.over) {
            let _ = node.link.mark();
        }
    }

    /// Looks for another process.
    fn look_at_daemon(&mut self) {
        if self.daemon.tries_in() != Some(Duration::ZERO) {
            return;
        }
        let numbered = || self.nodes.iter().enumerate();
        let numbers = |of: &dyn Fn(&Node) -> bool| {
            numbered().filter(|(_, node)| of(node)).map(|(number, _)| number as u32).collect::<Vec<u32>>()
        };
        let resume = Resume {
            protocol: ft_wire::version(),
            job: self.job.clone(),
            nodes: self.nodes.len() as u32,
            open: numbers(&|node| !node.over),
            lost: if self.ends { Vec::new() } else { numbers(&|node| node.lost == Some(true)) },
        };
        // Nothing more is to be heard of anybody, and the parts end when they hear of nobody.
        if let Err(why) = self.daemon.resume(&ToJobs::Resume(Box::new(resume)), &self.image) {
            let waited = scaled(GONE).as_secs();
            self.give_up(format!(
                "this node's ftd is gone and could not be reached again within {waited} s ({}: {why}): the job was ended on all nodes",
                self.daemon.path().display()
            ));
        }
    }

    fn give_up(&mut self, sentence: String) {
        self.broken.get_or_insert((1, sentence));
        self.nodes.iter_mut().for_each(|node| node.over = true);
    }

    fn signal(&mut self, meaning: Meaning) {
        match meaning {
            Meaning::Child => drop(crate::family::reap()),
            Meaning::End(signal) => self.cancel(signal, job_time::now()),
            Meaning::Forward(signal) => self.tell(None, Order::Signal(signal)),
            Meaning::Continue => {
                self.front.goes_on();
                job_time::go_on();
                self.input.look_at_terminal();
                self.tell(None, Order::Signal(libc::SIGCONT));
            }
            Meaning::Stop => {
                self.tell(None, Order::Signal(libc::SIGTSTP));
                job_time::stop();
                // It cannot fail; SIGCONT brings this process back to this line.
                let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
                job_time::go_on();
            }
        }
    }

    /// The job is to end: the ranks hear it first. Another signal ends it by force.
    fn cancel(&mut self, signal: i32, now: Instant) {
        job_time::go_on();
        match &self.cancelled {
            None => {
                self.cancelled = Some(Cancelled::new(signal, self.options.grace, now));
                self.tell(None, Order::Cancel(signal));
                if self.nodes.is_empty() {
                    let name = crate::signals::name(signal);
                    self.broken
                        .get_or_insert((128 + signal, format!("{name} came before the job had begun: it does not")));
                }
            }
            Some(first) if first.is_another(now) => {
                self.tell(None, Order::Cancel(signal));
                self.until.get_or_insert(now + LEAVE);
            }
            Some(_) => {}
        }
    }

    fn look_at_limit(&mut self, now: Instant) {
        if self.cancelled.is_none()
            && self.until.is_none()
            && let Some(sentence) = self.limit.passes(now)
        {
            self.output.say(&format!("ftrun: {sentence}"));
            self.cancel(libc::SIGTERM, now);
        }
    }

    fn look_at_cancelled(&mut self, now: Instant) {
        let Some(cancelled) = self.cancelled.as_mut().filter(|_| self.until.is_none()) else { return };
        if let Some(sentence) = cancelled.sentence(now) {
            self.output.say(&format!("ftrun: {sentence}"));
        } else if cancelled.is_overdue(now) {
            // The parts have noticed the same, and end it.
            self.until = Some(now + LEAVE);
        }
    }

    fn look_at_front(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        if let Some(signal) = self.front.look() {
            match signal {
                libc::SIGCONT => job_time::go_on(),
                _ => job_time::stop(),
            }
            self.tell(None, Order::Signal(signal));
        }
    }

    fn listen(&mut self) -> Result<(), ClusterError> {
        let is_left = |nodes: &[Node]| nodes.is_empty() || nodes.iter().any(|node| !node.over);
        self.more = false;
        for _ in 0..WORDS {
            if !is_left(&self.nodes) {
                return Ok(());
            }
            match self.daemon.next() {
                Ok(Some(word)) => self.hear(word)?,
                Ok(None) => return Ok(()),
                Err(error) if self.nodes.is_empty() => {
                    return Err(ClusterError::Link { path: self.daemon.path().into(), error });
                }
                Err(error) => {
                    self.lose_daemon(&error);
                    return Ok(());
                }
            }
        }
        self.more = true;
        Ok(())
    }

    /// Somebody is there, or is not asked just now.
    fn heard(&mut self) {
        if let Some(since) = &mut self.quiet {
            *since = job_time::now();
        }
    }

    fn hear(&mut self, word: FromJobs) -> Result<(), ClusterError> {
        self.asked = None;
        // An answer of the daemon's says nothing of the parts.
        if !matches!(word, FromJobs::Here) {
            self.heard();
        }
        match word {
            FromJobs::Here | FromJobs::Gone | FromJobs::Running { .. } => {}
            FromJobs::Resumed => {}
            FromJobs::Refused { sentence, .. } if !self.nodes.is_empty() => {
                self.give_up(format!("{sentence}: the job was ended on all nodes"));
            }
            // It may have time soon.
            FromJobs::Away(sentence) if !self.nodes.is_empty() => self.look_elsewhere(&sentence, false),
            FromJobs::Refused { status, sentence } => return Err(ClusterError::Refused { status, sentence }),
            FromJobs::Away(sentence) => return Err(ClusterError::Refused { status: 1, sentence }),
            FromJobs::Begun { nodes, came, .. } if nodes.len() != came.len() => {
                let path = self.daemon.path().display();
                let sentence =
                    format!("the ftd that runs here ({path}) is of an older build than ftrun: systemctl restart ftd");
                return Err(ClusterError::Refused { status: 1, sentence });
            }
            FromJobs::Begun { job, nodes, came, window, cluster } => {
                if self.options.verbose {
                    self.output.say(&format!("ftrun: job {job} on {}", nodes.join(", ")));
                }
                (self.job, self.window, self.cluster) = (job, window, cluster.map(|cluster| Rc::from(*cluster)));
                let link = |number, came| Link::new(self.window, came, number, self.cluster.clone());
                let nodes = (0..).zip(nodes).zip(came);
                self.nodes = nodes.map(|((number, name), came)| Node::new(name, link(number, came))).collect();
                self.waiting = (0..self.nodes.len() as u32).collect();
                self.start_others();
                if job_time::is_stopped() {
                    self.tell(None, Order::Signal(libc::SIGTSTP));
                }
            }
            FromJobs::Joined { node, name, came, of } => {
                if let (Some(of), true) = (of, node as usize == self.nodes.len()) {
                    self.joined((node, name), came, *of);
                }
            }
            FromJobs::Carried { node, word } => self.come_over(node, word),
            FromJobs::Another { node, turn } => self.mark(node, turn),
            FromJobs::Agreed { node, mark } => {
                self.daemon.is_back();
                self.agree(node, mark);
            }
            FromJobs::Lost { node, why } => {
                self.daemon.is_back();
                if let Some(lost) = self.open(node) {
                    lost.why = Some(why);
                    lost.link.hear(Carried::End);
                    self.take_of(node);
                }
            }
        }
        Ok(())
    }

    /// A node has come back. All others hear of it before it may say anything, and what all were told before it hears now.
    fn joined(&mut self, (node, name): (u32, String), came: u64, of: ClusterNode) {
        self.output.say(&format!("ftrun: node {name} has a part of the job again, as a spare node"));
        self.nodes
            .iter_mut()
            .filter(|other| other.name == name)
            .for_each(|other| other.lost = other.lost.map(|_| false));
        self.tell(None, Order::Joins(Box::new(of.clone())));
        let cluster = self.cluster.take().map(|cluster| {
            let nodes = cluster.nodes.iter().cloned().chain([of]).collect();
            Rc::new(Cluster { nodes, ..(*cluster).clone() })
        });
        self.cluster.clone_from(&cluster);
        self.nodes.push(Node::new(name, Link::new(self.window, came, node, cluster)));
        self.waiting.push_back(node);
        self.start_others();
        if job_time::is_stopped() {
            self.tell(Some(node), Order::Signal(libc::SIGTSTP));
        }
        if let Some(Cancelled { signal, .. }) = self.cancelled {
            self.tell(Some(node), Order::Cancel(signal));
        }
    }

    /// Nothing more comes from a node; its name, if that is news.
    fn end_of(&mut self, node: u32) -> Option<String> {
        let node = self.nodes.get_mut(node as usize)?;
        (!std::mem::replace(&mut node.over, true)).then(|| node.name.clone())
    }

    fn part_says(&mut self, node: u32, word: FromPart) {
        match word {
            FromPart::Output { world, slot, rank, err, bytes } => {
                let slot = if slot == AGENT { AGENT - node } else { slot };
                self.output.pass_on((world, slot, rank), err, bytes);
            }
            FromPart::Mark { world, slot, rank, version, epoch, placed } => {
                self.output.mark((world, slot, rank), (version, epoch), placed);
            }
            FromPart::Restores { world, restored } => self.output.restores(world, restored),
            FromPart::Line(line) => {
                let name = self.nodes.get(node as usize).map_or("", |node| node.name.as_str());
                let line = match line.strip_prefix("ftrun: ") {
                    Some(rest) => format!("ftrun: {name}: {rest}"),
                    None => line,
                };
                self.output.say(&line);
            }
            FromPart::Notice(text) => self.notice(node, text),
            FromPart::Block { epoch, text } if epoch > self.announced => {
                self.announced = epoch;
                self.output.hold(job_time::now());
                self.output.announce(epoch, text);
                self.tell(None, Order::Announced(epoch));
            }
            FromPart::Room { world, bytes } => {
                self.input.room(node, world, bytes);
                while let Some(kept) = self.input.next_kept() {
                    self.feed(Some(kept));
                }
                self.feed(None);
            }
            FromPart::Ended { status, lost_output, reason, of_job, unrecorded } => {
                let Some(name) = self.end_of(node) else { return };
                self.lost_output |= lost_output;
                // Without the store nobody learns of it, and nobody survives it under --ft=none.
                let breaks = unrecorded && status != 0 && self.options.mode == Mode::None;
                if !of_job && !unrecorded {
                    self.look_for(node);
                }
                if breaks || !of_job && !unrecorded {
                    return self.breaks(status, format!("node {name}: {}", reason.unwrap_or_default()));
                }
                self.said.said(status, reason, unrecorded);
                if self.said.are_agreed() {
                    self.quiet.get_or_insert_with(job_time::now);
                }
            }
            // What the daemon asks for; and another node has announced it before.
            FromPart::Refused { .. } | FromPart::Prepared { .. } | FromPart::Block { .. } | FromPart::Here => {}
        }
    }

    /// What the agents of several nodes say alike is said once; and as often as one of them says it.
    fn notice(&mut self, node: u32, text: String) {
        let Some(node) = self.nodes.get_mut(node as usize) else { return };
        let own = node.notices.entry(text.clone()).or_default();
        *own += 1;
        let said = self.notices.entry(text.clone()).or_default();
        if *own > *said {
            *said = *own;
            self.output.say(&format!("ftd: {text}"));
        }
    }

    /// Nobody goes on without one of the nodes.
    fn all_or_none(&self) -> bool {
        self.options.mode == Mode::None || self.cancelled.is_some()
    }

    /// A node is lost, or what there was of the job on it. Where nobody survives that, the others end; else their agents know better.
    fn breaks(&mut self, status: i32, sentence: String) {
        // All is done, and a node that does not know it changes nothing.
        if self.said.are_done() || !self.all_or_none() && self.nodes.iter().any(|node| !node.over) {
            return self.output.say(&format!("ftrun: {sentence}"));
        }
        if self.broken.is_none() && !self.said.are_agreed() && self.all_or_none() {
            self.tell(None, Order::Kill(sentence.clone()));
            self.until.get_or_insert(job_time::now() + LEAVE);
        }
        self.broken.get_or_insert((status, sentence));
    }

    /// The exit status, and why.
    fn ends(&mut self) -> (i32, Option<String>) {
        let by_signal = self.cancelled.map(|cancelled| 128 + cancelled.signal);
        let done = self.said.are_done();
        match (self.said.take(), self.broken.take()) {
            // Nobody survives it, so it is what ended the job.
            (end, Some((status, sentence))) if end.is_none() || self.all_or_none() && !done => {
                // What a second signal has ended has a status of its own.
                (by_signal.filter(|_| status == 1).unwrap_or(status), Some(sentence))
            }
            (Some(end), _) => end,
            (None, _) => (by_signal.unwrap_or(1), None),
        }
    }

    /// The last of the output, the last sentence, and the status.
    fn leave(mut self) -> i32 {
        let now = job_time::now();
        self.output.finish(now);
        let (status, reason) = self.ends();
        let status = self.limit.status(if self.late { status.max(1) } else { status });
        if let Some(reason) = reason {
            self.output.say(&format!("ftrun: {reason}"));
        }
        let until = self.cancelled.map(|_| now + scaled(READER));
        if let Err(signal) = self.write_out(until) {
            return 128 + signal;
        }
        let losses = self.output.losses();
        if losses.is_empty() {
            return if self.lost_output { status.max(1) } else { status };
        }
        losses.iter().for_each(|sentence| self.output.say_loss(&format!("ftrun: {sentence}")));
        let _ = self.write_out(until.map(|_| job_time::now() + LOOK));
        if status == 0 { 1 } else { status }
    }

    /// Waits as long as somebody reads, slowly as it may be. A signal ends it.
    fn write_out(&mut self, until: Option<Instant>) -> Result<(), i32> {
        self.output.tick(job_time::now());
        while !self.output.all_written() && until.is_none_or(|until| job_time::now() < until) {
            let fds = &mut [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.output.written(), PollFlags::POLLIN),
            ];
            let _ = poll(fds, ft_sys::patience::at_most(LOOK));
            let now = job_time::now();
            while let Some(meaning) = self.signals.next() {
                match meaning {
                    Meaning::End(signal) if self.cancelled.is_none_or(|first| first.is_another(now)) => {
                        return Err(signal);
                    }
                    _ => {}
                }
            }
            self.output.tick(job_time::now());
        }
        Ok(())
    }
}
