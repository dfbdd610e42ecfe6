//! The worlds that have processes on this node: who was started, who of them is the rank, and how they end.

use crate::below::Below;
use crate::files;
use crate::job::Job;
use crate::outlet::Outlet;
use crate::shepherds::Shepherds;
use crate::watcher::Watcher;
use crate::world::{Member, Vitals, World};
use ft_sys::individual::Held;
use ft_sys::peer::Peer;
use ft_wire::rank::{ToRank, page};
use ft_wire::shepherd::{Start, ToShepherd};
use ft_wire::{Epoch, Rank, Slot, World as WorldNumber};
use ftd_core::{Event, Family, Limit, Process, SlotId, WorldId, blame};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A process joins once, or a few times when a library that looks for its MPI does so in its own way; each time costs
/// descriptors.
const MOST_JOINS: u32 = 16;

/// The process with this number, a rank that is no shepherd's direct child, is gone.
#[derive(Debug, Clone, Copy)]
pub struct Gone {
    /// Its world.
    pub world: WorldNumber,
    /// Its rank.
    pub rank: Rank,
    /// Its number.
    pub pid: i32,
}

/// How a slot's direct child ended, as its shepherd says.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Its world.
    pub world: WorldNumber,
    /// Its rank.
    pub rank: Rank,
    /// Its number; 0 when that was told before.
    pub pid: i32,
    /// Raw `wait` status.
    pub status: i32,
    /// Why the kernel may have killed it.
    pub limit: Option<Limit>,
    /// It had waited for a process of its own.
    pub waited: bool,
}

/// All of them.
#[derive(Debug)]
pub struct Worlds {
    of: BTreeMap<WorldNumber, World>,
    /// Dead ranks of worlds that are buried, whose wrappers the kernel has not let go of yet.
    departed: BTreeMap<(WorldNumber, Rank), Below>,
    watcher: Watcher,
    gone: Outlet<Gone>,
    /// Released, and not all of its processes are known to have started.
    releasing: Option<WorldNumber>,
    /// A process of this world called MPI_Init when its rank had ended.
    late: Option<(WorldNumber, String)>,
}

impl Worlds {
    /// None yet.
    pub fn new(watcher: Watcher, gone: Outlet<Gone>) -> Worlds {
        Worlds { of: BTreeMap::new(), departed: BTreeMap::new(), watcher, gone, releasing: None, late: None }
    }

    /// The world with this number.
    pub fn get(&self, number: WorldNumber) -> Option<&World> {
        self.of.get(&number)
    }

    /// The same, if it is not being stopped.
    pub fn running(&self, number: WorldNumber) -> Option<&World> {
        self.get(number).filter(|world| !world.stopping)
    }

