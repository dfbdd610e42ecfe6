//! What runs on the slot.

use crate::feeder::{self, Feeder};
use crate::held::{Held, Way};
use crate::leaving::{Leaving, Left};
use crate::options::{Options, Stdin};
use crate::output::Output;
use crate::start_error::StartError;
use crate::task::Task;
use ft_sys::cgroup::Group;
use ft_sys::filters;
use ft_sys::individual;
use ft_sys::job_dir::Proven;
use ft_sys::job_time;
use ft_sys::notes::Notes;
use ft_sys::oom::Kills;
use ft_sys::spawn::Spawn;
use ft_sys::timescale::scaled;
use ft_sys::wait::Status;
use ft_wire::shepherd::{Start, ToAgent, ToShepherd};
use ft_wire::step::OF_PROCESS;
use ft_wire::{Rank, World};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod heir;
mod lease;
mod pending;
mod prints;
mod signalled;
mod stopped;

use pending::Pending;
use prints::Prints;

/// How long a program that somebody has open for writing is tried again.
pub const BUSY: Duration = Duration::from_secs(10);
/// How long [`Slot::empty_now`] waits for processes that the kernel does not end.
const STUBBORN: Duration = Duration::from_secs(5);

/// A start that waits until nobody writes the program any more.
#[derive(Debug)]
struct Waiting {
    start: Start,
    extra: Option<OwnedFd>,
    until: Instant,
}

#[derive(Debug)]
struct Child {
    world: World,
    rank: Rank,
    pid: i32,
    /// When it was started.
    oom_kills: Option<u64>,
    /// The limit of CPU time of the rank below it.
    cpu_limit: Option<u64>,
    /// How the wrapper ended whose heir this is, when the rank had ended before that, or has not joined yet.
    wrapper: Option<Status>,
    /// It has joined itself.
    is_rank: bool,
    /// It stands for a wrapper that left before a rank joined; until then it is not known whether one comes.
    early: Option<Instant>,
    /// It does so because it was the first who was left.
    stands_in: bool,
}

impl Child {
    /// Has just been started.
    fn new(start: &Start, pid: i32) -> Child {
        Child {
            world: start.world,
            rank: start.rank,
            pid,
            oom_kills: ft_sys::oom::oom_kill_count(),
            cpu_limit: None,
            wrapper: None,
            is_rank: false,
            early: None,
            stands_in: false,
        }
    }
}

/// The rank, where that is not the direct child.
#[derive(Debug)]
struct Joined {
    pid: i32,
    held: individual::Held,
    /// How it ended, when it was waited for here.
    status: Option<Status>,
    above: stopped::Above,
}

/// Worlds that may end before an agent lives long enough to report a recovery, and one more.
const OWN_ENDS: usize = 4;

/// The slot: at most one direct child, and whatever it started.
#[derive(Debug)]
pub struct Slot {
    number: ft_wire::Slot,
    job_dir: PathBuf,
    stdin: Stdin,
    /// How the rank prints.
    piping: filters::Piping,
    /// When it is looked whether that has changed.
    prints: Prints,
    held: Vec<Held>,
    soft_limits: Option<(u64, u64)>,
    nice: Option<i32>,
    waiting: Option<Waiting>,
    child: Option<Child>,
    joined: Option<Joined>,
    stopped: stopped::Stopped,
    lease: lease::Lease,
    /// Former direct children that run no user code any more; the kernel has not let go of them yet.
    departed: Vec<Child>,
    /// How the last direct children ended that did not end well; of wrappers those that were not being ended.
    own_ends: Vec<ToAgent>,
    feeder: Option<Feeder>,
    output: Output,
    arenas: BTreeMap<Rank, OwnedFd>,
    /// Filters were ended which may have had something to print.
    lost: bool,
    /// What runs here was told to end by the job's user, or had these signals, which may end it.
    told: BTreeSet<i32>,
    /// Signals that wait for the rank to catch them, and those that came.
    pending: Pending,
    /// The slot is being left, by the child's own end or because its world is over.
    leaving: Option<Leaving>,
    /// What was seen below, for those that clean up when nobody is left who saw it.
    notes: Notes,
    groups: Groups,
    kills: Kills,
    /// What there is if this process is a task of Slurm's.
    task: Option<Task>,
}

