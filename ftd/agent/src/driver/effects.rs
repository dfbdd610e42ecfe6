//! Carries out what ftd-core decided.

use super::*;
use crate::report;
use crate::restart_files::RestartFiles;
use ft_sys::litter::End;
use ft_wire::Flavour;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// Where a statically linked program of the MPICH family finds its `PMI_FD`.
const STATIC_PMI_FD: i32 = 200;

impl Driver {
    pub(super) async fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::ReadStore => self.read_store().await,
            Effect::Cas { expected, record, .. } => self.swap(expected, &record).await,
            Effect::Send { to, .. } => tracing::warn!(?to, "there is no other node on one machine"),
            Effect::WakeAt(at) => self.wake_at(at),
            Effect::Launch { world, epoch, processes, parked: _ } => self.launch(world.0, epoch.0, processes),
            // A fresh world is released by being started.
            Effect::Release(world) => {
                tracing::info!(world = world.0, "released");
                self.releasing = Some(world.0);
            }
            Effect::StopWorld(world) => self.stop_world(world.0),
            Effect::Pause => self.to_all_shepherds(&shepherd::ToShepherd::Pause(true)),
            Effect::Continue => self.to_all_shepherds(&shepherd::ToShepherd::Pause(false)),
            Effect::Survey => self.survey(),
            Effect::Drain(world) => self.launcher.send(&launcher::ToLauncher::Drain { world: world.0 }),
            Effect::TakeInventory { epoch, world: _ } => self.arenas.freeze(epoch.0),
            Effect::Restore { epoch, stamp, .. } => self.restore(epoch.0, stamp.map(|s| (s.version.0, s.epoch.0))),
            Effect::Keep { stamps, .. } => {
                if let Some(newest) = stamps.last() {
                    self.versions.completed(newest.version.0);
                    self.arenas.retire(newest.version.0);
                }
            }
            Effect::Retire { complete, .. } => {
                self.versions.completed(complete.0);
                self.arenas.retire(complete.0);
            }
            Effect::Proceed { process, .. } => self.proceed(process),
            Effect::Signal { signal } => self.signal_ranks(signal),
            Effect::NeedSlot => self.launcher.send(&launcher::ToLauncher::NeedSlot),
            Effect::Report(report) => self.tell(report),
            Effect::End { status, reason } => self.ended = Some(self.unless_late(status, reason)),
        }
    }

    /// The job is told to end. Who waits to be started is not.
    fn signal_ranks(&mut self, signal: i32) {
        self.to_all_shepherds(&shepherd::ToShepherd::Signal(signal));
        let waiting = self.worlds.values_mut().filter(|world| !world.stopping);
        let unborn: Vec<Process> = waiting
            .flat_map(|world| {
                let (members, deferred) = (&world.members, std::mem::take(&mut world.deferred));
                let ranks = deferred.into_iter().map(|(_, start)| start.rank);
                ranks.filter_map(|rank| members.get(&rank).map(|member| member.process)).collect::<Vec<_>>()
            })
            .collect();
        for process in unborn {
            self.report(Event::Exited { process, exit: ftd_core::Exit::Signal(signal), limit: None });
        }
    }

    fn wake_at(&mut self, at: Micros) {
        let inputs = self.inputs.clone();
        let wait = Duration::from_micros(at.0.saturating_sub(now().0));
        let timer = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = inputs.send(Input::Timer);
        });
        if let Some(earlier) = self.timer.replace(timer.abort_handle()) {
            earlier.abort();
        }
    }

    async fn read_store(&mut self) {
        let event = match self.store.get().await {
            Ok(None) => Event::StoreRead { revision: Revision(0), record: None },
            Ok(Some(found)) => match decode_record(&found.value) {
                Ok(record) => Event::StoreRead { revision: Revision(found.revision), record: Some(Arc::new(record)) },
                Err(error) => {
                    self.notice(format!("the job's record cannot be read: {error}"));
                    Event::StoreUnavailable
                }
            },
            Err(error) => {
                tracing::error!(%error, "the store");
                Event::StoreUnavailable
            }
        };
        self.report(event);
    }

    async fn swap(&mut self, expected: Revision, record: &ftd_core::EpochRecord) {
        ft_sys::gate::reach(if record.epoch.0 > 1 { "agent.noticed" } else { "agent.complete" }, None);
        let expect = if expected.0 == 0 { Expected::Absent } else { Expected::Revision(expected.0) };
        let first = record.epoch.0 == 1;
        let event = match self.store.compare_and_swap(expect, encode_record(record)).await {
            Ok(revision) => Event::CasDone { revision: Revision(revision) },
            Err(StoreError::Lost(Some(found))) => match decode_record(&found.value) {
                Ok(record) => Event::CasLost { revision: Revision(found.revision), record: Some(Arc::new(record)) },
                Err(_) => Event::StoreUnavailable,
            },
            Err(error) => {
                self.notice(format!("the epoch could not be agreed: {error}"));
                Event::StoreUnavailable
            }
        };
        ft_sys::gate::reach(if first { "agent.recorded" } else { "agent.agreed" }, None);
        self.report(event);
    }

    fn launch(&mut self, number: WorldNumber, epoch: Epoch, processes: Vec<(Process, SlotId)>) {
        match self.files.next_world(processes.len()) {
            Ok(sentences) => sentences.into_iter().for_each(|sentence| self.notice(sentence)),
            Err(reason) => {
                let first = processes.into_iter().map(|(process, _)| process).min();
                return first.into_iter().for_each(|process| {
                    self.report(Event::StartFailed { process, reason: reason.clone(), status: 1 });
                });
            }
        }
        if number > 1 {
            let job_dir = Path::new(&self.spec.job_dir);
            self.restart_files = RestartFiles::below(job_dir, &job_dir.join(files::NAME));
        }
        let notebooks = ft_sys::made::directory(Path::new(&self.spec.job_dir), number);
        if let Err(error) = std::fs::create_dir_all(&notebooks) {
            self.notice(format!(
                "what the ranks leave in shared memory cannot be noted in {}: {error}",
                notebooks.display()
            ));
        }
        let mut world = World::new(number, epoch);
        for (process, SlotId(slot)) in processes {
            let rank = process.rank.0;
            let Some(shepherd) = self.shepherds.get(&slot) else {
                // The launcher's word that the slot is gone is on its way, and with it the next epoch.
                tracing::warn!(slot, rank, "a process was to start on a slot without a shepherd");
                continue;
            };
            world.members.insert(rank, Member::new(process, slot));
            world.occupied.insert(slot);
            let start = shepherd::Start {
                world: number,
                epoch,
                rank,
                argv: self.spec.argv.clone(),
                env: self.rank_environment(number, epoch, rank),
                cwd: self.spec.cwd.clone(),
                stdin: rank == 0,
                fd_at: None,
            };
            match self.spec.linked_in {
                Some(_) => world.deferred.push((slot, start)),
                None => shepherd.link.send(&shepherd::ToShepherd::Start(start)),
            }
        }
        self.worlds.insert(number, world);
        match self.spec.linked_in {
            Some(Flavour::OpenMpi) => self.serve_pmix(number),
            Some(Flavour::Mpich) => self.start_static_mpich(number),
            None => {}
        }
        // A world that already ended keeps nothing but its litter, and that is swept in the background.
        let old: Vec<WorldNumber> = self.worlds.range(..number).map(|(n, _)| *n).collect();
        for n in old {
            if let Some(world) = self.worlds.remove(&n) {
                self.bury(world);
            }
        }
        self.warm_up();
    }

    /// The environment is complete from the start: nothing can be preloaded in front of this program's MPI.
    fn start_static_mpich(&mut self, number: WorldNumber) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let deferred = std::mem::take(&mut world.deferred);
        let version = self.unless_set(ft_pmi1::VERSION.0, ft_pmi1::VERSION.1);
        for (slot, mut start) in deferred {
            let (fd, env) = match self.open_pmi(number, start.rank) {
                Ok(opened) => opened,
                Err(error) => {
                    self.notice(format!("rank {}: no connection for PMI: {error}", start.rank));
                    continue;
                }
            };
            for (key, value) in env {
                start.env.push((key.into_bytes(), value.into_bytes()));
            }
            start
                .env
                .extend(version.iter().filter_map(|(key, value)| Some((key.clone().into_bytes(), value.clone()?))));
            start.env.push((b"PMI_FD".to_vec(), STATIC_PMI_FD.to_string().into_bytes()));
            start.fd_at = Some(STATIC_PMI_FD);
            if let Some(shepherd) = self.shepherds.get(&slot) {
                shepherd.link.send_with(&shepherd::ToShepherd::Start(start), vec![fd]);
            }
        }
    }

    fn rank_environment(&self, world: WorldNumber, epoch: Epoch, rank: Rank) -> Vec<(Vec<u8>, Vec<u8>)> {
        let reaches_ranks = launcher::reaches_ranks;
        let mut env: Vec<(Vec<u8>, Vec<u8>)> =
            self.spec.env.iter().filter(|(key, _)| reaches_ranks(key) && key != b"LD_PRELOAD").cloned().collect();
        let mut set_path = |key: &str, name: &str| {
            env.push((key.as_bytes().to_vec(), self.spec.job_dir.join(name).into_os_string().into_vec()));
        };
        set_path("FT_SOCKET", ft_wire::AGENT_SOCKET);
        set_path("FT_CHECKPOINT_DIR", files::NAME);
        let mut set = |key: &str, value: String| env.push((key.as_bytes().to_vec(), value.into_bytes()));
        set("FT_JOB", self.spec.job.clone());
        set("FT_WORLD", world.to_string());
        set("FT_EPOCH", epoch.to_string());
        set("FT_RANK", rank.to_string());
        set("FT_SIZE", self.spec.world_size.to_string());
        set("FT_LOCAL_RANK", rank.to_string());
        set("FT_LOCAL_SIZE", self.spec.world_size.to_string());
        set("FT_MODE", self.spec.mode.clone());
        // Programs and wrappers look at what mpirun sets (to choose a device, for example), long before MPI_Init.
        for (key, value) in [("RANK", rank), ("LOCAL_RANK", rank), ("NODE_RANK", rank)] {
            set(&format!("OMPI_COMM_WORLD_{key}"), value.to_string());
        }
        for key in ["SIZE", "LOCAL_SIZE"] {
            set(&format!("OMPI_COMM_WORLD_{key}"), self.spec.world_size.to_string());
        }
        if self.spec.mpi != "auto" {
            set("FT_MPI", self.spec.mpi.clone());
        }
        // What was found in the program's file is so; what somebody has said may not be.
        if self.spec.linked_in.is_none() || self.spec.mpi != "auto" {
            for (key, value) in crate::loners::forlorn(self.spec.linked_in) {
                set(key, value.to_string());
            }
        }
        let old = |key: &[u8]| {
            let found = self.spec.env.iter().find(|(name, _)| name == key);
            found.map_or(&[][..], |(_, value)| value)
        };
        let preload = in_front(self.spec.preload.clone().into_os_string().into_vec(), old(b"LD_PRELOAD"));
        // AddressSanitizer takes any library in front of its own for a mistake, and ends the program.
        let sanitizer = [&b"verify_asan_link_order=0"[..], old(b"ASAN_OPTIONS")].join(&b':');
        env.retain(|(name, _)| name != b"ASAN_OPTIONS");
        env.extend([(b"LD_PRELOAD".to_vec(), preload), (b"ASAN_OPTIONS".to_vec(), sanitizer)]);
        env
    }

    fn stop_world(&mut self, number: WorldNumber) {
        self.watcher.forget(number);
        let Some(world) = self.worlds.get_mut(&number) else {
            // Another agent's world: the shepherds emptied their slots before they dialled.
            return self.report(Event::WorldEmptied(WorldId(number)));
        };
        if std::mem::replace(&mut world.stopping, true) {
            return;
        }
        self.files.world_ends();
        let over = self.core.stage() == ftd_core::agent::Stage::Ending;
        if over {
            self.files.job_ends();
        }
        for slot in world.occupied.clone() {
            if let Some(shepherd) = self.shepherds.get(&slot) {
                shepherd.link.send(&shepherd::ToShepherd::Stop { world: number, over });
            }
        }
        if self.worlds.get(&number).is_some_and(|w| w.occupied.is_empty()) {
            self.world_emptied(number);
        }
    }

    /// The user does not want to wait: what is still printed at the job's end has as little time as in a recovery.
    pub(super) fn hurry_filters(&mut self) {
        for (number, world) in self.worlds.iter().filter(|(_, world)| world.stopping) {
            for shepherd in world.occupied.iter().filter_map(|slot| self.shepherds.get(slot)) {
                shepherd.link.send(&shepherd::ToShepherd::Stop { world: *number, over: false });
            }
        }
    }

    pub(super) fn world_emptied(&mut self, number: WorldNumber) {
        if let Some(host) = self.worlds.get_mut(&number).and_then(|w| w.pmix.take()) {
            host.kill();
        }
        self.report(Event::WorldEmptied(WorldId(number)));
    }

    fn bury(&mut self, mut world: World) {
        // A wrapper that takes longer than a whole world to go is not waited for.
        self.departed.retain(|(number, _), _| number + 1 >= world.number);
        let members = std::mem::take(&mut world.members).into_iter().filter(|(_, member)| !member.ended);
        let below = members.filter_map(|(rank, member)| Some((rank, member.below.filter(Below::is_dying)?)));
        self.departed.extend(below.map(|(rank, below)| ((world.number, rank), below)));
        if let Some(host) = world.pmix.take() {
            host.kill();
        }
        let (number, dir) = (world.number, self.pmix_dir(world.number));
        let job_dir = PathBuf::from(&self.spec.job_dir);
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

    fn survey(&mut self) {
        // Ranks whose server died see errors and end by their own will, often before its connection is known to be closed.
        let served = self.worlds.values().filter(|w| !w.stopping);
        let dead: Vec<WorldNumber> = served
            .filter(|w| w.pmix.as_ref().is_some_and(crate::pmix_host::PmixHost::is_dead))
            .map(|w| w.number)
            .collect();
        for number in dead {
            self.report(Event::WorldServerLost(WorldId(number)));
        }
        let (mut dying, mut leaving, mut bereft) = (Vec::new(), Vec::new(), Vec::new());
        for member in self.worlds.values_mut().flat_map(|w| w.members.values_mut()).filter(|m| !m.ended) {
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
        bereft.into_iter().for_each(|slot| self.look_at_shepherd(slot));
        self.report(Event::Surveyed { dying, leaving });
    }

    /// The abort was the program's own wish: its process may go on with it.
    fn proceed(&mut self, process: Process) {
        let (number, rank) = (process.world.0, process.rank.0);
        let Some(world) = self.worlds.get_mut(&number) else { return };
        if let Some(link) = world.members.get(&rank).and_then(|m| m.link.as_ref()) {
            link.send(&rank::ToRank::Proceed);
        }
        for token in world.aborts.remove(&rank).into_iter().flatten() {
            if let Some(host) = &world.pmix {
                host.send(pmix::ToPmix::Done { token, status: 0 });
            }
        }
    }

    fn restore(&mut self, epoch: Epoch, commit: Option<crate::arenas::Commit>) {
        self.restore = Some((epoch, commit));
        if let Some((version, _)) = commit {
            self.launcher.send(&launcher::ToLauncher::Complete { version });
        }
        self.arenas.begin_epoch(commit);
        let number = self.worlds.values().find(|w| w.epoch == epoch).map(|w| w.number);
        let waiting: Vec<Rank> = number
            .and_then(|n| self.worlds.get(&n))
            .map(|w| w.members.iter().filter(|(_, m)| m.awaits_restore).map(|(rank, _)| *rank).collect())
            .unwrap_or_default();
        for rank in waiting {
            if let Some(number) = number {
                self.answer_restore(number, rank);
            }
        }
    }

    fn tell(&mut self, report: ftd_core::Report) {
        if let ftd_core::Report::RecoveryDone(recovery) = &report {
            self.failures += recovery.episodes.len() as u32;
        }
        match report::text(&report, self.restart_files) {
            report::Text::Block(EpochId(epoch), block) => {
                self.launcher.send(&launcher::ToLauncher::Recovered { epoch, block });
            }
            report::Text::Notice(notice) => self.notice(notice),
            report::Text::Silent => {}
        }
    }
}

/// A list with one more entry in front; behind the sanitizers' runtimes, which must come first.
fn in_front(entry: Vec<u8>, list: &[u8]) -> Vec<u8> {
    const RUNTIMES: [&str; 7] =
        ["libasan.", "libtsan.", "libubsan.", "liblsan.", "libmsan.", "libhwasan.", "libclang_rt."];
    let is_runtime = |entry: &&[u8]| {
        let name = entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry);
        RUNTIMES.iter().any(|runtime| name.starts_with(runtime.as_bytes()))
    };
    let entries = || list.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty());
    let runtimes = entries().filter(is_runtime);
    let all: Vec<&[u8]> = runtimes.chain([&entry[..]]).chain(entries().filter(|entry| !is_runtime(entry))).collect();
    all.join(&b':')
}

#[cfg(test)]
mod tests {
    use super::in_front;

    #[test]
    fn the_preload_stands_behind_sanitizers_and_before_all_others() {
        for (old, new) in [
            ("", "ours"),
            ("theirs.so", "ours:theirs.so"),
            ("/x/libprof.so:/y/libasan.so.8 z.so", "/y/libasan.so.8:ours:/x/libprof.so:z.so"),
        ] {
            assert_eq!(in_front(b"ours".to_vec(), old.as_bytes()), new.as_bytes());
        }
    }
}
