//! The front of a step of Slurm's: what `srun --ft=…` has become. The real srun is its child, in the same process group and terminal; output,
//! input and signals of the ranks are that one's. The front hears the parts on the nodes, puts together who is in the job, prints what ftd
//! says of it, and ends with the job's status. It needs no `ftd` where it runs.

mod members;
mod srun;

use crate::ends::Ends;
use crate::options::{self, Options};
use ft_sys::channel::Channel;
use ft_sys::meeting::{self, Guest};
use ft_sys::timescale::scaled;
use ft_wire::Epoch;
use ft_wire::cluster::Hidden;
use ft_wire::part::{FromPart, Order, ToPart};
use ft_wire::step::{KEY, Step, StepId, What};
use members::{Layout, LayoutError, Members};
use nix::poll::{PollFd, PollFlags, poll};
use srun::Srun;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

/// When the first node is ready, the others are within this time, or say why not.
const GATHERING: Duration = Duration::from_secs(120);
/// Who dials proves within this time who it is.
const PROOF: Duration = Duration::from_secs(10);
/// So many may be about to.
const MOST_GUESTS: usize = 256;
/// How often the parts are asked whether they are there.
const ASK: Duration = Duration::from_secs(1);
/// When the job is over, one that has not answered for so long is not waited for …
const SILENT: Duration = Duration::from_millis(1500);
/// … and the others have so long to say something.
const END: Duration = Duration::from_secs(60);
/// The exit status of what was typed wrong.
const WRONG: i32 = 2;
/// When srun has ended, or is to end because there is no job, the rest has so long.
const LEAVE: Duration = Duration::from_secs(10);
/// An srun that waits for a node that is lost is not waited for when the job is over and it has passed on nothing for so long.
const WAITS_FOR_LOST: Duration = Duration::from_millis(500);

/// Why there is no front.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Something that every process needs.
    #[error("--ft: {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StepError {
    move |error| StepError::System { what, error }
}

/// One that has dialled, and has not proved who it is.
#[derive(Debug)]
struct Coming {
    guest: Guest,
    until: Instant,
}

/// A node's part.
#[derive(Debug)]
struct Seat {
    name: String,
    link: Channel,
    /// Nothing more comes from it.
    over: bool,
    /// When something came last.
    heard: Instant,
    notices: BTreeMap<String, usize>,
}

/// The front.
#[derive(Debug)]
pub struct Front {
    options: Options,
    secret: [u8; KEY],
    listener: TcpListener,
    srun: Srun,
    coming: Vec<Coming>,
    members: Members,
    /// The parts, by node, when the job has begun.
    seats: Vec<Seat>,
    step: Option<StepId>,
    notices: BTreeMap<String, usize>,
    announced: Epoch,
    asks: Instant,
    /// Something was lost, or nobody waits for it: srun may wait for it all the same.
    lost: bool,
    /// What the job's agents say of its end.
    ends: Ends,
    /// When the last one did that has agreed on it with the others.
    agreed: Option<Instant>,
    /// What went wrong otherwise. Without a status that is whatever srun's tasks had.
    broken: Option<(Option<i32>, String)>,
    lost_output: bool,
    /// There is no job, with this status, and srun has until then to notice.
    refused: Option<(i32, Instant)>,
    /// Since when srun is the only one that is waited for.
    alone: Option<Instant>,
    /// Since when srun has ended.
    ended: Option<Instant>,
}

