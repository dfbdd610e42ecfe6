//! Carries out what ftd-core decided, as far as it concerns this node's processes.

use crate::arenas::Commit;
use crate::binding;
use crate::costs::{Costs, Failing, From, Over, Words};
use crate::environment;
use crate::files;
use crate::hear::{injections, nodes};
use crate::layout::Layout;
use crate::loners;
use crate::pmix;
use crate::report;
use crate::restart_files::RestartFiles;
use crate::rooms::Rooms;
use crate::world::{Member, World};
use crate::worlds::Stopping;
use ft_sys::job_time;
use ft_sys::litter::{End, Litter};
use ft_wire::ask::Kind;
use ft_wire::client::ToClient;
use ft_wire::launcher::ToLauncher;
use ft_wire::shepherd::{Start, ToShepherd};
use ft_wire::{Epoch, Flavour, Slot, World as WorldNumber};
use ftd_core::ranks::RankSet;
use ftd_core::{
    Agent, Cause, EpochId, EpochRecord, Event, Exit, Failure, FailureSet, Micros, NodeId, Notice, Patience, Process,
    Recovery, Report, SlotId, Subject, Suspect, WorldId, counted, size,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A job that has nothing to go on from after so long is told so.
const UNPROTECTED: Duration = Duration::from_secs(10 * 60);
/// Where a statically linked program of the MPICH family finds its `PMI_FD`.
const STATIC_PMI_FD: i32 = 200;
/// How long it may take until nobody else has a job's directory whose launcher is gone, and until its cgroup can be removed.
const ABANDONED: Duration = Duration::from_millis(500);

/// Starts a world's processes.
pub fn launch(
    rooms: &mut Rooms,
    (number, epoch): (WorldNumber, Epoch),
    layout: Arc<Layout>,
    processes: Vec<(Process, SlotId)>,
    parked: bool,
) {
    match rooms.files.next_world(processes.len()) {
        Ok(sentences) => sentences.into_iter().for_each(|sentence| rooms.job.notice(sentence)),
        Err(reason) => {
            let first = processes.into_iter().map(|(process, _)| process).min();
            return first.into_iter().for_each(|process| {
                rooms.job.report(Event::StartFailed { process, reason: reason.clone(), status: 1 });
            });
        }
    }
    let job_dir = Path::new(&rooms.job.spec.job_dir);
    if number > 1 {
        rooms.restart_files = RestartFiles::below(job_dir, &job_dir.join(files::NAME));
    }
    let notebooks = ft_sys::made::directory(job_dir, number);
    if let Err(error) = ft_sys::job_dir::make_below(job_dir, &notebooks) {
        rooms.job.notice(format!(
            "what the ranks leave in shared memory cannot be noted in {}: {error}",
            notebooks.display()
        ));
    }
    rooms
        .job
        .tell(&ToLauncher::Input { world: number, here: processes.iter().any(|(process, _)| process.rank.0 == 0) });
    let starts = starts(rooms, World::new(number, epoch, layout), processes);
    nodes::begin(rooms, number);
    if parked {
        if number > 1 {
            ft_sys::gate::reach("agent.parked", None);
        }
        rooms.worlds.park(number, starts);
    } else {
        start(rooms, number, starts);
    }
    rooms.pmix.warm_up(&mut rooms.job, &rooms.worlds);
    rooms.pmix.register_ahead(&rooms.job, &rooms.worlds, number);
}

/// The world is the job's from now on: those that have waited for that are started.
pub fn release(rooms: &mut Rooms, number: WorldNumber) {
    rooms.job.events.happened(Kind::Released, "");
    let epoch = rooms.worlds.get(number).map_or(0, |world| world.epoch);
    rooms.costs.released(epoch, job_time::now());
    rooms.tell_toll();
    if number == 1 {
        injections::begin(rooms);
    }
    let parked = rooms.worlds.release(number);
    if !parked.is_empty() {
        start(rooms, number, parked);
    }
}

fn start(rooms: &mut Rooms, number: WorldNumber, starts: Vec<(Slot, Start)>) {
    let (mut of_open_mpi, mut of_mpich) = (Vec::new(), Vec::new());
    let preload = loners::unreadable(&rooms.job.spec.preload);
    for (slot, start) in starts {
        match (rooms.job.spec.program(start.rank).linked_in, &preload) {
            // Its MPI would say something about itself, and be gone before anybody has looked why.
            (None, Some(why)) => {
                let process = rooms.worlds.process(number, start.rank);
                process.into_iter().for_each(|process| {
                    let reason = format!("no MPI could join the job, {why}");
                    rooms.job.report(Event::StartFailed { process, reason, status: 1 });
                });
            }
            (None, None) => {
                rooms.shepherds.tell(slot, &ToShepherd::Start(start));
            }
            (Some(Flavour::OpenMpi), _) => of_open_mpi.push((slot, start)),
            (Some(Flavour::Mpich), _) => of_mpich.push((slot, start)),
        }
    }
    start_static_mpich(rooms, number, of_mpich);
    if !of_open_mpi.is_empty() {
        rooms.pmix.defer(number, of_open_mpi);
        rooms.pmix.serve(&mut rooms.job, &rooms.worlds, number);
    }
}

/// Makes the world; returns what is to be started for it.
fn starts(rooms: &mut Rooms, mut world: World, processes: Vec<(Process, SlotId)>) -> Vec<(Slot, Start)> {
    let Rooms { job, shepherds, .. } = rooms;
    let note = job.spec.binding.as_mut().and_then(|binding| binding.note.take());
    note.into_iter().for_each(|note| job.notice(note));
    let (processors, sentences) = binding::of_ranks(&job.spec, job.binding.as_ref(), world.layout.local());
    sentences.into_iter().for_each(|sentence| job.notice(sentence));
    let mut starts = Vec::new();
    for (process, SlotId(slot)) in processes {
        let rank = process.rank.0;
        if !shepherds.is_here(slot) {
            // The launcher's word that the slot is gone is on its way, and with it the next epoch.
            tracing::warn!(slot, rank, "a process was to start on a slot without a shepherd");
            continue;
        }
        world.members.insert(rank, Member::new(process, slot));
        world.occupied.insert(slot);
        let program = job.spec.program(rank);
        let start = Start {
            world: world.number,
            epoch: world.epoch,
            rank,
            argv: program.argv.clone(),
            env: environment::of_rank(job, &world, rank),
            cwd: program.cwd.clone(),
            processors: world.layout.local_rank(rank).and_then(|at| processors.get(at).cloned()).unwrap_or_default(),
            held: program.held,
            // srun sends it to all tasks.
            stdin: rank == 0 || job.slurm.is_some(),
            fd_at: None,
        };
        starts.push((slot, start));
    }
    for old in rooms.worlds.add(world) {
        bury(rooms, old);
    }
    starts
}

/// The environment is complete from the start: nothing can be preloaded in front of this program's MPI.
fn start_static_mpich(rooms: &mut Rooms, number: WorldNumber, starts: Vec<(Slot, Start)>) {
    let Rooms { job, shepherds, worlds, pmi, .. } = rooms;
    for (slot, mut start) in starts {
        let Some(layout) = worlds.get(number).map(|world| world.layout.clone()) else { return };
        let (fd, env) = match pmi.open(job, number, &layout, start.rank) {
            Ok(opened) => opened,
            Err(error) => {
                let process = worlds.process(number, start.rank);
                process.into_iter().for_each(|process| {
                    let reason = format!("there is no connection for its PMI: {error}");
                    job.report(Event::StartFailed { process, reason, status: 1 });
                });
                continue;
            }
        };
        for (key, value) in env {
            start.env.push((key.into_bytes(), value.into_bytes()));
        }
        let version = job.unless_set(start.rank, ft_pmi1::VERSION.0, ft_pmi1::VERSION.1);
        start.env.extend(version.and_then(|(key, value)| Some((key.into_bytes(), value?))));
        start.env.push((b"PMI_FD".to_vec(), STATIC_PMI_FD.to_string().into_bytes()));
        start.fd_at = Some(STATIC_PMI_FD);
        shepherds.tell_with(slot, &ToShepherd::Start(start), vec![fd]);
    }
}

/// Kills a world's processes.
pub fn stop_world(rooms: &mut Rooms, number: WorldNumber) {
    let Rooms { job, shepherds, worlds, files, lease, pmix, .. } = rooms;
    lease.forget_stopped();
    drop(pmix.take_deferred(number));
    if worlds.stop(job, files, shepherds, number) == Stopping::Empty {
        rooms.world_emptied(number);
    }
}

/// A world that already ended keeps nothing but its litter, and that is swept in the background.
fn bury(rooms: &mut Rooms, mut world: World) {
    let number = world.number;
    rooms.worlds.bury(&mut world);
    rooms.pmix.forget(number);
    rooms.pmi.forget(number);
    rooms.published.forget(number);
    rooms.clients.forget(number);
    let (dir, job_dir) = (pmix::directory(&rooms.job, number), PathBuf::from(&rooms.job.spec.job_dir));
    tokio::task::spawn_blocking(move || {
        let _ = std::fs::remove_dir_all(dir);
        // What stays now is looked at again, and named, at the job's end.
        if Litter::of_world(&job_dir, number).sweep(End::Killed).sentence().is_none() {
            let _ = std::fs::remove_dir_all(ft_sys::made::directory(&job_dir, number));
        }
        // A recovery is over: what it took for a while would else stay, in pieces, and more with each.
        ft_sys::process::give_memory_back();
    });
}

/// The job is told to end. Who waits to be started is not.
pub fn signal_ranks(rooms: &mut Rooms, signal: i32) {
    let Rooms { job, shepherds, worlds, pmix, .. } = rooms;
    job.told = true;
    shepherds.tell_all(&ToShepherd::Signal(signal));
    let going: Vec<WorldNumber> = worlds.all().filter(|world| !world.stopping).map(|world| world.number).collect();
    for number in going {
        let unborn: Vec<_> = pmix.take_deferred(number).into_iter().chain(worlds.take_parked(number)).collect();
        for process in unborn.into_iter().filter_map(|(_, start)| worlds.process(number, start.rank)) {
            job.report(Event::Exited { process, exit: Exit::Signal(signal), limit: None });
        }
    }
}

/// The rank of a slot has a signal, which it may go on after. One that waits to be started, and would not have handled it, is not started.
pub fn pass_on(rooms: &mut Rooms, slot: Slot, signal: i32, patience: Patience) {
    let Rooms { job, shepherds, worlds, pmix, .. } = rooms;
    if patience != Patience::None {
        let again = patience == Patience::Caught;
        return shepherds.tell(slot, &ToShepherd::SignalWhenCaught { signal, again });
    }
    shepherds.tell(slot, &ToShepherd::Signal(signal));
    let going: Vec<WorldNumber> = worlds.all().filter(|world| !world.stopping).map(|world| world.number).collect();
    for number in going {
        let unborn: Vec<_> =
            pmix.take_deferred_of(number, slot).into_iter().chain(worlds.take_parked_of(number, slot)).collect();
        for process in unborn.into_iter().filter_map(|start| worlds.process(number, start.rank)) {
            job.report(Event::Exited { process, exit: Exit::Signal(signal), limit: None });
        }
    }
}

/// Looks at every process at once.
pub fn survey(rooms: &mut Rooms) {
    // Ranks whose server died see errors and end by their own will, often before its connection is known to be closed.
    for number in rooms.pmix.dead(&rooms.worlds) {
        rooms.job.report(Event::WorldServerLost(WorldId(number)));
    }
    rooms.worlds.survey(&mut rooms.job, &rooms.shepherds);
}

/// An abort was the program's own wish: its process may go on with it.
pub fn proceed(rooms: &mut Rooms, process: Process) {
    let (number, rank) = (process.world.0, process.rank.0);
    rooms.worlds.proceed(number, rank);
    rooms.pmix.proceed(number, rank);
}

/// An epoch begins, and nothing is left of the world before it.
pub fn freeze(rooms: &mut Rooms, epoch: Epoch, world: WorldNumber, record: Option<&EpochRecord>) {
    ft_sys::gate::reach("agent.frozen", None);
    if let Some(between) = &mut rooms.between {
        between.over(world);
    }
    let ranks = rooms.checkpoints.ranks().into_iter();
    let taken = ranks.filter_map(|rank| rooms.checkpoints.last(rank, rooms.costs.epoch())).max();
    rooms.costs.had_taken(taken);
    rooms.checkpoints.freeze(epoch, record);
}

/// This is what the ranks of an epoch take back: who waits for it is told.
pub fn restore(
    rooms: &mut Rooms,
    (epoch, record): (Epoch, Option<&EpochRecord>),
    commit: Option<Commit>,
    away: RankSet,
) {
    ft_sys::gate::reach("agent.chosen", None);
    if let Some((version, _)) = commit {
        rooms.job.tell(&ToLauncher::Complete { version });
    }
    if let Some(record) = record {
        rooms.job.tell(&ToLauncher::Restores { world: record.world.0, restored: commit });
    }
    rooms.checkpoints.restore(&mut rooms.job, (epoch, record), commit, away);
    let Some(number) = rooms.worlds.of_epoch(epoch).map(|world| world.number) else { return };
    for rank in rooms.clients.awaiting(number) {
        rooms.answer_restore(number, rank);
    }
}

/// Tells a rank whether its next checkpoint is due.
pub fn answer_due(rooms: &Rooms, process: Process, yes: bool) {
    if let Some(link) = rooms.clients.link(process.world.0, process.rank.0) {
        link.send(&ToClient::Due { yes });
    }
}

/// Tells people.
pub fn tell(rooms: &mut Rooms, core: &Agent, now: Micros, report: &Report) {
    let here = here(rooms);
    let mut words = Words::default();
    match report {
        Report::RecoveryBegun { epoch, failures, .. } => {
            rooms.job.events.happened(Kind::Failed, &rooms.job.said(&failures.to_string()));
            puzzle(rooms, failures);
            failing(rooms, *epoch, failures, Duration::ZERO);
        }
        Report::RecoveryAgreed { epoch, failures, known_for, .. } => {
            rooms.job.events.happened(Kind::Agreed, &rooms.job.said(&failures.to_string()));
            puzzle(rooms, failures);
            // Who was on another node, and has failed there; and who has died since the first one.
            if failures.failures().iter().next().is_some() {
                let ended = EpochId(epoch.0.saturating_sub(1));
                failing(rooms, ended, failures, Duration::from_micros(known_for.0));
            }
            if speaks(rooms, core) {
                ask_for_dead(rooms, failures);
            }
        }
        Report::RecoveryDone(recovery) | Report::RecoveryDoneElsewhere(recovery) => {
            let mut costs = std::mem::take(&mut rooms.costs);
            words = cost((&mut costs, rooms), core, now, recovery);
            rooms.costs = costs;
        }
        Report::Notice(Notice::RestoredLate { version, .. }) => {
            words.lost = rooms.costs.restored_late(version.0, job_time::now());
        }
        Report::Notice(_) => {}
    }
    let untold = core.untold().into_iter().map(|process| (process.world.0, process.rank.0));
    rooms.costs.told_without_cause(untold.collect());
    match report::text(report, rooms.restart_files, &here, &words) {
        report::Text::Block { epoch: EpochId(epoch), over, block } => {
            let toll = rooms.toll();
            if over {
                ft_sys::gate::reach("agent.unsaid", None);
            }
            return rooms.job.recovered(epoch, over, &block, toll);
        }
        report::Text::Notice(notice) => rooms.job.notice(notice),
        report::Text::Silent => {}
    }
    if matches!(report, Report::Notice(_)) && !words.lost.is_empty() && speaks(rooms, core) {
        rooms.job.notice(format!("  lost      {}", words.lost));
    }
    // Behind the words: who knows that they are told need not tell them again.
    rooms.tell_toll();
}

/// Deaths of which it was not said of what they came.
fn puzzle(rooms: &mut Rooms, failures: &FailureSet) {
    let unknown = failures.failures().iter().filter(|failure| failure.cause == Cause::Unknown);
    for failure in unknown.filter(|failure| matches!(failure.subject, Subject::Process(_))) {
        if !rooms.puzzles.contains(failure) {
            rooms.puzzles.push(*failure);
        }
    }
}

/// Tells those who follow of what somebody has died, once that is known.
pub fn tell_causes(rooms: &mut Rooms, core: &Agent) {
    for puzzle in std::mem::take(&mut rooms.puzzles) {
        let mut failures = FailureSet::new();
        failures.insert(puzzle);
        let known = core.as_known(&failures);
        if known == failures {
            rooms.puzzles.push(puzzle);
        } else {
            rooms.job.events.happened(Kind::Cause, &rooms.job.said(&known.to_string()));
        }
    }
}

/// What this node is called.
fn here(rooms: &Rooms) -> report::Here {
    match rooms.job.spec.cluster.as_ref().filter(|cluster| cluster.nodes.len() > 1) {
        None => report::Here::Alone,
        Some(cluster) => report::Here::Named(cluster.own().map(|node| node.name.clone()).unwrap_or_default()),
    }
}

/// The launcher hears of a recovery that is over, as far as is seen, before people do: what is said of it does not die with this agent.
pub fn note_unreported(rooms: &mut Rooms, core: &Agent, now: Micros) {
    let Some(recovery) = core.unreported().filter(|recovery| rooms.noted < recovery.epoch.0) else { return };
    rooms.noted = recovery.epoch.0;
    let mut costs = rooms.costs.clone();
    let words = cost((&mut costs, rooms), core, now, &recovery);
    let block = core.tells_people().then(|| {
        let block = report::block(&recovery, rooms.restart_files, &here(rooms), &words);
        rooms.job.said(&block)
    });
    let toll = rooms.toll_of(&costs);
    rooms.job.tell(&ToLauncher::Unreported { epoch: recovery.epoch.0, block, toll });
}

/// Whether this node tells people of recoveries, for all of them.
pub fn speaks(rooms: &Rooms, core: &Agent) -> bool {
    core.record().is_none_or(|record| record.members().next() == Some(NodeId(me(rooms))))
}

/// The number of this node.
fn me(rooms: &Rooms) -> u32 {
    rooms.job.spec.cluster.as_ref().map_or(0, |cluster| cluster.me)
}

/// The block names the processes that have died, wherever that was.
fn ask_for_dead(rooms: &Rooms, failures: &FailureSet) {
    let here = me(rooms);
    let others = failures.failures().iter().filter_map(|failure| match failure.subject {
        Subject::Process(_) if failure.node.0 != here => Some(failure.node),
        _ => None,
    });
    others.collect::<BTreeSet<_>>().into_iter().for_each(|node| rooms.elsewhere.ask_for_dead(node));
}

/// What is known when a failure is noticed, for what it costs; `ago` it was, where another node has noticed it.
fn failing(rooms: &mut Rooms, ended: EpochId, failures: &FailureSet, ago: Duration) {
    let member = |process: Process| rooms.worlds.get(process.world.0)?.members.get(&process.rank.0);
    let dead = failures.failures().iter().filter_map(|failure| match failure.subject {
        Subject::Process(process) => Some((process.rank.0, member(process)?.pid.or(member(process)?.child)?)),
        Subject::Slot(_) | Subject::Node(_) => None,
    });
    let taken = rooms
        .worlds
        .newest()
        .and_then(|number| rooms.worlds.get(number))
        .and_then(|world| world.members.keys().filter_map(|rank| rooms.checkpoints.last(*rank, world.epoch)).max());
    let here = me(rooms);
    let agent = |failure: &Failure| failure.cause == Cause::AgentLost && failure.node.0 == here;
    // Of the death of the agent before this one the launcher knows more.
    let died = rooms.before.take_if(|_| failures.failures().iter().any(agent));
    let (today, now) = (SystemTime::now(), job_time::now());
    let noticed = || (today.checked_sub(ago).unwrap_or(today), now.checked_sub(ago).unwrap_or(now));
    let (day, since) = died.unwrap_or_else(noticed);
    let failing = Failing { day, since, dead: dead.collect(), complete: rooms.checkpoints.newest(), taken };
    rooms.costs.failed(ended.0, failing);
}

/// What a recovery cost, and which failure it was about.
fn cost((costs, rooms): (&mut Costs, &Rooms), core: &Agent, now: Micros, recovery: &Recovery) -> Words {
    let stamp = recovery.restored.as_ref().and_then(|choice| choice.values().next().copied());
    let from = match stamp {
        _ if recovery.stuck => From::Unknown,
        // A node without ranks takes nothing back itself.
        Some(Some(stamp)) if recovery.taken || recovery.complete => From::Version(stamp.version.0),
        Some(None) if rooms.restart_files.is_empty() => From::Beginning,
        Some(None) => From::Files,
        _ => From::Unknown,
    };
    let host = ft_sys::process::host_name().unwrap_or_default();
    let times = &recovery.times;
    let ago = Duration::from_micros(now.since(times.end()).0);
    let end = job_time::now().checked_sub(ago).unwrap_or_else(job_time::now);
    let survived = times.released.is_some() && recovery.is_over();
    let mut words = costs.recovered(&host, Over { epoch: recovery.epoch.0, survived, from, end });
    words.count = format!("failure {} of this job", recovery.epoch.0.saturating_sub(1));
    words.count += &in_a_row(&core.deaths_in_a_row(&recovery.episodes), rooms.job.spec.max_failures);
    words
}

/// Whose deaths without progress came closest to the end of the job.
fn in_a_row(deaths: &BTreeMap<Suspect, u32>, most: u32) -> String {
    let number = deaths.values().copied().max().unwrap_or(0);
    let mut whose = deaths.iter().filter(|(_, deaths)| **deaths == number).map(|(suspect, _)| suspect);
    let Some(first) = whose.next() else { return String::new() };
    let others = match whose.count() {
        0 => String::new(),
        others => format!(" (and {others} more)"),
    };
    format!("; {number} in a row without progress of {first}{others}, of {most} (--ft-max-failures)")
}

/// A job that has run for a while, and has nothing to go on from after a failure, is told so once.
pub fn look_for_protection(rooms: &mut Rooms) {
    let due = |time: Duration| time >= ft_sys::timescale::scaled(UNPROTECTED);
    let survives = rooms.job.spec.mode != "none" && !rooms.job.over;
    if !survives || !rooms.costs.computed(job_time::now()).is_some_and(due) || !rooms.costs.look_once() {
        return;
    }
    let world = rooms.worlds.newest().and_then(|number| rooms.worlds.get(number));
    let ranks: Vec<u32> = world.iter().flat_map(|world| world.members.keys().copied()).collect();
    let taken = |rank: &u32| rooms.checkpoints.of_rank(*rank, 0).is_some_and(|of_rank| of_rank.number > 0);
    let job_dir = Path::new(&rooms.job.spec.job_dir);
    if ranks.first() == Some(&0)
        && !ranks.iter().any(taken)
        && RestartFiles::below(job_dir, &job_dir.join(files::NAME)) == RestartFiles::Found(0)
    {
        rooms.job.notice(format!(
            "nothing protects this job: it has computed for {} min, and after a failure it begins from the beginning, unless it calls \
             ft_checkpoint (C, C++, Fortran; in Python ftd.checkpoint) or writes its restart files into $FT_CHECKPOINT_DIR",
            UNPROTECTED.as_secs() / 60
        ));
    }
    rooms.tell_toll();
}

/// What the job's failures and checkpoints cost, at its end, when there were failures or it is wanted.
pub fn summarize(rooms: &mut Rooms, core: &Agent, status: i32) {
    let asked = rooms.job.spec.summary;
    let failures = rooms.costs.summary(asked);
    if (failures.is_none() && !asked) || !rooms.costs.say_once() {
        return;
    }
    let speaks = speaks(rooms, core);
    if speaks {
        let only = rooms.costs.only_failure().filter(|_| status != 0 && !rooms.job.told);
        let failures = failures.or(only).unwrap_or_else(|| "no failure".into());
        rooms.job.notice(format!("summary   {failures}"));
    }
    rooms.tell_toll();
    let node = rooms.job.spec.cluster.as_ref().filter(|cluster| cluster.nodes.len() > 1).and_then(|c| c.own());
    let node = node.map(|node| format!("{}: ", node.name)).unwrap_or_default();
    let all: Vec<_> = (0..rooms.job.spec.world_size).filter_map(|rank| rooms.checkpoints.of_rank(rank, 0)).collect();
    // There are arenas of other nodes' ranks, too.
    let ranks = all.iter().filter(|of_rank| of_rank.number > 0).count();
    let number: u64 = all.iter().map(|of_rank| u64::from(of_rank.number)).sum();
    let (bytes, memory) = (size(all.iter().map(|r| r.bytes).sum()), size(all.iter().map(|r| r.memory).sum()));
    let spent = all.iter().map(|of_rank| of_rank.spent_us).max().unwrap_or(0) as f64 / 1e6;
    // The others say so only where there is something to say.
    if number == 0 && !speaks {
        return;
    }
    rooms.job.notice(match number {
        0 if rooms.job.spec.mode == "none" => {
            format!("summary   {node}no checkpoint of the API: with --ft=none none is kept")
        }
        0 => format!("summary   {node}no checkpoint of the API"),
        _ => format!(
            "summary   {node}{} of {}, {bytes}: {spent:.1} s in ft_checkpoint at most; {memory} of memory",
            counted(number, "checkpoint"),
            counted(ranks as u64, "rank"),
        ),
    });
}

/// Ends what is left of the job on this node, and sweeps what it made.
pub async fn clean_up(rooms: &mut Rooms, end: End) {
    drop(rooms.pmix.kill_all());
    if let Some(ended) = rooms.checkpoints.kill() {
        let _ = tokio::time::timeout(ABANDONED, ended).await;
    }
    let job_dir = PathBuf::from(&rooms.job.spec.job_dir);
    let sweep = move || Litter::of_job(&job_dir).sweep(end).sentence();
    if let Ok(Some(sentence)) = tokio::task::spawn_blocking(sweep).await {
        rooms.job.notice(sentence);
    }
}

/// Ends it when there is no launcher any more, and removes its directory.
pub async fn clean_up_after_launcher(rooms: &mut Rooms) {
    tracing::warn!("the launcher is gone: the job ends");
    let directory = ft_sys::job_dir::Proven::recognise(&rooms.job.spec.job_dir);
    let ended = tokio::task::spawn_blocking(move || {
        let held = directory.as_ref()?.wait_abandoned(ABANDONED)?;
        directory.as_ref().inspect(|directory| ft_sys::stray::end_strays(directory));
        directory.as_ref()?.group().inspect(|group| group.remove(ABANDONED));
        directory.map(|directory| (directory, held))
    });
    let abandoned = ended.await.ok().flatten();
    // What they make would keep the directory.
    let servers = rooms.pmix.kill_all();
    let gone = async {
        for server in servers {
            let _ = server.await;
        }
    };
    let _ = tokio::time::timeout(ABANDONED, gone).await;
    clean_up(rooms, End::Killed).await;
    abandoned.inspect(|(directory, _)| directory.remove(Duration::from_millis(100)));
}