/// The slot's cgroups, where they can be had: one at a time.
#[derive(Debug, Default)]
struct Groups {
    job: Option<Group>,
    current: Option<Group>,
    made: u32,
}

impl Groups {
    /// The group for the next process. One that was killed is not used again: kernels kill what is born into it later.
    fn current(&mut self, slot: ft_wire::Slot) -> Option<&Group> {
        if self.current.is_none() {
            let name = format!("slot-{slot}.{}", self.made);
            self.current = self.job.as_ref().and_then(|job| job.make_below(&name));
            self.made += 1;
        }
        self.current.as_ref()
    }

    /// Kills all that is in the group, whoever it belongs to.
    fn kill(&mut self) {
        if let Some(group) = self.current.take() {
            group.kill();
        }
    }
}

impl Slot {
    /// An empty slot. Takes the standard input out of the options, what the launcher opened, and the way to it.
    pub fn new(options: &mut Options, task: Option<Task>) -> Slot {
        let stdin = match &options.stdin {
            Stdin::Null => Stdin::Null,
            Stdin::File(fd, offset) => fd.try_clone().map_or(Stdin::Null, |fd| Stdin::File(fd, *offset)),
            Stdin::Spool(fd) => fd.try_clone().map_or(Stdin::Null, Stdin::Spool),
        };
        Slot {
            number: options.slot,
            job_dir: options.job_dir.clone(),
            stdin,
            piping: filters::Piping::default(),
            prints: Prints::default(),
            held: std::mem::take(&mut options.held),
            soft_limits: options.soft_limits,
            nice: options.nice,
            waiting: None,
            child: None,
            joined: None,
            stopped: stopped::Stopped::default(),
            lease: lease::Lease::default(),
            departed: Vec::new(),
            own_ends: Vec::new(),
            feeder: None,
            output: Output::new(options.pipes.take()),
            arenas: BTreeMap::new(),
            lost: false,
            told: BTreeSet::new(),
            pending: Pending::default(),
            leaving: None,
            notes: Notes::new(&options.job_dir, options.slot),
            groups: Groups::default(),
            kills: Kills::default(),
            task,
        }
    }

    /// What there is if this process is a task of Slurm's.
    pub fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// Its number.
    pub fn number(&self) -> ft_wire::Slot {
        self.number
    }

    /// The job's directory is there, and says whether there is a cgroup.
    pub fn enter(&mut self, job: &Proven) {
        self.groups.job = job.group();
    }

    /// How long until what is below is to be noted again.
    pub fn until_noted(&self) -> Duration {
        match self.rank_pid() {
            _ if self.is_emptying() => Duration::MAX,
            Some(rank) => self.notes.pause().min(self.prints.pause(rank)),
            None => self.notes.pause(),
        }
    }

    /// Notes what is below, and how much memory has killed, when it is time to. What is being killed anyway is not looked at.
    pub fn note(&mut self) {
        self.kills.look();
        if self.is_emptying() {
            return;
        }
        let looked = self.notes.look_if_due();
        if self.prints_elsewhere(looked) || looked {
            self.note_piping_of_rank();
        }
    }

    /// Whether the rank prints elsewhere than was known, when it is time to look, or `anyway`: two looks at different times would
    /// take the processor twice.
    fn prints_elsewhere(&mut self, anyway: bool) -> bool {
        let due = |rank: &i32| anyway || self.prints.pause(*rank).is_zero();
        let Some(rank) = self.rank_pid().filter(due) else { return false };
        let elsewhere = self.piping.lacks(rank, self.output.pipes());
        self.prints.looked(rank, elsewhere);
        elsewhere
    }

    /// The arenas that are kept, by owner.
    pub fn arenas(&self) -> impl Iterator<Item = (Rank, BorrowedFd<'_>)> {
        self.arenas.iter().map(|(rank, fd)| (*rank, fd.as_fd()))
    }