    /// All of them, the oldest first.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &World> {
        self.of.values()
    }

    /// The number of the newest.
    pub fn newest(&self) -> Option<WorldNumber> {
        self.of.keys().next_back().copied()
    }

    /// The world that this epoch released.
    pub fn of_epoch(&self, epoch: Epoch) -> Option<&World> {
        self.all().find(|world| world.epoch == epoch)
    }

    /// A process.
    pub fn member(&self, world: WorldNumber, rank: Rank) -> Option<&Member> {
        self.of.get(&world)?.members.get(&rank)
    }

    /// The same, to be changed.
    pub fn member_mut(&mut self, world: WorldNumber, rank: Rank) -> Option<&mut Member> {
        self.of.get_mut(&world)?.members.get_mut(&rank)
    }

    /// Its name in ftd-core's words.
    pub fn process(&self, world: WorldNumber, rank: Rank) -> Option<Process> {
        self.member(world, rank).map(|member| member.process)
    }

    /// Whether this rank is being killed, because its world or the job is over. If it has a question it is not answered: what it
    /// would say of the answer is no longer so. At the job's end those have time who were left behind by what ftrun had started
    /// for the rank, unless that was refused, and they are told.
    pub fn is_being_ended(&self, job: &Job, number: WorldNumber, rank: Rank) -> bool {
        let left_behind = || job.over && !job.refused && self.member(number, rank).is_some_and(|member| member.ended);
        self.get(number).is_some_and(|world| world.stopping) && !left_behind()
    }

    /// Whether a process comes to `MPI_Init` that a wrapper has left behind, in a job that its user has ended: it is killed with
    /// what else was left.
    pub fn was_left_behind(&self, job: &mut Job, number: WorldNumber, rank: Rank) -> bool {
        let Some(member) = self.member(number, rank).filter(|member| job.told && member.ended) else { return false };
        if member.mpi_pid().is_none() {
            let reason = "its wrapper has ended".to_string();
            job.report(Event::StartFailed { process: member.process, reason, status: 1 });
        }
        member.mpi_pid().is_none()
    }

    /// A new world, whose processes are about to be started. Returns the older ones: they keep nothing but their litter.
    pub fn add(&mut self, world: World) -> Vec<World> {
        let newer = self.of.split_off(&world.number);
        let old = std::mem::replace(&mut self.of, newer);
        self.of.insert(world.number, world);
        old.into_values().collect()
    }

    /// Forgets a world but for those of whom something is still to be heard.
    pub fn bury(&mut self, world: &mut World) {
        // A wrapper that takes longer than a whole world to go is not waited for.
        self.departed.retain(|(number, _), _| number + 1 >= world.number);
        let members = std::mem::take(&mut world.members).into_iter().filter(|(_, member)| !member.ended);
        let below = members.filter_map(|(rank, member)| Some((rank, member.below.filter(Below::is_dying)?)));
        self.departed.extend(below.map(|(rank, below)| ((world.number, rank), below)));
    }

    /// The world is the job's from now on. Returns those that have waited for that.
    pub fn release(&mut self, number: WorldNumber) -> Vec<(Slot, Start)> {
        tracing::info!(world = number, "released");
        self.releasing = Some(number);
        self.take_parked(number)
    }

    /// These wait to be started until the world is released.
    pub fn park(&mut self, number: WorldNumber, starts: Vec<(Slot, Start)>) {
        if let Some(world) = self.of.get_mut(&number) {
            world.parked = starts;
        }
    }

    /// Those that have waited to be started are not started any more.
    pub fn take_parked(&mut self, number: WorldNumber) -> Vec<(Slot, Start)> {
        self.of.get_mut(&number).map(|world| std::mem::take(&mut world.parked)).unwrap_or_default()
    }

    /// The same of one slot.
    pub fn take_parked_of(&mut self, number: WorldNumber, slot: Slot) -> Vec<Start> {
        let parked = self.of.get_mut(&number).map(|world| &mut world.parked);
        parked
            .into_iter()
            .flat_map(|starts| starts.extract_if(.., |(of, _)| *of == slot))
            .map(|(_, start)| start)
            .collect()
    }

    /// A process runs.
    pub fn started(&mut self, job: &mut Job, files: &files::Watch, (number, rank): (WorldNumber, Rank), pid: i32) {
        let Some(member) = self.member_mut(number, rank) else { return };
        member.child = Some(pid);
        files.started(pid);
        job.report(Event::Started(member.process));
        // The first moment after a release: every process runs.
        let all = |world: &World| world.members.values().all(|m| m.child.is_some());
        if self.releasing == Some(number) && self.get(number).is_some_and(all) {
            self.releasing = None;
            ft_sys::gate::reach("agent.released", None);
        }
    }

    /// A process cannot be started.
    pub fn start_failed(&mut self, job: &mut Job, (number, rank): (WorldNumber, Rank), reason: String, status: i32) {
        if let Some(member) = self.member_mut(number, rank) {
            member.ended = true;
            job.report(Event::StartFailed { process: member.process, reason, status });
        }
    }

    /// Tells every shepherd of the world to kill what is there, unless that was said before.
    pub fn stop(&mut self, job: &Job, files: &files::Watch, shepherds: &Shepherds, number: WorldNumber) -> Stopping {
        self.watcher.forget(number);
        let Some(world) = self.of.get_mut(&number) else { return Stopping::Empty };
        if std::mem::replace(&mut world.stopping, true) {
            return Stopping::Begun;
        }
        world.parked.clear();
        files.world_ends();
        if job.over {
            files.job_ends();
        }
        for slot in &world.occupied {
            shepherds.tell(*slot, &ToShepherd::Stop { world: number, over: job.over, refused: job.refused });
        }
        if world.occupied.is_empty() { Stopping::Empty } else { Stopping::Begun }
    }

    /// The user does not want to wait: what is still printed at the job's end has as little time as in a recovery.
    pub fn hurry_filters(&self, shepherds: &Shepherds) {
        for world in self.all().filter(|world| world.stopping) {
            for slot in &world.occupied {
                shepherds.tell(*slot, &ToShepherd::Stop { world: world.number, over: false, refused: false });
            }
        }
    }

    /// The job is over already, and what it would have been is not so: nobody waits any more for those who were left behind.
    fn hurry_left_behind(&self, shepherds: &Shepherds) {
        for world in self.all().filter(|world| world.stopping) {
            for slot in &world.occupied {
                shepherds.tell(*slot, &ToShepherd::Stop { world: world.number, over: true, refused: true });
            }
        }
    }

    /// Nothing is left on `slot` of the world that occupied it. Returns the stopped worlds that are empty now.
    pub fn slot_emptied(&mut self, slot: Slot) -> Vec<WorldNumber> {
        let mut emptied = Vec::new();
        for world in self.of.values_mut() {
            if world.occupied.remove(&slot) && world.stopping && world.occupied.is_empty() {
                emptied.push(world.number);
            }
        }
        emptied
    }

    /// A wrapper ended, and its rank lives on below `heir`.
    pub fn orphaned(&mut self, shepherds: &Shepherds, (number, rank): (WorldNumber, Rank), heir: i32) {
        if let Some(member) = self.member_mut(number, rank) {
            member.child = Some(heir);
            self.tell_served(shepherds, number, rank);
        }
    }

    /// A slot's direct child has ended. `told`: an MPI that nothing was preloaded in front of.
    pub fn child_ended(&mut self, job: &mut Job, files: &files::Watch, ended: Ended) {
        let Ended { world, rank, pid, status, limit, waited } = ended;
        // What died below a wrapper before it joined nobody has seen. And with an MPI that nothing was preloaded in front of, nobody
        // tells which process is the rank.
        let told = waited || (job.spec.program(rank).linked_in.is_some() && job.spec.mpi != "auto");
        // The kernel may let go of a process long after its world was buried; how it ended is of interest still.
        let stopping = self.get(world).is_some_and(|world| world.stopping);
        let (process, unseen, mut below) = match self.member_mut(world, rank) {
            Some(member) => {
                member.ended = true;
                let dead = !stopping && member.died_below();
                if dead {
                    member.note_death(None);
                }
                let unseen = dead || member.died_unseen() || (told && member.pid.is_none());
                (member.process, unseen, member.below.take())
            }
            None => {
                let below = self.departed.remove(&(world, rank));
                (Process::primary(WorldId(world), ftd_core::Rank(rank)), false, below)
            }
        };
        tracing::debug!(world, rank, status, "child ended");
        if status == 0 {
            files.ended_well(pid);
        }
        let well = below.as_ref().is_some_and(Below::has_ended_well);
        let below = below.as_mut().and_then(Below::death);
        let ended = blame::Ended { child: crate::config::exit_of(status), limit, below, unseen, well };
        job.report(Event::Ended { process, ended });
    }

    /// The robust futex of a rank says that it is dying, and the kernel agrees.
    pub fn rank_is_dying(
        &mut self,
        job: &mut Job,
        shepherds: &Shepherds,
        (number, rank): (WorldNumber, Rank),
        status: Option<i32>,
    ) {
        ft_sys::gate::reach("agent.dying", Some(rank));
        self.seen(job, shepherds, (number, rank), status);
    }

    /// A rank is dying, or dead below a wrapper. What of is asked at once where it is not its own will.
    fn seen(&mut self, job: &mut Job, shepherds: &Shepherds, (number, rank): (WorldNumber, Rank), status: Option<i32>) {
        let Some(member) = self.member_mut(number, rank).filter(|member| !member.ended) else { return };
        let announced = member.exits_by_itself();
        if !announced {
            member.note_death(status);
            look_at_shepherd(job, shepherds, member.slot);
        }
        let sight = blame::Sight { announced, signal: member.signal_below().filter(|_| !announced) };
        job.report(Event::Seen { process: member.process, sight });
    }

    /// The connection of a rank's checkpoint library has ended: of one that calls no MPI it is the first that is seen of a death,
    /// and comes before its wrapper can forget how it died.
    pub fn library_left(&mut self, job: &mut Job, shepherds: &Shepherds, number: WorldNumber, rank: Rank) {
        let Some(member) = self.member_mut(number, rank).filter(|member| member.without_mpi && !member.ended) else {
            return;
        };
        if member.below.as_mut().is_some_and(Below::look) {
            self.seen(job, shepherds, (number, rank), None);
        }
    }

    /// A rank below a wrapper died; ftd is not who waits for it. False when it is the rank no more.
    pub fn rank_is_gone(&mut self, job: &mut Job, files: &files::Watch, shepherds: &Shepherds, gone: Gone) -> bool {
        let Gone { world, rank, pid } = gone;
        // It may be heard of before its end is seen.
        ft_sys::gate::reach("agent.dying", Some(rank));
        let Some(member) = self.member_mut(world, rank).filter(|member| member.pid == Some(pid)) else { return false };
        member.served = false;
        if member.exits_by_itself() && member.exits_well() {
            files.ended_well(pid);
        }
        self.seen(job, shepherds, (world, rank), None);
        true
    }

    /// The MPI of a rank hung up on its server. Whether it is dying is asked at once.
    pub fn connection_lost(&mut self, job: &mut Job, number: WorldNumber, rank: Rank) {
        let member = self.member_mut(number, rank).filter(|member| !member.ended);
        if let Some(member) = member.filter(|member| member.died_of_signal()) {
            member.note_death(None);
            job.report(Event::Dying(member.process));
        }
    }

    /// Looks at every process at once.
    pub fn survey(&mut self, job: &mut Job, shepherds: &Shepherds) {
        let (mut dying, mut leaving, mut bereft) = (Vec::new(), Vec::new(), Vec::new());
        for member in self.of.values_mut().flat_map(|w| w.members.values_mut()).filter(|m| !m.ended) {
            match member.vitals() {
                Vitals::Alive => {}
                Vitals::Killed => {
                    member.note_death(None);
                    dying.push(member.process);
                    bereft.push(member.slot);
                }
                Vitals::Leaving => leaving.push(member.process),
            }
        }
        bereft.into_iter().for_each(|slot| look_at_shepherd(job, shepherds, slot));
        job.report(Event::Surveyed { dying, leaving });
    }

    /// What proves that a dialler is a process of this rank: it stands below the shepherd on whose slot the rank is.
    ///
    /// # Errors
    /// Why it may not be.
    pub fn proven(&self, shepherds: &Shepherds, world: WorldNumber, rank: Rank, peer: Peer) -> Result<Held, String> {
        let shepherd = self.member(world, rank).and_then(|member| shepherds.process(member.slot));
        let (Some(shepherd), Some(held)) = (shepherd, peer.held) else {
            return Err(format!("the process that would be rank {rank} of world {world}, or its shepherd, is gone"));
        };
        if held.is_below(shepherd) {
            return Ok(held);
        }
        Err(format!(
            "process {} does not stand below the shepherd {shepherd} of rank {rank}: only what the rank's command has started may join",
            peer.pid
        ))
    }

    /// What the process is held by that may be this rank, or why it may not.
    ///
    /// # Errors
    /// Why it may not.
    pub fn may_join(&self, shepherds: &Shepherds, number: WorldNumber, rank: Rank, peer: Peer) -> Result<Held, String> {
        let pid = peer.pid;
        let Some(world) = self.running(number) else {
            return Err(match self.newest() {
                Some(newest) if newest > number => format!("world {number} has ended; the job is at world {newest}"),
                _ => "the job has ended".to_string(),
            });
        };
        let Some(member) = world.members.get(&rank) else {
            return Err(format!("world {number} has no rank {rank} on this node"));
        };
        let held = self.proven(shepherds, number, rank, peer)?;
        match member.mpi_pid().filter(|first| *first != pid) {
            None if member.joins >= MOST_JOINS => Err(format!("process {pid} has joined {MOST_JOINS} times already")),
            None => Ok(held),
            Some(first) => Err(format!(
                "process {first} is rank {rank} already: only one process of a rank may call MPI_Init; a job within the job is \
                 started with ftrun"
            )),
        }
    }

    /// What ftrun started left well, and its end has counted as the rank's. A job of which nothing has run has not gone well.
    pub fn comes_late(
        &mut self,
        job: &mut Job,
        shepherds: &Shepherds,
        (number, rank): (WorldNumber, Rank),
        peer: &Peer,
    ) -> Option<String> {
        let member = self.member(number, rank).filter(|m| m.ended && m.mpi_pid().is_none())?;
        let (process, shepherd) = (member.process, shepherds.process(member.slot)?);
        peer.held.as_ref().filter(|held| held.is_below(shepherd))?;
        let reason =
            format!("process {} of rank {rank} calls MPI_Init after what ftrun started for it has ended", peer.pid);
        self.late = Some((number, reason.clone()));
        job.report(Event::StartFailed { process, reason: reason.clone(), status: 1 });
        if job.over {
            self.hurry_left_behind(shepherds);
        }
        Some(reason)
    }

    /// The job's end, or what it is when a rank of its last world came too late.
    pub fn unless_late(&mut self, status: i32, reason: Option<String>) -> (i32, Option<String>) {
        let newest = self.newest();
        match self.late.take() {
            Some((world, late)) if status == 0 && newest == Some(world) => (1, Some(late)),
            _ => (status, reason),
        }
    }

    /// A process has called `ft_init`: as long as nobody calls `MPI_Init`, it is the rank.
    pub fn joined_without_mpi(
        &mut self,
        job: &Job,
        files: &files::Watch,
        shepherds: &Shepherds,
        (number, rank): (WorldNumber, Rank),
        held: Held,
    ) {
        let Some(member) = self.member_mut(number, rank).filter(|member| member.mpi_pid().is_none()) else { return };
        member.without_mpi = true;
        self.joined(job, files, shepherds, (number, rank), held);
    }

    /// This process is the rank from now on; it may be another one than its shepherd started.
    pub fn joined(
        &mut self,
        job: &Job,
        files: &files::Watch,
        shepherds: &Shepherds,
        (number, rank): (WorldNumber, Rank),
        held: Held,
    ) {
        let pid = held.identity.pid;
        let gone = self.gone.clone();
        let Some(member) = self.member_mut(number, rank) else { return };
        if member.pid.replace(pid) == Some(pid) && member.below.as_ref().is_none_or(|below| !below.is_gone()) {
            return;
        }
        member.below = None;
        shepherds.tell(member.slot, &ToShepherd::Joined { world: number, rank, pid });
        if member.child == Some(pid) {
            return;
        }
        ft_sys::litter::note_process(Path::new(&job.spec.job_dir), pid);
        files.joined(pid);
        let held = Arc::new(held);
        member.below = Some(Below::new(held.clone()));
        watch_pid(Gone { world: number, rank, pid }, held, gone);
    }

    /// A rank is past `MPI_Init`: where it has a page that says so when it dies, that is watched.
    pub fn initialized(&self, number: WorldNumber, rank: Rank) {
        let Some(member) = self.member(number, rank) else { return };
        if let Some((pid, page)) = member.pid.zip(member.page.clone())
            && page.u32_at(page::ARMED).load(Ordering::Acquire) == 1
        {
            self.watcher.add(number, rank, pid, page, member.below.as_ref().map(Below::held));
        }
    }

    /// A rank's MPI speaks with its server: it will not start alone.
    pub fn is_served(
        &mut self,
        job: &mut Job,
        shepherds: &Shepherds,
        (number, rank): (WorldNumber, Rank),
        family: Family,
    ) {
        if let Some(member) = self.member_mut(number, rank) {
            member.served = true;
            let joined = (!member.by_session).then_some(member.process);
            self.refuse_left_alone(job, number);
            if let Some(process) = joined {
                job.report(Event::Joined { process, family });
            }
            self.tell_served(shepherds, number, rank);
        }
    }

    /// What ftrun has started for a rank has ended, and the rank does not come.
    pub fn left_alone(&mut self, job: &mut Job, (number, rank): (WorldNumber, Rank)) {
        if let Some(member) = self.member_mut(number, rank) {
            member.left_alone = true;
            self.refuse_left_alone(job, number);
        }
    }

    /// Others wait in `MPI_Init` for ranks that would come too late if they came at all: another world would fare no better.
    fn refuse_left_alone(&self, job: &mut Job, number: WorldNumber) {
        let members = || self.get(number).into_iter().flat_map(|world| world.members.values());
        if !members().any(|member| member.served && !member.by_session) {
            return;
        }
        for member in members().filter(|member| member.left_alone && member.pid.is_none()) {
            let reason = "what ftrun started for it has ended, and nothing that this has left behind has loaded an MPI in time, while \
                          others wait in MPI_Init"
                .to_string();
            job.report(Event::StartFailed { process: member.process, reason, status: 1 });
        }
    }

    /// It has hung up. What may come after it in a script will not be served.
    pub fn is_served_no_more(&mut self, number: WorldNumber, rank: Rank) {
        if let Some(member) = self.member_mut(number, rank) {
            member.served = false;
        }
    }

    /// Which process it is nobody says where nothing is preloaded: its shepherd's child counts as the rank.
    fn tell_served(&self, shepherds: &Shepherds, number: WorldNumber, rank: Rank) {
        let member = self.member(number, rank);
        let Some(member) = member.filter(|member| member.served && member.pid.is_none()) else { return };
        if let Some(pid) = member.child {
            shepherds.tell(member.slot, &ToShepherd::Joined { world: number, rank, pid });
        }
    }

    /// A rank of whose MPI no preload tells.
    pub fn without_preload(&self, number: WorldNumber, rank: Rank) -> Option<Process> {
        self.member(number, rank).filter(|member| member.link.is_none()).map(|member| member.process)
    }

    /// A rank's MPI says through its PMI that it has finalized. Ranks with a preload tell more exactly themselves.
    pub fn finalized_without_preload(&self, job: &mut Job, number: WorldNumber, rank: Rank) {
        if let Some(process) = self.without_preload(number, rank) {
            job.report(Event::Finalized(process));
        }
    }

    /// An abort was the program's own wish: its process may go on with it.
    pub fn proceed(&self, number: WorldNumber, rank: Rank) {
        if let Some(link) = self.member(number, rank).and_then(|member| member.link.as_ref()) {
            link.send(&ToRank::Proceed);
        }
    }
}

/// How far a world is that is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// Its shepherds have been told.
    Begun,
    /// There is nothing of it here; of another agent's world the shepherds emptied their slots before they dialled.
    Empty,
}

/// A rank that dies with its shepherd dies of that.
fn look_at_shepherd(job: &mut Job, shepherds: &Shepherds, slot: Slot) {
    if shepherds.is_dying(slot) {
        job.report(Event::SlotDying(SlotId(slot)));
    }
}

/// Watches a rank that is no direct child of its shepherd.
fn watch_pid(who: Gone, held: Arc<Held>, gone: Outlet<Gone>) {
    tokio::spawn(async move {
        let descriptor = held.as_fd().try_clone_to_owned();
        if let Ok(pidfd) = descriptor.and_then(crate::ready::readable) {
            let _ = pidfd.readable().await.map(drop);
            gone.send(who);
        }
    });
}