impl Front {
    /// Listens, and starts the real srun. `own` are the options as they were typed.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(options: Options, own: Vec<OsString>) -> Result<Front, StepError> {
        let command = options.programs.first().map(|program| program.command.clone()).unwrap_or_default();
        let (program, words) =
            command.split_first().map(|(program, words)| (program.clone(), words.to_vec())).unwrap_or_default();
        let listener =
            srun::listen(&program).map_err(system("no port is to be had on which the nodes could be heard"))?;
        let port = listener.local_addr().map_err(system("the port is not known"))?.port();
        listener.set_nonblocking(true).map_err(system("the port"))?;
        let secret = meeting::random().map_err(system("the kernel has no random bytes"))?;
        let step = Step {
            addresses: srun::addresses(port),
            secret: Hidden(secret),
            options: own.into_iter().map(OsString::into_vec).collect(),
        };
        let text = step.to_text().map_err(io::Error::other).map_err(system("the options"))?;
        let srun = Srun::start(&program, &words, &text).map_err(system("srun cannot be started"))?;
        Ok(Front {
            options,
            secret,
            listener,
            srun,
            coming: Vec::new(),
            members: Members::default(),
            seats: Vec::new(),
            step: None,
            notices: BTreeMap::new(),
            announced: 0,
            asks: Instant::now(),
            lost: false,
            ends: Ends::default(),
            agreed: None,
            broken: None,
            lost_output: false,
            refused: None,
            alone: None,
            ended: None,
        })
    }

    /// Until the job is over; its exit status.
    ///
    /// # Errors
    /// One sentence.
    pub fn run(mut self) -> Result<i32, StepError> {
        loop {
            self.wait().map_err(system("poll"))?;
            self.srun.look();
            self.take_in();
            self.hear_guests();
            self.hear_parts();
            self.ask();
            self.look_at_time();
            if let Some(status) = self.over() {
                return Ok(status);
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let guests = self.coming.iter().map(|coming| coming.guest.channel().as_fd());
        let waiting = self.members.channels().map(AsFd::as_fd);
        let parts = self.seats.iter().filter(|seat| !seat.over).map(|seat| seat.link.as_fd());
        let first = [self.srun.signals(), self.listener.as_fd()];
        let all = first.into_iter().chain(guests).chain(waiting).chain(parts);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let ends = self.alone.is_some() || self.agreed.is_some() || self.refused.is_some() || self.ended.is_some();
        let patience = if ends { Duration::from_millis(50) } else { ASK };
        match poll(&mut fds, ft_sys::patience::at_most(patience)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes in those who dial.
    fn take_in(&mut self) {
        while self.coming.len() < MOST_GUESTS
            && let Ok((stream, _)) = self.listener.accept()
        {
            // One that is gone already wanted nothing.
            if let Ok(guest) = Guest::greet(stream) {
                self.coming.push(Coming { guest, until: Instant::now() + PROOF });
            }
        }
    }

    fn hear_guests(&mut self) {
        let (mut left, now) = (Vec::new(), Instant::now());
        for mut coming in std::mem::take(&mut self.coming) {
            match coming.guest.hear(&self.secret) {
                Ok(None) if now < coming.until => left.push(coming),
                Ok(Some(what)) => self.said(what, coming.guest.into_channel()),
                // A stranger, or one that has gone.
                Ok(None) | Err(_) => {}
            }
        }
        self.coming = left;
    }

    fn said(&mut self, what: What, channel: Channel) {
        if self.refused.is_some() || !self.seats.is_empty() {
            // There is no job, or it has begun without this one: the end of the connection says so.
            return;
        }
        match what {
            What::Refused { status, sentence } => self.refuse(i32::from(status), &sentence),
            What::Part(member) => {
                self.step = Some(member.node.step);
                self.members.add(*member, channel);
                if self.members.are_all() {
                    self.begin();
                }
            }
        }
    }

    /// There is no job.
    fn refuse(&mut self, status: i32, sentence: &str) {
        if self.refused.is_none() {
            say(&format!("srun: error: {sentence}"));
            self.refused = Some((status.max(1), Instant::now() + scaled(LEAVE)));
            // Their parts end with that, and the tasks with those.
            self.members = Members::default();
        }
    }

    /// All are ready.
    fn begin(&mut self) {
        let members = std::mem::take(&mut self.members);
        let secret = meeting::derived(&self.secret, "ftd step: what only the agents of the job know");
        let Layout { ranks, cluster } = match members.layout(&self.options, secret) {
            Ok(layout) => layout,
            Err(error) => return self.refuse(error.status(), &error.to_string()),
        };
        if let Some(error) = options::meets_nobody(&self.options.injections, self.options.injections_option, ranks) {
            return self.refuse(WRONG, &error.to_string());
        }
        let now = Instant::now();
        for (node, (name, mut link)) in members.into_seats().enumerate() {
            let cluster =
                cluster.clone().map(|cluster| Box::new(ft_wire::cluster::Cluster { me: node as u32, ..cluster }));
            // Who does not read it is lost, and that is noticed.
            let _ = link.send(&ft_wire::step::Go { ranks, cluster }, &[]);
            self.seats.push(Seat { name, link, over: false, heard: now, notices: BTreeMap::new() });
        }
    }

    fn hear_parts(&mut self) {
        for node in 0..self.seats.len() {
            while let Some(seat) = self.seats.get_mut(node).filter(|seat| !seat.over) {
                match seat.link.try_receive::<FromPart>() {
                    Ok(Some((word, _))) => {
                        seat.heard = Instant::now();
                        self.part_says(node, word);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        let why =
                            format!("the link to the part of the job there broke ({error}): what ran there is ended");
                        self.loses(node, None, &why);
                    }
                }
            }
        }
    }

    fn part_says(&mut self, node: usize, word: FromPart) {
        match word {
            // The ranks' own goes over Slurm: this is what helpers of ftd's say.
            FromPart::Output { bytes, .. } => {
                // Nobody may be there to read it.
                let _ = io::stderr().write_all(&bytes);
            }
            FromPart::Line(line) => {
                let name = self.seats.get(node).map_or("", |seat| seat.name.as_str());
                say(&line.strip_prefix("ftrun: ").map_or(line.clone(), |rest| format!("ftd: {name}: {rest}")));
            }
            FromPart::Notice(text) => self.notice(node, text),
            FromPart::Block { epoch, text } if epoch > self.announced => {
                self.announced = epoch;
                // Lines, each with its end.
                let _ = io::stderr().write_all(text.as_bytes());
                self.tell_all(&Order::Announced(epoch));
            }
            FromPart::Ended { status, of_job, unrecorded, lost_output, reason } if of_job || unrecorded => {
                self.seats.get_mut(node).into_iter().for_each(|seat| seat.over = true);
                self.lost_output |= lost_output;
                self.ends.said(status, reason, unrecorded);
                self.agreed = self.ends.are_agreed().then(Instant::now);
            }
            FromPart::Ended { status, lost_output, reason, .. } => {
                self.lost_output |= lost_output;
                self.loses(node, Some(status), &reason.unwrap_or_default());
            }
            FromPart::Refused { .. }
            | FromPart::Prepared { .. }
            | FromPart::Block { .. }
            | FromPart::Room { .. }
            | FromPart::Mark { .. }
            | FromPart::Restores { .. }
            | FromPart::Here => {}
        }
    }

    /// What the agents of several nodes say alike is said once; and as often as one of them says it.
    fn notice(&mut self, node: usize, text: String) {
        let Some(seat) = self.seats.get_mut(node) else { return };
        let own = seat.notices.entry(text.clone()).or_default();
        *own += 1;
        let said = self.notices.entry(text.clone()).or_default();
        if *own > *said {
            *said = *own;
            say(&format!("ftd: {text}"));
        }
    }

    /// A node is lost, or what there was of the job on it. The agents of the others know what comes of that.
    fn loses(&mut self, node: usize, status: Option<i32>, why: &str) {
        let Some(seat) = self.seats.get_mut(node) else { return };
        seat.over = true;
        self.lost = true;
        let sentence = format!("node {}: {why}", seat.name);
        // Who has ended Slurm's step has ended this, too.
        if self.srun.status().is_some() || self.srun.is_told() || self.agreed.is_some() {
            return;
        }
        if self.seats.iter().any(|seat| !seat.over) {
            return say(&format!("ftd: {sentence}"));
        }
        self.broken.get_or_insert((status, sentence));
    }

    fn tell_all(&mut self, order: &Order) {
        for seat in self.seats.iter_mut().filter(|seat| !seat.over) {
            // One that does not read is noticed by that it does not answer.
            let _ = seat.link.send(&ToPart::Order(order.clone()), &[]);
        }
    }

    fn ask(&mut self) {
        let now = Instant::now();
        if now >= self.asks {
            self.asks = now + ASK;
            self.tell_all(&Order::Ask);
        }
    }

    /// Nobody is waited for without an end.
    fn look_at_time(&mut self) {
        let now = Instant::now();
        if self.members.since().is_some_and(|since| now >= since + scaled(GATHERING)) {
            let missing = self.members.missing();
            let seconds = scaled(GATHERING).as_secs();
            let port = self.listener.local_addr().map_or(0, |address| address.port());
            let sentence = format!(
                "{missing} of the step has not said within {seconds} s that its part of the job is ready: does plugstack.conf there have \
                 ftd's plugin, and can port {port} of this machine be reached from there?"
            );
            self.refuse(1, &sentence);
        }
        self.members.listen();
        if let Some(since) = self.agreed {
            for seat in self.seats.iter_mut().filter(|seat| !seat.over) {
                if now >= seat.heard + scaled(SILENT) || now >= since + scaled(END) {
                    seat.over = true;
                    self.lost = true;
                }
            }
        }
        if self.srun.status().is_some() {
            self.ended.get_or_insert(now);
        }
    }

    /// The exit status, when there is nothing to wait for any more.
    fn over(&mut self) -> Option<i32> {
        let now = Instant::now();
        if let Some((status, until)) = self.refused {
            return self.srun_is_over(now >= until).then_some(status);
        }
        let Some(status) = self.srun.status() else {
            if self.seats.is_empty() || self.seats.iter().any(|seat| !seat.over) {
                return None;
            }
            let alone = *self.alone.get_or_insert(now);
            // Where nobody has said how it ended srun does, if it was Slurm's doing.
            let says = self.ends.are_unknown() && matches!(self.broken, Some((None, _)));
            let waits = if says { scaled(LEAVE) } else { WAITS_FOR_LOST };
            let late = self.lost && now >= alone + waits && self.srun.stands_still() >= WAITS_FOR_LOST;
            return self.srun_is_over(late).then(|| self.status(1));
        };
        let rest = self.seats.iter().all(|seat| seat.over);
        (rest || self.ended.is_some_and(|since| now >= since + scaled(LEAVE))).then(|| self.status(status))
    }

    /// Whether srun has ended. One that is late is ended, and the step, or the allocation that was srun's own, with it.
    fn srun_is_over(&mut self, late: bool) -> bool {
        if self.srun.status().is_none() && late {
            self.srun.end(self.step);
        }
        self.srun.status().is_some()
    }

    /// The job's, with the sentence that says why. `of_srun` where nobody of the job's has said it.
    fn status(&mut self, of_srun: i32) -> i32 {
        let (status, reason) = match (self.ends.take(), self.broken.take()) {
            (Some((status, reason)), _) => (status, reason),
            (None, Some((status, sentence))) => (status.unwrap_or(of_srun.max(1)), Some(sentence)),
            (None, None) => (of_srun, None),
        };
        if let Some(reason) = reason {
            say(&format!("ftd: {reason}"));
        }
        if self.lost_output { status.max(1) } else { status }
    }
}

impl LayoutError {
    fn status(&self) -> i32 {
        2
    }
}

/// A line. Nobody may be there to read it.
fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