    /// The pipe of rank 0's standard input, while there is something to write.
    pub fn feeding(&self) -> Option<BorrowedFd<'_>> {
        self.feeder.as_ref()?.wants_to_write()
    }

    /// The launcher read more standard input.
    pub fn stdin_grew(&mut self) {
        if let Some(feeder) = &mut self.feeder {
            feeder.grew();
        }
    }

    /// Writes what rank 0's pipe takes.
    pub fn feed(&mut self) {
        if let (Some(feeder), Stdin::Spool(spool)) = (&mut self.feeder, &self.stdin)
            && feeder.wants_to_write().is_some()
            && !feeder.feed(spool)
        {
            self.feeder = None;
        }
    }

    /// Whether something is being killed and is not gone yet.
    fn is_emptying(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| !leaving.lingers())
    }

    /// How soon [`emptied`](Self::emptied) is to be asked again, whatever happens.
    pub fn until_looked(&self) -> Duration {
        self.leaving.as_ref().map_or(Duration::MAX, |leaving| leaving.pause(self.output.is_held()))
    }

    /// What tells by a hang-up that nobody writes any more, while that is of interest.
    pub fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let lingers = self.leaving.as_ref().filter(|leaving| leaving.lingers());
        lingers.into_iter().flat_map(|_| self.output.held())
    }

    /// Whether filters have time.
    pub fn waits_for_filters(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| matches!(leaving.left, Left::Filters(_)))
    }

    /// Does what the agent says.
    pub fn obey(&mut self, message: ToShepherd, mut fds: Vec<OwnedFd>) -> Vec<ToAgent> {
        match message {
            ToShepherd::Start(start) => self.start(start, fds.pop(), job_time::now() + scaled(BUSY)),
            ToShepherd::Stop { world, over, refused } => {
                ft_sys::gate::reach("shepherd.stop", Some(self.number));
                self.stop(world, over, refused);
                Vec::new()
            }
            // A terminal's stop means the rank below a wrapper as well.
            ToShepherd::Signal(signal @ (nix::libc::SIGTSTP | nix::libc::SIGSTOP | nix::libc::SIGCONT)) => {
                match signal {
                    nix::libc::SIGCONT => job_time::go_on(),
                    _ => job_time::stop(),
                }
                if self.job_control(signal) {
                    self.scripts_go_on();
                    ft_sys::process::signal_descendants(signal);
                }
                Vec::new()
            }
            ToShepherd::Signal(signal) => self.signal(signal),
            ToShepherd::SignalWhenCaught { signal, again } => {
                self.signal_when_caught(signal, again);
                Vec::new()
            }
            ToShepherd::Joined { world, rank, pid } => self.join(world, rank, pid).into_iter().collect(),
            ToShepherd::Lease => fds.pop().and_then(|page| self.take_lease(page)).into_iter().collect(),
            ToShepherd::LookAtLease { turn } => {
                self.look_at_lease(turn);
                Vec::new()
            }
            ToShepherd::KeepArena { rank } => {
                if let Some(fd) = fds.pop() {
                    self.arenas.insert(rank, fd);
                }
                Vec::new()
            }
            ToShepherd::Exit => Vec::new(),
        }
    }

    /// A wrapper that passes no signals on must not keep one from its rank, nor die of it in the rank's place.
    fn signal(&mut self, signal: i32) -> Vec<ToAgent> {
        let harmless = matches!(signal, nix::libc::SIGUSR1 | nix::libc::SIGUSR2);
        if let Some(Waiting { start: Start { world, rank, .. }, .. }) = self.waiting.take_if(|_| !harmless) {
            // It will not be started any more, as if it had died of the signal.
            return vec![ToAgent::Exited {
                world,
                rank,
                pid: 0,
                status: signal,
                oom: false,
                cpu_limit: false,
                waited: false,
            }];
        }
        // Under Slurm whoever dies of any signal has done what it was told.
        if !harmless || self.task.is_some() {
            self.told.insert(signal);
        }
        self.scripts_go_on();
        // One that has ended, and is not waited for yet, takes any signal.
        let told = self.joined.as_ref().and_then(Joined::nearest).map(|nearest| nearest.signal(signal));
        if let Some(child) = self.child.as_ref().filter(|_| !matches!(told, Some(Ok(())))) {
            ft_sys::process::kill(child.pid, signal);
        }
        Vec::new()
    }

    fn join(&mut self, world: World, rank: Rank, pid: i32) -> Option<ToAgent> {
        self.child.as_ref().filter(|child| child.world == world && child.rank == rank)?;
        let heir = self.heir_of_stand_in(pid);
        let child = self.child.as_mut()?;
        // Another process may have been the rank before, without MPI.
        child.is_rank = child.pid == pid;
        if child.is_rank {
            (child.early, self.joined) = (None, None);
            self.note_piping(pid);
        } else if let Some(held) = individual::Held::of(pid).filter(|held| held.is_below(std::process::id() as i32)) {
            child.cpu_limit = ft_sys::death::cpu_limit(pid);
            self.joined = Some(Joined { pid, held, status: None, above: stopped::Above::of(pid) });
            self.note_piping(pid);
        }
        heir
    }

    /// Notes how a rank prints. One that writes to the slot's own pipes has no filters, and nobody is looked for.
    fn note_piping(&mut self, rank: i32) {
        let mut slot = self.for_filters();
        slot.piping.note(rank);
        slot.piping.outputs.retain(|pipe| !self.output.pipes().contains(pipe));
        if !slot.piping.outputs.is_empty() {
            filters::filters(&ft_sys::process::own_descendants(), &mut slot);
            slot.piping.outputs.retain(|pipe| !self.output.pipes().contains(pipe));
        }
        self.piping = slot.piping;
        if !self.piping.outputs.is_empty() {
            self.notes.piping(&self.piping);
        }
    }

    /// The same of whoever is the rank now. It may have been another one before, and may print elsewhere than it did.
    fn note_piping_of_rank(&mut self) {
        if let Some(rank) = self.rank_pid() {
            self.note_piping(rank);
        }
    }

    /// The joined process, or the direct child, which may be no rank of MPI's.
    fn rank_pid(&self) -> Option<i32> {
        match &self.joined {
            Some(joined) => Some(joined.pid).filter(|_| joined.held.lives()),
            None => self.child.as_ref().map(|child| child.pid),
        }
    }

    /// The rank outlives this direct child, who was its wrapper: whoever stands above it now is the direct child.
    fn heir(&mut self, child: &Child, status: Status) -> Option<Child> {
        let joined = self.joined.as_ref().filter(|joined| joined.status.is_none())?;
        let pid = ft_sys::process::child_above(joined.pid)?;
        let ended = !joined.held.lives();
        // One that ended is waited for here, or its number is somebody else's.
        if ended && pid != joined.pid {
            return None;
        }
        if pid == joined.pid {
            self.joined = None;
        }
        let wrapper = Some(status).filter(|status| ended || failed(*status));
        Some(Child { pid, wrapper: child.wrapper.filter(|first| failed(*first)).or(wrapper), early: None, ..*child })
    }

    /// Whether a start is to be tried again.
    pub fn waits_for_program(&self) -> bool {
        self.waiting.is_some()
    }

    /// Tries again what waited for its program.
    pub fn start_again(&mut self) -> Vec<ToAgent> {
        let Some(Waiting { start, extra, until }) = self.waiting.take() else { return Vec::new() };
        self.start(start, extra, until)
    }

    fn start(&mut self, start: Start, extra: Option<OwnedFd>, until: Instant) -> Vec<ToAgent> {
        let (world, rank) = (start.world, start.rank);
        if self.is_fenced() || job_time::is_stopped() {
            self.waiting = Some(Waiting { start, extra, until });
            return Vec::new();
        }
        match self.try_start(&start, extra.as_ref()) {
            Ok((pid, notes)) => {
                let notes = notes.into_iter().map(ToAgent::Notice);
                notes.chain([ToAgent::Started { world, rank, pid }]).collect()
            }
            Err(error) if error.errno == nix::libc::ETXTBSY && job_time::now() < until => {
                self.waiting = Some(Waiting { start, extra, until });
                Vec::new()
            }
            Err(error) => {
                let (what, status) = error.words();
                vec![ToAgent::StartFailed { world, rank, what, status }]
            }
        }
    }

    /// The pid, and what is to be said of the start.
    fn try_start(&mut self, start: &Start, extra: Option<&OwnedFd>) -> Result<(i32, Vec<String>), StartError> {
        let program = Path::new(OsStr::from_bytes(start.argv.first().map_or(&[], |a| a)));
        let directory = Path::new(OsStr::from_bytes(&start.cwd));
        if let Some(child) = &self.child {
            let what = format!("slot {} still runs rank {} of world {}", self.number, child.rank, child.world);
            return Err(StartError { what, errno: nix::libc::EBUSY, status: 1 });
        }
        let (stdin, feeder) = match start.stdin.then(|| feeder::open(&self.stdin)).transpose() {
            Ok(opened) => opened.unwrap_or((None, None)),
            Err(error) => return Err(StartError::of_system("cannot open standard input".into(), &error)),
        };
        let opened = self.output.open(start.world, start.rank);
        let (output, live) =
            opened.map_err(|error| StartError::of_system("cannot open a pipe for its output".into(), &error))?;
        let env = self.task.as_ref().map_or_else(|| start.env.clone(), |task| task.environment(&start.env));
        let env: Vec<_> = env.into_iter().chain(live).collect();
        let group = self.groups.current(self.number).and_then(Group::descriptor);
        let held = self.held.get(start.held as usize);
        let mut notes = Vec::new();
        let mut by = |way| match way {
            Way::Path => None,
            Way::Descriptor(fd, note) => {
                notes.push(note);
                Some(fd)
            }
        };
        let spawn = Spawn {
            argv: &start.argv,
            env: &env,
            cwd: &start.cwd,
            stdin,
            output,
            group: group.as_ref().map(AsFd::as_fd),
            soft_limits: self.soft_limits,
            nice: self.nice,
            own_number: self.task.as_ref().map(|_| OF_PROCESS),
            processors: &start.processors,
            extra: extra.zip(start.fd_at).map(|(fd, number)| (fd.as_fd(), number)),
            directory: held.map(|held| held.directory(directory)).and_then(&mut by),
            image: match held {
                Some(held) => by(held.program(program).map_err(StartError::of_program)?),
                None => None,
            },
        };
        let pid = spawn.start().map_err(|error| StartError::of_spawn(&error, program, directory))?;
        ft_sys::litter::note_process(&self.job_dir, pid);
        self.child = Some(Child::new(start, pid));
        (self.joined, self.leaving, self.told) = (None, None, BTreeSet::new());
        // What waited for a rank that ended by itself, or while the slot was parked.
        self.pending.forget();
        self.piping = filters::Piping::default();
        self.feeder = feeder;
        self.notes.started(pid);
        Ok((pid, notes))
    }

    /// Kills everything below but filters, which have a while; [`emptied`](Self::emptied) tells when it is gone. `over`: it is
    /// the job that is over. `refused`: because ftd has refused what runs.
    pub fn stop(&mut self, world: World, over: bool, refused: bool) {
        if over {
            job_time::go_on();
        }
        self.pending.forget();
        self.note_piping_of_rank();
        let leaving = Leaving::stop(self.leaving.take(), world, over, refused);
        self.leave(leaving);
    }

    fn leave(&mut self, leaving: Leaving) {
        self.feeder = None;
        self.waiting = None;
        self.leaving = Some(leaving);
    }

    /// Collects the dead. The direct child's end is reported; what it left behind may print still.
    pub fn reap(&mut self) -> Vec<ToAgent> {
        let mut reports = Vec::new();
        loop {
            // Only a body that is still there tells how much time it had.
            let body = ft_sys::wait::next_body();
            let killed =
                |joined: &Joined| joined.status.is_some_and(|status| status.signal() == Some(nix::libc::SIGKILL));
            let at_limit = body.is_some_and(|body| {
                (body.killed || self.joined.as_ref().is_some_and(killed)) && self.is_at_cpu_limit(body.pid)
            });
            let of_child = |pid| self.child.as_ref().is_some_and(|child| child.pid == pid);
            let waited = body.is_some_and(|body| of_child(body.pid) && ft_sys::death::has_waited(body.pid));
            let Some((pid, status)) = ft_sys::wait::next_ended() else { return reports };
            self.notes.stir();
            if let Some(joined) = self.joined.as_mut().filter(|joined| joined.pid == pid) {
                joined.status = Some(status);
            }
            let is_it = |child: &Child| child.pid == pid;
            let current = self.child.take_if(|child| is_it(child));
            let left_alone = current.is_some() && self.leaving.is_none();
            if let Some(child) = current.as_ref().filter(|_| left_alone)
                && let Some(heir) = self.heir(child, status).or_else(|| self.early_heir(child, status))
            {
                let (world, rank, pid) = (child.world, child.rank, child.pid);
                reports.push(ToAgent::Orphaned { world, rank, pid, heir: heir.pid });
                self.child = Some(heir);
                continue;
            }
            // A wrapper's end does not count against its rank's, which lived longer or failed; but what goes wrong in a script
            // after its rank has ended well goes wrong. The two may be waited for in either order.
            let of_rank = self.joined.as_mut().filter(|_| left_alone).and_then(|joined| joined.status.take());
            let wrapper = current.as_ref().and_then(|child| child.wrapper);
            let (of_rank, wrapper) = of_rank.map_or((status, wrapper), |of_rank| (of_rank, Some(status)));
            // Who only might have been a rank says nothing.
            let undecided = current.as_ref().is_some_and(|child| child.early.is_some());
            let status = wrapper.filter(|_| undecided || of_rank.as_raw() == 0).unwrap_or(of_rank);
            let departed = self.departed.iter().position(is_it).map(|at| self.departed.swap_remove(at));
            if let Some(child) = current.or(departed) {
                // The killed may also be below a wrapper, which then ends as it likes.
                let oom = self.kills.were(child.oom_kills);
                // … as a shell does, which tells of the signal.
                let killed =
                    status.signal() == Some(nix::libc::SIGKILL) || status.code() == Some(ft_sys::wait::KILLED_BELOW);
                let Child { world, rank, .. } = child;
                // Who ended well was named before.
                let pid = if undecided { 0 } else { child.pid };
                let (status, cpu_limit) =
                    (status.as_raw(), killed && at_limit && body.is_some_and(|body| body.pid == child.pid));
                reports.push(ToAgent::Exited { world, rank, pid, status, oom, cpu_limit, waited });
                // A wrapper that is being ended says nothing of the rank below it.
                if left_alone || child.is_rank {
                    self.own_ends.extend(reports.last().filter(|_| status != 0).cloned());
                    self.own_ends.drain(..self.own_ends.len().saturating_sub(OWN_ENDS));
                }
                if left_alone {
                    self.leave(Leaving::new(child.world, Left::All(None)));
                }
            }
        }
    }

    /// How the last processes ended, where that was not well: an agent that hears it may not live to tell.
    pub fn own_ends(&self) -> &[ToAgent] {
        &self.own_ends
    }

    /// Whether a body's time was used up: its own, or that of the rank which it had waited for.
    fn is_at_cpu_limit(&self, body: i32) -> bool {
        let child = self.child.iter().chain(&self.departed).find(|child| child.pid == body);
        let of_rank = child.and_then(|child| child.cpu_limit);
        ft_sys::death::is_at_cpu_limit(body)
            || of_rank.is_some_and(|limit| ft_sys::death::waited_for_cpu_limit(body, limit))
    }

    /// Tells once when nothing below runs user code any more. The kernel may still be tearing down memory of the dead.
    pub fn emptied(&mut self) -> Vec<ToAgent> {
        let Some(mut leaving) = self.leaving.take() else { return Vec::new() };
        let (mut reports, mut slot) = (Vec::new(), self.for_filters());
        if self.output.is_unread() {
            reports.extend(self.waits_for_reader(&mut leaving));
        }
        if leaving.is_late() {
            reports.extend(self.late(&leaving, &mut slot).map(ToAgent::Notice));
            leaving.end();
        }
        let left = leaving.left;
        let (mut spared, mut doubtful) = (0, None);
        let gone = leaving.sweep.round_sparing(&[], |found| {
            let spare = self.spare(left, found, &mut slot);
            spared = spare.len();
            if let Left::Filters(_) = left
                && doubtful.is_none()
            {
                let others = filters::doubtful(found, &spare, &slot);
                // They are about to be killed, and have their names no more.
                doubtful = (!others.is_empty()).then(|| filters::named(&others));
            }
            spare
        });
        reports.extend(doubtful.and_then(|named| self.lost_unseen(&named)).map(ToAgent::Notice));
        self.piping = slot.piping;
        // Those that were to be killed have been.
        self.scripts_go_on();
        if left != Left::All(None) {
            self.filters_go_on();
        }
        leaving.spares(spared);
        if gone && spared == 0 {
            self.output.leave();
            self.departed.extend(self.child.take());
            reports.push(ToAgent::Emptied { world: leaving.world });
            return reports;
        }
        // Parents first, as the sweep does it; then whatever it may not kill, or does not see.
        if leaving.is_stubborn() {
            self.groups.kill();
        }
        self.leaving = Some(leaving);
        reports
    }

    /// Nobody is late while what was printed is not read. Returns what is to be said.
    fn waits_for_reader(&self, leaving: &mut Leaving) -> Vec<ToAgent> {
        let mut reports = Vec::new();
        if leaving.waits_for_reader() {
            reports.push(ToAgent::Notice(format!(
                "slot {}: the job's end waits until what a filter prints has been read; ftrun's reader is slow, or the filter \
                 prints for ever (a signal to ftrun ends it)",
                self.number
            )));
        }
        if leaving.tells_agent() {
            reports.push(ToAgent::Lingers { world: leaving.world });
        }
        reports
    }

    /// Whether output was lost since the last call because filters were ended.
    pub fn takes_loss(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Who of those below is not killed.
    fn spare(&self, left: Left, found: &[i32], slot: &mut filters::Slot) -> Vec<i32> {
        // A rank that is alone has no filters.
        let alone = matches!(found, [only] if slot.ranks.contains(only));
        if alone || found.is_empty() || left == Left::Nobody {
            return Vec::new();
        }
        let mut filters = || filters::filters(found, slot);
        match left {
            Left::All(_) if self.output.is_held() || !filters().is_empty() => found.to_vec(),
            Left::All(_) | Left::Nobody => Vec::new(),
            Left::Filters(_) => filters(),
        }
    }

    fn for_filters(&self) -> filters::Slot {
        let ranks = self.child.iter().map(|child| child.pid).chain(self.joined.iter().map(|joined| joined.pid));
        filters::Slot { ranks: ranks.collect(), piping: self.piping.clone() }
    }

    /// What is to be said of those whose time is over. Nobody can tell what a filter has read and not printed: it counts as a loss.
    fn late(&mut self, leaving: &Leaving, slot: &mut filters::Slot) -> Option<String> {
        let found = ft_sys::process::own_descendants();
        let filters = filters::filters(&found, slot);
        let prints = |pid: &i32| filters.contains(pid) || self.output.is_held_by(*pid);
        let late: Vec<i32> = found.iter().copied().filter(prints).collect();
        self.lost |= late.iter().any(|pid| filters.contains(pid) || filters::may_be_one(*pid));
        self.lost |= !late.is_empty() && self.output.is_unread();
        (!late.is_empty()).then(|| {
            let (slot, since, late) = (self.number, leaving.since(), filters::late(&late, slot));
            format!("slot {slot}: killed {since}, and what they had not printed is lost: {late}")
        })
    }

    /// What is to be said, once, of those that may have been filters of a rank that may not be looked at, and were killed.
    fn lost_unseen(&mut self, named: &str) -> Option<String> {
        let said = std::mem::replace(&mut self.lost, true);
        (!said).then(|| {
            format!(
                "slot {}: the rank's program may not be read, so that nobody can see where it prints; what these may have had to \
                 print for it is lost with them: {named}",
                self.number
            )
        })
    }

    /// Kills everything below and waits until it is gone. Nothing is reported now.
    pub fn empty_now(&mut self) {
        // Whoever kills all this does not wait until the user lets it go on.
        job_time::go_on();
        self.stop(0, false, false);
        self.leaving.iter_mut().for_each(Leaving::end);
        let until = job_time::now() + STUBBORN;
        let refused = |slot: &Slot| slot.leaving.as_ref().is_some_and(|leaving| leaving.sweep.is_refused());
        while self.emptied().is_empty() && !refused(self) && job_time::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            self.reap();
        }
        self.reap();
        // The kernel may still be busy with one that was dead before: the next agent is to hear how it ended.
        self.departed.extend(self.child.take());
        self.leaving = None;
    }
}

/// Whether a wrapper that left its rank alone has failed, so that what it would have done after it is missing. One that ended by
/// a signal to the whole job has not: its rank decides.
fn failed(wrapper: Status) -> bool {
    use nix::libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSYS};
    const OWN: [i32; 7] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSYS];
    wrapper.code().is_some_and(|code| code != 0) || wrapper.signal().is_some_and(|signal| OWN.contains(&signal))
}
