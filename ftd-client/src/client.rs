//! The client: one connection to the agent, one arena, the protected regions.

use crate::Error;
use crate::error::limit_of_memory;
use crate::output::{self, Calls};
use ft_arena::{Arena, Doom, LAYOUT, Saved, bytes_for};
use ft_sys::channel::{Channel, ChannelError};
use ft_sys::gate;
use ft_sys::job_time::Awake;
use ft_sys::printed::Writer;
use ft_sys::standard::SlotsPipe;
use ft_wire::client::{ToAgent, ToClient};
use ft_wire::{Rank, Role};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for an answer of the agent. Answers take microseconds, except the one to `Restore`, which waits until the
/// recovery has agreed on a version.
const ANSWER: Duration = Duration::from_secs(60);
/// Longest wait for a place in the arena, unless `FT_CHECKPOINT_TIMEOUT` (seconds) says otherwise.
const PLACE: Duration = Duration::from_secs(60);

/// Longest wait for the agent's word on who is missing, behind that.
const WHOM: Duration = Duration::from_secs(2);

/// What this process is to its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The first process of its rank, or one without ftd.
    New,
    /// It replaces a process of an earlier epoch: call [`Client::restore`].
    Restarted,
    /// It lived through a failure and kept its memory (mode `spare`).
    Survivor,
    /// It waited as a spare and has just become a rank (mode `spare`).
    Spare,
}

#[derive(Debug, Clone, Copy)]
struct Region {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: a region is an address that the application vouches for; it is used under the client's `&mut self` alone.
unsafe impl Send for Region {}

/// What only exists when the process runs under ftd.
#[derive(Debug)]
struct Job {
    /// Gone after the first failure: an answer that comes late must not be taken for the next one.
    channel: Option<Channel>,
    arena: Arena,
    /// Where it notes what it has printed when it takes a version.
    printed: Option<(Writer, Option<SlotsPipe>)>,
    epoch: u64,
    /// The version that the agent named, and its place; asked for once.
    chosen: Option<Option<(u64, u32)>>,
    reported: bool,
    /// Of the ranks that take no more checkpoints the one with the oldest last version.
    left: Option<Left>,
    /// For whom this rank waits in vain with this version, as the agent says.
    waits_for: Option<(u64, String)>,
}

/// A rank that takes no more checkpoints.
#[derive(Debug)]
struct Left {
    last: Option<u64>,
    /// What it did: `rank 2 has called ft_finalize after version 7`.
    words: String,
}

/// The library's state. One per process.
#[derive(Debug)]
pub struct Client {
    state: State,
    rank: Option<Rank>,
    pid: u32,
    regions: BTreeMap<i32, Region>,
    job: Option<Job>,
    last: Option<u64>,
    checkpointed: bool,
    patience: Duration,
    calls: Calls,
}

/// Prints one line on stderr with one system call, so that lines of different ranks do not mix.
pub(crate) fn say(rank: Option<Rank>, text: &str) {
    let line = match rank {
        Some(rank) => format!("ftd: rank {rank}: {text}\n"),
        None => format!("ftd: {text}\n"),
    };
    // There is nobody to tell that stderr is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The rank as the environment tells it, for messages.
pub(crate) fn rank_of_environment() -> Option<Rank> {
    ["FT_RANK", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"].iter().find_map(|name| number(name))
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn required<T: std::str::FromStr>(name: &str) -> Result<T, Error> {
    number(name).ok_or_else(|| Error::Refused(format!("FT_SOCKET is set, but {name} is not set to a number")))
}

impl Client {
    /// Finds the job that this process belongs to. Without one (`FT_SOCKET` is not set, or the mode is `none`) the client
    /// works and protects nothing; one rank says so on stderr.
    ///
    /// # Errors
    /// [`Error::Agent`], [`Error::Mixed`], [`Error::Refused`], [`Error::Arena`].
    pub fn init() -> Result<Client, Error> {
        let rank = rank_of_environment();
        let none = std::env::var("FT_MODE").is_ok_and(|mode| mode == "none");
        let mut client = Client {
            state: State::New,
            rank,
            pid: std::process::id(),
            regions: BTreeMap::new(),
            job: None,
            last: None,
            checkpointed: false,
            patience: number("FT_CHECKPOINT_TIMEOUT").map_or(PLACE, Duration::from_secs),
            calls: Calls::default(),
        };
        match std::env::var_os("FT_SOCKET") {
            Some(socket) if !none => client.join(Path::new(&socket))?,
            _ if rank.unwrap_or(0) == 0 => {
                let why = if none { "runs under --ft=none" } else { "does not run under ftd" };
                say(None, &format!("the program {why}: its checkpoints protect nothing"));
            }
            _ => {}
        }
        Ok(client)
    }

    fn join(&mut self, socket: &Path) -> Result<(), Error> {
        let doing = "joining the job";
        ft_sys::standard::occupy();
        let rank = required("FT_RANK")?;
        let world = required("FT_WORLD")?;
        self.rank = Some(rank);
        let mut channel = Channel::dial(socket, Role::Client, ANSWER).map_err(|error| Error::agent(doing, error))?;
        let hello = ToAgent::Hello { world, rank, pid: self.pid as i32, layout: LAYOUT };
        channel.send(&hello, &[]).map_err(|error| Error::agent(doing, error))?;
        let (answer, descriptors) =
            channel.receive::<ToClient>(Some(ANSWER)).map_err(|error| Error::agent(doing, error))?;
        let (restarted, world_size, epoch) = match answer {
            ToClient::Welcome { restarted, world_size, epoch } => (restarted, world_size, epoch),
            ToClient::Refused { reason } => return Err(Error::Refused(reason)),
            _ => return Err(Error::Confused { doing }),
        };
        let mut descriptors = descriptors.into_iter();
        let arena = Arena::open(descriptors.next().ok_or(Error::Confused { doing })?, rank, world_size)?;
        // Without it, output is shown again after a recovery that need not be.
        let printed = descriptors.next().and_then(|sheet| Writer::of(sheet, rank, world).ok());
        self.state = if restarted { State::Restarted } else { State::New };
        self.job = Some(Job {
            channel: Some(channel),
            arena,
            printed: printed.map(|writer| (writer, SlotsPipe::of_environment())),
            epoch,
            chosen: None,
            reported: false,
            left: None,
            waits_for: None,
        });
        Ok(())
    }

    /// What this process is to its job.
    pub fn state(&self) -> State {
        self.state
    }

    /// The rank, if the environment tells one.
    pub fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// The process that made this client.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Protects `bytes` bytes at `pointer` as region `id`, from the next checkpoint on. An `id` that is protected already
    /// gets the new address and size; a null pointer with no bytes takes the region out.
    ///
    /// # Safety
    /// The memory must stay valid for reads and writes, and unused by other threads during [`Client::checkpoint`] and
    /// [`Client::restore`], until the region is protected anew or the client is gone.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub unsafe fn protect(&mut self, id: i32, pointer: *mut u8, bytes: usize) -> Result<(), Error> {
        self.own_process()?;
        if pointer.is_null() {
            if bytes > 0 {
                return Err(Error::Argument(format!("region {id} of {bytes} bytes has a null pointer")));
            }
            self.regions.remove(&id);
            return Ok(());
        }
        if bytes > isize::MAX as usize || (pointer as usize).checked_add(bytes).is_none() {
            return Err(Error::Argument(format!("region {id} of {bytes} bytes does not fit in the address space")));
        }
        self.regions.insert(id, Region { pointer, bytes });
        Ok(())
    }

    /// Protects a slice; see [`Client::protect`].
    ///
    /// # Safety
    /// As for [`Client::protect`]: the slice must neither move nor end while it is protected. `T` must be plain data, for
    /// which any bytes that were once written are a value (no references, no owned memory).
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub unsafe fn protect_slice<T: Copy>(&mut self, id: i32, slice: &mut [T]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.protect(id, slice.as_mut_ptr().cast(), size_of_val(slice)) }
    }

    fn own_process(&self) -> Result<(), Error> {
        let pid = std::process::id();
        if pid == self.pid { Ok(()) } else { Err(Error::Child { pid: pid as i32, owner: self.pid as i32 }) }
    }

    /// Has `call` called at the beginning of each [`checkpoint`](Self::checkpoint), so that what the program printed before a
    /// version is out before the version counts: it empties a `BufWriter`, for example. Of several, the last one that was
    /// registered is called first. C's standard output is emptied anyway, after all of them.
    pub fn on_checkpoint(&mut self, call: impl FnMut() + Send + 'static) {
        self.calls.add(Box::new(call));
    }

    /// Copies all protected regions as `version` and returns; everything else goes on behind. The call waits only when all
    /// places of the arena hold versions that must be kept.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Memory`], [`Error::Timeout`], [`Error::Agent`], [`Error::Left`], [`Error::Order`] in a
    /// restarted process that has not called [`Client::restore`]. The versions before are untouched in each case.
    pub fn checkpoint(&mut self, version: u64) -> Result<(), Error> {
        self.own_process()?;
        if let Some(last) = self.last.filter(|&last| version <= last) {
            return Err(Error::Version { version, last });
        }
        if let Some(job) = &mut self.job {
            job.listen();
            job.refuse_alone(version)?;
        }
        let called = Instant::now();
        self.calls.run();
        output::empty_stdout(self.rank);
        let Some(job) = &mut self.job else {
            self.last = Some(version);
            self.checkpointed = true;
            return Ok(());
        };
        if self.state == State::Restarted && job.chosen.is_none() {
            return Err(Error::Order(
                "ft_checkpoint before ft_restore in a restarted process: its versions would not follow those that exist",
            ));
        }
        let lengths: Vec<(i32, u64)> = self.regions.iter().map(|(&id, region)| (id, region.bytes as u64)).collect();
        job.fit(version, &lengths)?;
        job.wait_for_place(version, self.patience)?;
        job.note_printed(version);
        let started = Instant::now();
        let mut writing = job.arena.begin(version, job.epoch, &lengths, Duration::ZERO)?;
        let half = lengths.iter().map(|length| length.1 as usize).sum::<usize>() / 2;
        let mut done = 0;
        for (index, region) in self.regions.values().enumerate() {
            let (to, bytes) = writing.region(index);
            let midway = || at("client.copying", self.rank, writing.is_doomed(Doom::Copying));
            // SAFETY: the application vouches for the region; the place is mapped, `bytes` long and written by nobody else.
            unsafe { copy(region.pointer, to, bytes, half.wrapping_sub(done), midway) };
            done += bytes;
        }
        at("client.copied", self.rank, writing.is_doomed(Doom::Copied));
        writing.commit(started.elapsed());
        job.arena.add_spent(called.elapsed());
        at("client.committed", self.rank, job.arena.is_doomed(Doom::Committed));
        self.last = Some(version);
        self.checkpointed = true;
        Ok(())
    }

    /// Copies the newest version that is complete for all ranks back into the protected regions, and returns its number.
    /// Regions that the version holds and that are not protected are left out, so that a program may first restore the
    /// sizes, then allocate, protect and restore the rest.
    ///
    /// # Errors
    /// [`Error::Nothing`] when there is no such version, [`Error::Order`] before [`Client::protect`] and after
    /// [`Client::checkpoint`], [`Error::Size`], [`Error::Missing`], [`Error::Agent`], [`Error::Arena`]. Nothing is changed in
    /// any of these cases.
    pub fn restore(&mut self) -> Result<u64, Error> {
        self.own_process()?;
        let result = self.take_back();
        // The agent tells people of it, whatever the program makes of the code. When it cannot be told, that is the smaller error.
        if let (Err(error), Some(job)) = (&result, &mut self.job)
            && !matches!(error, Error::Nothing)
        {
            let _ = job.tell(&ToAgent::NotRestored { reason: error.to_string() }, "telling it of a restore");
        }
        result
    }

    fn take_back(&mut self) -> Result<u64, Error> {
        if self.regions.is_empty() {
            return Err(Error::Order("ft_restore before ft_protect: there is no region to restore into"));
        }
        if self.checkpointed {
            return Err(Error::Order("ft_restore after ft_checkpoint: a process restores before its first checkpoint"));
        }
        let Some(job) = &mut self.job else { return Err(Error::Nothing) };
        let Some((version, place)) = job.choice()? else { return Err(Error::Nothing) };
        restore(&mut job.arena, &self.regions, version, place, self.rank)?;
        // The agent wants to know of the first restore.
        if !std::mem::replace(&mut job.reported, true) {
            job.tell(&ToAgent::Restored { version }, "telling it of a restore")?;
        }
        self.last = Some(version);
        Ok(version)
    }

    /// Whether a checkpoint is worth its cost now (Young/Daly, from the measured cost and failure rate). Always `false`
    /// without ftd.
    ///
    /// # Errors
    /// [`Error::Agent`].
    pub fn checkpoint_due(&mut self) -> Result<bool, Error> {
        self.own_process()?;
        let Some(job) = &mut self.job else { return Ok(false) };
        match job.ask(&ToAgent::Due, "asking whether a checkpoint is due")? {
            ToClient::Due { yes } => Ok(yes),
            _ => Err(Error::Confused { doing: "asking whether a checkpoint is due" }),
        }
    }

    /// Ends the use of the library, as dropping the client does. The checkpoints stay: a failure after this call still restores
    /// them. The other ranks' later checkpoints are refused: no version counts without this rank.
    pub fn finalize(self) {}
}

impl Drop for Client {
    fn drop(&mut self) {
        // A panic is an end that nobody chose, and a child's copy says nothing for its parent.
        if std::thread::panicking() || self.own_process().is_err() {
            return;
        }
        let last = self.last;
        if let Some(job) = &mut self.job {
            // When this returns, nobody takes a version any more that would wait for this rank's.
            let _ = job.ask(&ToAgent::Finalized { last }, "leaving the job");
        }
    }
}

impl Job {
    /// What was printed until now belongs to what comes before this version.
    fn note_printed(&self, version: u64) {
        if let Some((writer, pipe)) = &self.printed {
            writer.note(self.epoch, version, pipe.as_ref().and_then(SlotsPipe::stdout));
        }
    }

    /// Uses the connection, and gives it up if that fails.
    fn with<T>(
        &mut self,
        doing: &'static str,
        use_it: impl FnOnce(&mut Channel) -> Result<T, ChannelError>,
    ) -> Result<T, Error> {
        let Some(channel) = &mut self.channel else { return Err(Error::Lost { doing }) };
        use_it(channel).map_err(|error| {
            self.channel = None;
            Error::agent(doing, error)
        })
    }

    fn tell(&mut self, message: &ToAgent, doing: &'static str) -> Result<(), Error> {
        self.with(doing, |channel| channel.send(message, &[]))
    }

    fn ask(&mut self, question: &ToAgent, doing: &'static str) -> Result<ToClient, Error> {
        self.with(doing, |channel| channel.send(question, &[]))?;
        loop {
            let answer = self.with(doing, |channel| channel.receive(Some(ANSWER)).map(|(answer, _)| answer))?;
            if let Some(answer) = self.heard(answer) {
                return Ok(answer);
            }
        }
    }

    /// Takes what comes unasked out of what the agent says.
    fn heard(&mut self, message: ToClient) -> Option<ToClient> {
        match message {
            ToClient::Left { rank, last, how } if self.left.as_ref().is_none_or(|known| last < known.last) => {
                let after = last.map_or_else(|| "without a checkpoint".into(), |last| format!("after version {last}"));
                self.left = Some(Left { last, words: format!("rank {rank} {how} {after}") });
            }
            ToClient::Left { .. } => {}
            // It may come when nobody waits for it any more.
            ToClient::WaitsFor { version, words } => self.waits_for = Some((version, words)),
            other => return Some(other),
        }
        None
    }

    /// Hears what the agent has said unasked. A connection that is gone is for those who need it.
    fn listen(&mut self) {
        while let Some(Ok(Some((message, _)))) = self.channel.as_mut().map(Channel::try_receive::<ToClient>) {
            if self.heard(message).is_some() {
                // Nobody has asked: it is not known any more to what question the next answer belongs.
                self.channel = None;
            }
        }
    }

    /// A version that not every rank can take is refused at once: it would wait, with all later ones, for nothing.
    fn refuse_alone(&self, version: u64) -> Result<(), Error> {
        match &self.left {
            Some(left) if left.last < Some(version) => Err(Error::Left { version, left: left.words.clone() }),
            _ => Ok(()),
        }
    }

    /// Sees to it that the places hold regions of these lengths, and not much more.
    fn fit(&mut self, version: u64, lengths: &[(i32, u64)]) -> Result<(), Error> {
        let Some(needed) = bytes_for(lengths.iter().map(|length| length.1)) else {
            let bytes: u64 = lengths.iter().fold(0, |sum, length| sum.saturating_add(length.1));
            return Err(Error::Memory {
                version,
                reason: format!("{bytes} bytes in all regions ({}) are beyond what an arena holds", lengths.len()),
            });
        };
        let have = self.arena.place_bytes();
        if needed > have {
            // What grows once may grow again: a reservation touches all pages, so it is not made for each step.
            if have > 0 && self.reserve(version, needed + needed / 8).is_ok() {
                return Ok(());
            }
            return self.reserve(version, needed);
        }
        if needed < have / 2 {
            // Only good housekeeping: the places are large enough whatever comes of it.
            let _ = self.reserve(version, needed);
        }
        Ok(())
    }

    fn reserve(&mut self, version: u64, place_bytes: u64) -> Result<(), Error> {
        match self.ask(&ToAgent::Reserve { place_bytes }, "asking for checkpoint memory")? {
            ToClient::Reserved => {}
            ToClient::NoMemory { reason } => return Err(Error::Memory { version, reason }),
            _ => return Err(Error::Confused { doing: "asking for checkpoint memory" }),
        }
        self.arena.reserve(place_bytes).map_err(|error| {
            let limit = if error.is_shortage() { limit_of_memory() } else { String::new() };
            Error::Memory { version, reason: format!("{error}{limit}") }
        })
    }

    /// Waits for a place in short steps, to notice an agent that dies meanwhile.
    fn wait_for_place(&mut self, version: u64, patience: Duration) -> Result<(), Error> {
        let mut awake = Awake::begin();
        loop {
            let waited = awake.elapsed();
            let left = patience.saturating_sub(waited);
            if self.arena.wait_until_free(left.min(Duration::from_millis(250))) {
                return Ok(());
            }
            if left.is_zero() {
                return Err(Error::Timeout { version, waited, whom: self.whom(version)? });
            }
            let doing = "waiting for a free place in the arena";
            while let Some((message, _)) = self.with(doing, |channel| channel.try_receive::<ToClient>())? {
                if self.heard(message).is_some() {
                    return Err(Error::Confused { doing });
                }
                self.refuse_alone(version)?;
            }
        }
    }

    /// Who is missing, when this rank waits in vain with `version`. An agent that does not say it, because it stands still
    /// itself, costs this call no more than the words.
    fn whom(&mut self, version: u64) -> Result<String, Error> {
        let doing = "asking for whom the job waits";
        self.waits_for = None;
        self.tell(&ToAgent::Waits { version }, doing)?;
        let mut asked = Awake::begin();
        loop {
            if let Some((_, words)) = self.waits_for.take_if(|(about, _)| *about == version) {
                return Ok(words);
            }
            let left = WHOM.saturating_sub(asked.elapsed());
            let message = self.with(doing, |channel| match channel.receive::<ToClient>(Some(left)) {
                Ok((message, _)) => Ok(Some(message)),
                Err(ChannelError::TimedOut(_)) => Ok(None),
                Err(error) => Err(error),
            })?;
            match message.map(|message| self.heard(message)) {
                None => {
                    return Ok(format!(
                        "the agent, which knows who is missing, did not say it within {} s",
                        WHOM.as_secs()
                    ));
                }
                Some(Some(_)) => return Err(Error::Confused { doing }),
                Some(None) => self.refuse_alone(version)?,
            }
        }
    }

    fn choice(&mut self) -> Result<Option<(u64, u32)>, Error> {
        if let Some(chosen) = self.chosen {
            return Ok(chosen);
        }
        let doing = "asking which version to restore";
        match self.ask(&ToAgent::Restore, doing)? {
            ToClient::Restore { found } => {
                self.chosen = Some(found);
                Ok(found)
            }
            ToClient::Refused { reason } => Err(Error::Refused(reason)),
            _ => Err(Error::Confused { doing }),
        }
    }
}

fn restore(
    arena: &mut Arena,
    regions: &BTreeMap<i32, Region>,
    version: u64,
    place: u32,
    rank: Option<Rank>,
) -> Result<(), Error> {
    let doomed = arena.is_doomed(Doom::Restoring);
    let saved: Saved<'_> = arena.saved(place, version)?;
    let held: BTreeMap<i32, _> = saved.regions().map(|region| (region.id, region)).collect();
    for (&id, region) in regions {
        let Some(held) = held.get(&id) else { return Err(Error::Missing { version, id }) };
        if held.bytes != region.bytes as u64 {
            return Err(Error::Size { version, id, saved: held.bytes, protected: region.bytes as u64 });
        }
    }
    let half = regions.values().map(|region| region.bytes).sum::<usize>() / 2;
    let mut done = 0;
    for (id, region) in regions {
        if let Some(held) = held.get(id) {
            // SAFETY: the saved region lies in the mapped place and has the protected region's length; the application
            // vouches for the protected region.
            unsafe {
                copy(held.pointer, region.pointer, region.bytes, half.wrapping_sub(done), || {
                    at("client.restoring", rank, doomed)
                })
            };
            done += region.bytes;
        }
    }
    Ok(())
}

/// The process is at this place; it dies there if its user has asked for that.
fn at(place: &str, rank: Option<Rank>, doomed: bool) {
    gate::reach(place, rank);
    if doomed {
        ft_sys::process::kill(std::process::id() as i32, libc::SIGKILL);
    }
}

/// Copies, and calls `midway` after `half` bytes if they lie in this copy.
///
/// # Safety
/// As for `copy_nonoverlapping`.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, half: usize, midway: impl FnOnce()) {
    let first = if half < bytes { half } else { bytes };
    // SAFETY: the caller's promise, for the first part.
    unsafe { std::ptr::copy_nonoverlapping(from, to, first) };
    if first < bytes {
        midway();
        // SAFETY: the caller's promise, for the rest.
        unsafe { std::ptr::copy_nonoverlapping(from.add(first), to.add(first), bytes - first) };
    }
}
