//! One node, effect by effect: the order in which a real agent is told to act.

use ftd_core::*;

const MS: u64 = 1000;

struct Node {
    agent: Agent,
    now: u64,
    revision: u64,
    stored: Option<EpochRecord>,
}

fn process(world: u64, rank: u32) -> Process {
    Process::primary(WorldId(world), Rank(rank))
}

impl Node {
    fn new(policy: Policy, mode: Mode) -> Self {
        let agent = Agent::new(NodeId(0), JobConfig::single_node(2, mode, policy));
        Node { agent, now: 0, revision: 0, stored: None }
    }

    fn restart(&mut self, policy: Policy) {
        self.agent = Agent::new(NodeId(0), JobConfig::single_node(2, Mode::Reinit, policy));
    }

    /// One event; the store answers at once, the survey finds what `dying` says, the rest is returned as words.
    fn tell(&mut self, event: Event) -> Vec<String> {
        self.tell_with(event, &[], &[])
    }

    fn tell_with(&mut self, event: Event, dying: &[Process], leaving: &[Process]) -> Vec<String> {
        let mut said = Vec::new();
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.agent.step(Micros(self.now), event) {
                match effect {
                    Effect::ReadStore => events.push_back(Event::StoreRead {
                        revision: Revision(self.revision),
                        record: self.stored.clone().map(std::sync::Arc::new),
                    }),
                    Effect::Cas { expected, record, .. } => {
                        assert_eq!(expected, Revision(self.revision));
                        self.revision += 1;
                        said.push(match &record.outcome {
                            Some(outcome) => format!("agree end {}", outcome.status),
                            None => format!("agree {} {}", record.epoch, record.world),
                        });
                        self.stored = Some(EpochRecord::clone(&record));
                        events.push_back(Event::CasDone { revision: Revision(self.revision) });
                    }
                    Effect::Survey => {
                        events.push_back(Event::Surveyed { dying: dying.to_vec(), leaving: leaving.to_vec() })
                    }
                    Effect::WakeAt(_) => {}
                    Effect::Launch { world, processes, parked, .. } => {
                        let at: Vec<String> = processes.iter().map(|(p, s)| format!("{}@{}", p.rank.0, s.0)).collect();
                        said.push(format!("launch {world} {}{}", at.join(" "), if parked { " parked" } else { "" }));
                    }
                    Effect::Release(world) => said.push(format!("release {world}")),
                    Effect::StopWorld(world) => said.push(format!("stop {world}")),
                    Effect::Drain(world) => said.push(format!("drain {world}")),
                    Effect::TakeInventory { epoch, world } => said.push(format!("inventory {epoch} {world}")),
                    Effect::ListVerified { epoch } => said.push(format!("list verified {epoch}")),
                    Effect::Restore { stamp: None, .. } => said.push("restore nothing".into()),
                    Effect::Restore { stamp: Some(stamp), .. } => said.push(format!("restore {}", stamp.version)),
                    Effect::Retire { complete, .. } => said.push(format!("retire below {complete}")),
                    Effect::Keep { stamps, .. } => {
                        let stamps: Vec<String> = stamps.iter().map(|stamp| stamp.version.to_string()).collect();
                        said.push(format!("keep {}", stamps.join(", ")));
                    }
                    Effect::Proceed { process, .. } => said.push(format!("proceed {}", process.rank)),
                    Effect::NeedSlot => said.push("need slot".into()),
                    Effect::Signal { signal } => said.push(format!("signal {signal}")),
                    Effect::PassOn { slot, signal, patience } => said.push(match patience {
                        Patience::None => format!("pass {signal} to {slot}"),
                        patience => format!("pass {signal} to {slot}: {patience:?}"),
                    }),
                    Effect::Leave => said.push("leave".into()),
                    Effect::End { status, reason, .. } => {
                        said.push(format!("end {status}{}", reason.map(|r| format!(": {r}")).unwrap_or_default()));
                    }
                    Effect::Report(Report::RecoveryDone(done)) => said.push(format!("done: {}", done.blame.join("; "))),
                    Effect::Report(Report::Notice(notice)) => said.push(format!("{notice:?}")),
                    Effect::Report(_) => {}
                    other => panic!("a single node needs no {other:?}"),
                }
            }
        }
        said
    }

    /// Lets the batch window pass.
    fn wait(&mut self, us: u64) -> Vec<String> {
        self.now += us;
        self.tell(Event::Timer)
    }

    fn start(&mut self) {
        assert!(self.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] }).is_empty());
        assert!(self.tell(Event::SlotUp(SlotId(0))).is_empty());
        let said = self.tell(Event::SlotUp(SlotId(1)));
        assert_eq!(said, ["agree epoch 1 world 1", "launch world 1 0@0 1@1", "release world 1", "restore nothing"]);
        self.initialize(1);
    }

    fn initialize(&mut self, world: u64) {
        for rank in 0..2 {
            self.tell(Event::Started(process(world, rank)));
            self.tell(Event::Initialized(process(world, rank)));
        }
    }
}

fn running() -> Node {
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.start();
    node
}

fn killed(world: u64, rank: u32) -> Event {
    Event::Exited { process: process(world, rank), exit: Exit::Signal(9), limit: None }
}

fn exits(world: u64, rank: u32, code: i32) -> Event {
    Event::Exited { process: process(world, rank), exit: Exit::Code(code), limit: None }
}

#[test]
fn a_killed_rank_costs_a_recovery_from_the_newest_complete_checkpoint() {
    let mut node = running();
    for (rank, version) in [(0, 10), (1, 10), (0, 20)] {
        let said = node.tell(Event::Committed {
            process: process(1, rank),
            version: Version(version),
            level: ftd_core::Level::Own,
        });
        let complete = rank == 1;
        assert_eq!(said, if complete { vec!["retire below version 10"] } else { vec![] });
    }
    assert!(node.tell(Event::Dying(process(1, 1))).is_empty(), "the window for others is open");
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    assert!(node.tell(killed(1, 0)).is_empty());
    assert!(node.tell(killed(1, 1)).is_empty(), "its cause is in the report");
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(1))), ["drain world 1", "inventory epoch 2 world 1"]);
    assert_eq!(node.tell(Event::Drained(WorldId(1))), ["launch world 2 0@0 1@1", "release world 2"]);
    let stamp = |version| Stamp { version: Version(version), epoch: EpochId(1) };
    let inventory = Inventory::own([(Rank(0), stamp(10)), (Rank(0), stamp(20)), (Rank(1), stamp(10))]);
    let said = node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory });
    assert_eq!(said, ["restore version 10", "keep version 10"]);
    node.initialize(2);
    assert!(node.tell(Event::Restored { process: process(2, 0), version: Version(10) }).is_empty());
    let said = node.tell(Event::Restored { process: process(2, 1), version: Version(10) });
    assert_eq!(said, ["done: rank 1 on node 0 was killed by SIGKILL"]);
    node.tell(Event::Finalized(process(2, 0)));
    node.tell(Event::Finalized(process(2, 1)));
    assert!(node.tell(exits(2, 0, 0)).is_empty());
    assert_eq!(node.tell(exits(2, 1, 0)), ["agree end 0", "stop world 2"]);
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(2))), ["end 0"]);
}

#[test]
fn a_clean_end_before_a_death_is_run_again() {
    let mut node = running();
    node.tell(Event::Finalized(process(1, 0)));
    node.tell(exits(1, 0, 0));
    node.tell(killed(1, 1));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(node.tell(Event::Drained(WorldId(1)))[0], "launch world 2 0@0 1@1");
}

#[test]
fn an_abort_without_a_death_before_it_ends_the_job_with_its_code() {
    let mut node = running();
    let said = node.tell(Event::AbortRequested { process: process(1, 0), code: 7 });
    assert_eq!(said, ["proceed rank 0", "agree end 7"], "it may write its last words");
    assert_eq!(node.tell(exits(1, 0, 7)), ["stop world 1"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(said, ["end 7: rank 0 on node 0 called MPI_Abort with code 7"]);
}

#[test]
fn an_abort_that_never_exits_is_killed_after_its_grace() {
    let mut node = running();
    node.tell(Event::AbortRequested { process: process(1, 0), code: 7 });
    assert!(node.wait(499 * MS).is_empty());
    assert_eq!(node.wait(MS), ["stop world 1"]);
}

#[test]
fn an_abort_because_a_peer_died_is_collateral() {
    let mut node = running();
    let event = Event::AbortRequested { process: process(1, 0), code: 1 };
    assert!(node.tell_with(event, &[process(1, 1)], &[]).is_empty());
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    node.tell(killed(1, 1));
    node.tell(Event::WorldEmptied(WorldId(1)));
    node.tell(Event::Drained(WorldId(1)));
    node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
    node.tell(Event::Initialized(process(2, 0)));
    let said = node.tell(Event::Initialized(process(2, 1)));
    let blame = "done: rank 1 on node 0 was killed by SIGKILL; rank 0 called MPI_Abort with code 1 because of that \
                 death; it is not blamed";
    assert_eq!(said, [blame]);
}

#[test]
fn an_abort_after_a_death_that_is_not_agreed_yet_is_of_the_same_failure_set() {
    let mut node = running();
    assert!(node.tell(Event::Dying(process(1, 1))).is_empty());
    assert!(node.tell(Event::AbortRequested { process: process(1, 0), code: 1 }).is_empty());
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    let failures = node.stored.unwrap().failures;
    assert_eq!(failures.failures().len(), 1);
    assert_eq!(failures.collateral(), [Collateral { process: process(1, 0), end: OwnEnd::Abort(1) }]);
}

#[test]
fn the_loss_of_a_parked_slot_ends_no_epoch_and_is_agreed_with_the_next() {
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.tell(Event::Start { slots: (0..3).map(SlotId).collect() });
    (0..3).for_each(|slot| drop(node.tell(Event::SlotUp(SlotId(slot)))));
    node.initialize(1);
    assert!(node.tell(Event::SlotLost(SlotId(2))).is_empty());
    assert!(node.wait(100 * MS).is_empty());
    node.tell(Event::Dying(process(1, 1)));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    let record = node.stored.unwrap();
    assert_eq!(record.slot(SlotId(2)).map(|entry| entry.state), Some(SlotState::Lost));
    assert_eq!(record.failures.failures().len(), 2);
}

#[test]
fn an_abort_waits_for_the_exit_of_a_peer_that_is_gone_already() {
    let abort = Event::AbortRequested { process: process(1, 0), code: 1 };
    let mut node = running();
    assert!(node.tell_with(abort.clone(), &[], &[process(1, 1)]).is_empty(), "rank 1 is gone, nobody knows how");
    assert!(node.tell(killed(1, 1)).is_empty(), "now it is known");
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    // Its own exit came first: that is how the job ends.
    let mut node = running();
    assert!(node.tell_with(abort, &[], &[process(1, 1)]).is_empty());
    assert_eq!(node.tell(exits(1, 1, 3)), ["agree end 3", "stop world 1"]);
}

#[test]
fn an_exit_waits_for_the_cause_of_a_death_that_nobody_knows_yet() {
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.start();
    // Rank 1 of a program that never called MPI as far as ftd knows: world 1 is not initialised in this one.
    let mut node = {
        node.tell(killed(1, 1));
        node.wait(MS);
        node.tell(Event::WorldEmptied(WorldId(1)));
        node.tell(Event::Drained(WorldId(1)));
        node
    };
    assert!(node.tell_with(exits(2, 0, 3), &[process(2, 1)], &[]).is_empty(), "rank 1 is dying: of what?");
    let said = node.tell(killed(2, 1));
    assert_eq!(said, ["done: rank 1 on node 0 was killed by SIGKILL"], "of a signal: rank 0's exit is collateral");
    assert_eq!(node.wait(MS), ["agree epoch 3 world 3", "stop world 2"]);
}

#[test]
fn own_errors_end_the_job_unless_told_otherwise() {
    let mut node = running();
    assert_eq!(node.tell(exits(1, 0, 3)), ["agree end 3", "stop world 1"]);
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(1))), ["end 3: rank 0 on node 0 exited with code 3"]);

    let mut node = Node::new(Policy { recover_aborts: true, ..Policy::default() }, Mode::Reinit);
    node.start();
    node.tell(exits(1, 0, 3));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
}

#[test]
fn an_abort_is_no_success_whatever_its_code_says() {
    for code in [0, 256, -256, i32::MIN] {
        let abort = |world| Event::AbortRequested { process: process(world, 0), code };
        let mut node = running();
        assert_eq!(node.tell(abort(1)), ["proceed rank 0", "agree end 1"]);
        assert_eq!(node.wait(500 * MS), ["stop world 1"]);
        let said = node.tell(Event::WorldEmptied(WorldId(1)));
        assert_eq!(said, [format!("end 1: rank 0 on node 0 called MPI_Abort with code {code}")]);

        let policy = Policy { recover_aborts: true, max_failures: 1, ..Policy::default() };
        let mut node = Node::new(policy, Mode::Reinit);
        node.start();
        node.tell(abort(1));
        assert_eq!(node.wait(MS)[0], "agree end 1", "a crash loop");
    }
}

#[test]
fn an_exit_without_finalize_ends_the_job_with_status_1() {
    let mut node = running();
    assert_eq!(node.tell(exits(1, 0, 0)), ["agree end 1", "stop world 1"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert!(said[0].starts_with("end 1: rank 0 on node 0 exited with code 0 but without MPI_Finalize"), "{said:?}");
}

#[test]
fn a_failure_during_a_recovery_supersedes_it() {
    let mut node = running();
    node.tell(killed(1, 0));
    node.wait(MS);
    // The old world is not gone yet when a slot is lost too.
    assert!(node.tell(Event::SlotLost(SlotId(1))).is_empty());
    assert_eq!(node.wait(MS), ["WaitingForSlot { lost: SlotId(1) }", "need slot"]);
    assert_eq!(node.tell(Event::SlotUp(SlotId(2))), ["agree epoch 3 world 3"]);
    node.tell(Event::WorldEmptied(WorldId(1)));
    node.tell(Event::InventoryTaken { epoch: EpochId(3), inventory: Inventory::default() });
    node.tell(Event::Drained(WorldId(2)));
    node.tell(Event::Initialized(process(3, 0)));
    let said = node.tell(Event::Initialized(process(3, 1)));
    let done = "done: rank 0 on node 0 was killed by SIGKILL; rank 1 on node 0 was lost (its shepherd died)";
    assert_eq!(said, [done], "one block for both: world 2 never ran");
}

#[test]
fn a_failure_of_the_recovered_world_ends_the_recovery_with_its_block() {
    let mut node = running();
    node.tell(killed(1, 0));
    node.wait(MS);
    node.tell(Event::WorldEmptied(WorldId(1)));
    node.tell(Event::Drained(WorldId(1)));
    // World 2 is launched; rank 1 dies before MPI_Init.
    assert_eq!(node.tell(killed(2, 1)), ["done: rank 0 on node 0 was killed by SIGKILL"]);
    assert_eq!(node.wait(MS), ["agree epoch 3 world 3", "stop world 2"]);
    let late = node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
    assert!(late.is_empty(), "work for an older epoch is dropped");
    node.tell(Event::WorldEmptied(WorldId(2)));
    assert_eq!(node.tell(Event::Drained(WorldId(2))), ["launch world 3 0@0 1@1", "release world 3"]);
    node.initialize(3);
    let said = node.tell(Event::InventoryTaken { epoch: EpochId(3), inventory: Inventory::default() });
    assert_eq!(said, ["restore nothing", "done: rank 1 on node 0 was killed by SIGKILL"]);
}

fn recover(node: &mut Node, world: u64) {
    recover_from(node, world, Inventory::default());
}

fn recover_from(node: &mut Node, world: u64, inventory: Inventory) {
    begin_again(node, world, inventory);
    node.initialize(world + 1);
}

/// The next world is started, and not yet past `MPI_Init`.
fn begin_again(node: &mut Node, world: u64, inventory: Inventory) {
    node.tell(Event::WorldEmptied(WorldId(world)));
    node.tell(Event::Drained(WorldId(world)));
    node.tell(Event::InventoryTaken { epoch: EpochId(world + 1), inventory });
}

#[test]
fn a_crash_loop_ends_the_job_with_its_history_and_the_true_cause() {
    let mut node = running();
    for world in 1..5 {
        node.tell(Event::Dying(process(world, 1)));
        node.wait(MS);
        node.tell(Event::Exited { process: process(world, 1), exit: Exit::Signal(11), limit: None });
        recover(&mut node, world);
    }
    node.tell(Event::Dying(process(5, 1)));
    assert!(node.wait(MS).is_empty(), "how it died is worth waiting for");
    let exit = Event::Exited { process: process(5, 1), exit: Exit::Signal(11), limit: None };
    assert_eq!(node.tell(exit), ["agree end 139", "stop world 5"]);
    let said = node.tell(Event::WorldEmptied(WorldId(5)));
    assert!(said[0].contains("because the program died by itself 5 times in a row"), "{said:?}");
    assert_eq!(said[0].matches("was killed by SIGSEGV").count(), 5, "{said:?}");
}

#[test]
fn deaths_of_one_failure_stand_together_in_the_history() {
    let mut node = running();
    let exit = |world, rank| Event::Exited { process: process(world, rank), exit: Exit::Signal(11), limit: None };
    let mut said = Vec::new();
    for world in 1..=5 {
        node.tell(Event::Dying(process(world, 0)));
        node.tell(Event::Dying(process(world, 1)));
        node.wait(MS);
        node.tell(exit(world, 0));
        said = node.tell(exit(world, 1));
        if world < 5 {
            recover(&mut node, world);
        }
    }
    assert_eq!(said, ["agree end 139", "stop world 5"]);
    let said = node.tell(Event::WorldEmptied(WorldId(5)));
    assert_eq!(
        said[0].matches(" s after the start: rank 0 on node 0 was killed by SIGSEGV; restored").count(),
        5,
        "{said:?}"
    );
    assert_eq!(
        said[0].matches("\n    together with that: rank 1 on node 0 was killed by SIGSEGV").count(),
        5,
        "{said:?}"
    );
}

/// World after world one rank dies of `exit` after `seconds` of computing; the world in which the job ends.
fn dies_again_and_again(exit: Exit, limit: Option<Limit>, seconds: u64) -> Option<u64> {
    let mut node = running();
    for world in 1..12 {
        node.now += seconds * 1000 * MS;
        let rank = (world % 2) as u32;
        // Agreed before it is known how the process died.
        node.tell(Event::Dying(process(world, rank)));
        let mut said = node.wait(MS);
        said.extend(node.tell(Event::Exited { process: process(world, rank), exit, limit }));
        // An exit that explains nothing is waited for in vain.
        said.extend(node.wait(6_000 * MS));
        if said.iter().any(|what| what.starts_with("agree end")) {
            return Some(world);
        }
        recover(&mut node, world);
    }
    None
}

#[test]
fn computing_is_progress_after_deaths_from_outside_alone() {
    assert_eq!(dies_again_and_again(Exit::Signal(9), None, 31), None);
    // Per rank: each dies every second time.
    assert_eq!(dies_again_and_again(Exit::Signal(9), None, 29), Some(9));
    let own = [
        (Exit::Signal(11), None),
        (Exit::Signal(15), None),
        (Exit::Signal(24), None),
        (Exit::Signal(9), Some(Limit::Memory)),
        (Exit::Signal(9), Some(Limit::CpuTime)),
        (Exit::Code(0), None),
        (Exit::Unseen, None),
    ];
    for (exit, limit) in own {
        assert_eq!(dies_again_and_again(exit, limit, 31), Some(5), "{exit:?} {limit:?}");
    }
}

/// Version 7 was complete when rank 0 was killed; world 2 may take it back.
fn restoring() -> Node {
    let mut node = running();
    for rank in 0..2 {
        node.tell(Event::Committed { process: process(1, rank), version: Version(7), level: ftd_core::Level::Own });
    }
    node.tell(killed(1, 0));
    node.wait(MS);
    recover_from(&mut node, 1, both_hold(7, 1));
    node
}

#[test]
fn a_program_that_never_asks_for_its_state_gets_its_block_at_the_end() {
    let mut node = restoring();
    for rank in 0..2 {
        node.tell(Event::Finalized(process(2, rank)));
    }
    assert!(node.tell(exits(2, 0, 0)).is_empty());
    let done = "done: rank 0 on node 0 was killed by SIGKILL";
    assert_eq!(node.tell(exits(2, 1, 0)), [done, "agree end 0", "stop world 2"]);
}

#[test]
fn a_cause_that_comes_before_the_record_is_in_the_next_agents_block() {
    let mut node = running();
    node.tell(Event::Dying(process(1, 0)));
    node.wait(MS);
    // The epoch is agreed, and its agent dies before anybody has been told of what the rank died.
    let predecessor = Predecessor { failed: Micros(node.now), reported: EpochId(1), speaks_mpi: true, ..nobody() };
    let config = JobConfig::single_node(2, Mode::Reinit, Policy::default());
    node.agent = Agent::new(NodeId(0), config).succeeding(Some(predecessor));
    node.agent.step(Micros(node.now), killed(1, 0));
    let mut said = node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    let events = [
        Event::SlotUp(SlotId(0)),
        Event::SlotUp(SlotId(1)),
        Event::WorldEmptied(WorldId(2)),
        Event::Timer,
        Event::Drained(WorldId(2)),
        Event::InventoryTaken { epoch: EpochId(3), inventory: Inventory::default() },
        Event::Initialized(process(3, 0)),
        Event::Initialized(process(3, 1)),
    ];
    for event in events {
        said.extend(node.wait(MS));
        said.extend(node.tell(event));
    }
    let block = "done: rank 0 on node 0 was killed by SIGKILL; node 0 lost its agent";
    assert!(said.iter().any(|line| line == block), "{said:?}");
}

/// Of an agent of which nothing is known.
fn nobody() -> Predecessor {
    Predecessor { failed: Micros(0), reported: EpochId(0), speaks_mpi: true, untold: [].into(), progress: None }
}

/// Rank 0 has died, its recovery is over and told of, and then the agent dies. What the next one says.
fn after_a_rank_and_the_agent(predecessor: Predecessor) -> (Node, Vec<String>) {
    let mut node = recovering_from_an_unknown_death();
    node.tell(killed(1, 0));
    recover(&mut node, 1);
    let predecessor = Predecessor { failed: Micros(node.now), reported: EpochId(2), ..predecessor };
    let config = JobConfig::single_node(2, Mode::Reinit, Policy::default());
    node.agent = Agent::new(NodeId(0), config).succeeding(Some(predecessor));
    let mut said = node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    for event in [Event::SlotUp(SlotId(0)), Event::SlotUp(SlotId(1)), killed(1, 0), Event::WorldEmptied(WorldId(2))] {
        said.extend(node.tell(event));
    }
    said.extend(node.wait(MS));
    (node, said)
}

#[test]
fn a_new_agent_says_of_old_deaths_only_what_was_not_said() {
    let news = |said: Vec<String>| said.into_iter().filter(|line| line.contains("SIGKILL")).collect::<Vec<_>>();
    let (node, said) = after_a_rank_and_the_agent(nobody());
    assert_eq!(news(said), Vec::<String>::new());
    assert_eq!(node.agent.untold(), [].into(), "that it was told is not forgotten");
    let (_, said) = after_a_rank_and_the_agent(Predecessor { untold: [process(1, 0)].into(), ..nobody() });
    assert!(matches!(&news(said)[..], [line] if line.starts_with("CauseKnown")));
}

#[test]
fn a_version_that_was_complete_before_the_agent_died_is_progress() {
    let deaths = |progress| {
        let (node, _) = after_a_rank_and_the_agent(Predecessor { progress, ..nobody() });
        let record = node.stored.filter(|record| record.epoch == EpochId(3));
        record.map(|record| record.streaks.iter().map(|streak| streak.deaths).collect::<Vec<u32>>())
    };
    assert_eq!(
        (deaths(Some(EpochId(2))), deaths(Some(EpochId(1))), deaths(None)),
        (Some(vec![]), Some(vec![1]), Some(vec![1]))
    );
}

#[test]
fn an_abort_in_a_recovery_comes_below_its_block() {
    let mut node = restoring();
    let said = node.tell(Event::AbortRequested { process: process(2, 1), code: 3 });
    assert_eq!(said, ["done: rank 0 on node 0 was killed by SIGKILL", "proceed rank 1", "agree end 3"]);
}

#[test]
fn progress_ends_a_streak() {
    let mut node = running();
    for world in 1..12 {
        if world % 2 == 0 {
            for rank in 0..2 {
                node.tell(Event::Committed {
                    process: process(world, rank),
                    version: Version(world),
                    level: ftd_core::Level::Own,
                });
            }
        } else {
            node.now += 30_000 * MS;
        }
        node.tell(killed(world, 1));
        assert_eq!(node.wait(MS).len(), 2, "recovers in world {world}");
        recover(&mut node, world);
    }
}

/// Inventories that both ranks hold `version`, written in `epoch`.
fn both_hold(version: u64, epoch: u64) -> Inventory {
    let stamp = inventory::Stamp { version: Version(version), epoch: EpochId(epoch) };
    Inventory::own([(Rank(0), stamp), (Rank(1), stamp)])
}

#[test]
fn a_checkpoint_whose_checksum_came_too_late_is_progress_all_the_same() {
    let mut node = running();
    for world in 1..12 {
        // Nobody had heard of version `world` when the rank died; it is found to be whole afterwards.
        node.tell(killed(world, 1));
        assert_eq!(node.wait(MS).len(), 2, "recovers in world {world}");
        recover_from(&mut node, world, both_hold(world, world));
    }
    // From now on it comes no further.
    for world in 12..16 {
        node.tell(killed(world, 1));
        let said = node.wait(MS);
        if world == 15 {
            assert_eq!(said[0], "agree end 137", "{said:?}");
            return;
        }
        assert_eq!(said.len(), 2, "recovers in world {world}: {said:?}");
        recover_from(&mut node, world, both_hold(11, 11));
    }
}

#[test]
fn a_lost_slot_is_replaced_and_its_rank_moves() {
    let mut node = running();
    node.tell(Event::SlotLost(SlotId(1)));
    let said = node.wait(MS);
    assert_eq!(said, ["WaitingForSlot { lost: SlotId(1) }", "need slot", "stop world 1"]);
    node.tell(killed(1, 0));
    node.tell(Event::WorldEmptied(WorldId(1)));
    let said = node.tell(Event::SlotUp(SlotId(2)));
    assert_eq!(said, ["agree epoch 2 world 2", "drain world 1", "inventory epoch 2 world 1"]);
    assert_eq!(node.tell(Event::Drained(WorldId(1))), ["launch world 2 0@0 1@2", "release world 2"]);
}

#[test]
fn the_death_of_a_shepherd_is_one_failure_though_its_rank_is_seen_dying_first() {
    let mut node = running();
    node.tell(Event::SlotDying(SlotId(1)));
    node.tell(Event::Dying(process(1, 1)));
    assert!(node.wait(4_000 * MS).is_empty(), "the launcher's word is on its way");
    let said = node.tell(Event::SlotLost(SlotId(1)));
    assert_eq!(said, ["WaitingForSlot { lost: SlotId(1) }", "need slot", "stop world 1"]);
    node.tell(Event::Dying(process(1, 1)));
    node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(node.tell(Event::SlotUp(SlotId(2)))[0], "agree epoch 2 world 2");
    node.tell(Event::Drained(WorldId(1)));
    node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
    node.tell(Event::Initialized(process(2, 0)));
    let said = node.tell(Event::Initialized(process(2, 1)));
    assert_eq!(said, ["done: rank 1 on node 0 was lost (its shepherd died)"]);

    // A launcher that says nothing is not waited for.
    let mut node = running();
    node.tell(Event::SlotDying(SlotId(1)));
    node.tell(Event::Dying(process(1, 1)));
    assert_eq!(node.wait(5_000 * MS), ["agree epoch 2 world 2", "stop world 1"]);
}

#[test]
fn who_was_killed_below_a_wrapper_is_not_waited_for_wherever_it_was() {
    for (phase, signal, cause) in [
        (Vec::new(), 11, "SIGSEGV"),
        (Vec::new(), 9, "SIGKILL"),
        (vec![Event::Initialized(process(1, 1)), Event::Finalized(process(1, 1))], 9, "SIGKILL"),
    ] {
        let mut node = running();
        phase.into_iter().for_each(|event| drop(node.tell(event)));
        node.tell(Event::Killed { process: process(1, 1), signal });
        assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
        // What ftd ends the wrapper with says nothing of the signals that are known.
        node.tell(killed(1, 1));
        for event in [Event::WorldEmptied(WorldId(1)), Event::Drained(WorldId(1))] {
            node.tell(event);
        }
        node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
        node.tell(Event::Initialized(process(2, 0)));
        let said = node.tell(Event::Initialized(process(2, 1)));
        assert_eq!(said, [format!("done: rank 1 on node 0 was killed by {cause}")]);
    }
}

#[test]
fn what_a_silent_shepherd_owes_is_not_overdue() {
    let mut node = running();
    node.tell(killed(1, 0));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    node.wait(10_000 * MS);
    node.tell(Event::SlotsSilent(vec![SlotId(1)]));
    assert!(node.wait(60_000 * MS).is_empty(), "the launcher deals with it");
    node.tell(Event::SlotsSilent(Vec::new()));
    assert!(node.wait(29_000 * MS).is_empty());
    let said = node.wait(1_000 * MS);
    assert!(said.iter().any(|said| said.contains("still there 30.0 s after SIGKILL")), "{said:?}");

    // It was so until it is heard, or its end is, and not until the agent was last woken.
    for heard in [Event::SlotsSilent(Vec::new()), Event::SlotLost(SlotId(1))] {
        let mut node = running();
        node.tell(killed(1, 0));
        node.wait(10_000 * MS);
        node.tell(Event::SlotsSilent(vec![SlotId(1)]));
        node.now += 29_999 * MS;
        node.tell(heard.clone());
        let said = [node.wait(MS), node.wait(28_000 * MS)].concat();
        assert!(!said.iter().any(|said| said.contains("after SIGKILL")), "{heard:?}: {said:?}");
    }

    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    node.tell(Event::SlotUp(SlotId(0)));
    node.tell(Event::SlotsSilent(vec![SlotId(1)]));
    assert!(node.wait(100_000 * MS).is_empty());
    assert_eq!(node.tell(Event::SlotLost(SlotId(1))), ["need slot"], "ended by the launcher");
}

#[test]
fn a_replacement_that_dies_before_it_dials_is_replaced_too() {
    let mut node = running();
    node.tell(Event::SlotLost(SlotId(1)));
    node.wait(MS);
    node.tell(Event::WorldEmptied(WorldId(1)));
    node.tell(Event::SlotAdded(SlotId(2)));
    assert_eq!(node.tell(Event::SlotLost(SlotId(2))), ["WaitingForSlot { lost: SlotId(1) }", "need slot"]);
    assert!(node.tell(Event::SlotUp(SlotId(3))).iter().any(|said| said == "agree epoch 2 world 2"));
    assert!(node.tell(Event::SlotAdded(SlotId(3))).is_empty(), "its word may come later than its shepherd");
}

#[test]
fn slots_that_an_earlier_agent_asked_for_are_waited_for() {
    let mut node = running();
    node.now += 1_000_000 * MS;
    node.restart(Policy::default());
    // Both slots of the record are lost, and the replacement of one of them has not dialled in.
    node.tell(Event::Start { slots: vec![SlotId(7)] });
    let said = node.wait(MS);
    assert!(said.contains(&"need slot".to_string()) && !said.iter().any(|said| said.starts_with("agree")), "{said:?}");
    node.tell(Event::SlotAdded(SlotId(8)));
    node.tell(Event::SlotUp(SlotId(7)));
    let said = node.tell(Event::SlotUp(SlotId(8)));
    assert_eq!(said[0], "agree epoch 2 world 2", "{said:?}");
}

#[test]
fn a_job_starts_with_all_its_slots_whoever_dies_before_the_first_record() {
    // A shepherd and the first agent have died: the next one hears of one slot.
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    assert_eq!(node.tell(Event::Start { slots: vec![SlotId(0)] }), ["need slot"]);
    assert!(node.tell(Event::SlotUp(SlotId(0))).is_empty());
    assert!(node.tell(Event::SlotAdded(SlotId(2))).is_empty());
    assert_eq!(node.tell(Event::SlotLost(SlotId(2))), ["need slot"], "so has the replacement");
    node.tell(Event::SlotAdded(SlotId(3)));
    assert_eq!(node.tell(Event::SlotLost(SlotId(0))), ["need slot"]);
    assert!(node.tell(Event::SlotUp(SlotId(3))).is_empty());
    node.tell(Event::SlotAdded(SlotId(4)));
    let said = node.tell(Event::SlotUp(SlotId(4)));
    assert_eq!(said[..2], ["agree epoch 1 world 1", "launch world 1 0@3 1@4"]);
}

/// A slot is lost and its world stopped and gone; nothing is agreed before there is another slot.
fn waiting_for_a_slot() -> Node {
    let mut node = running();
    node.tell(Event::SlotLost(SlotId(1)));
    node.wait(MS);
    node.tell(Event::WorldEmptied(WorldId(1)));
    node
}

#[test]
fn what_is_told_of_a_world_that_is_gone_blames_nobody() {
    let mut node = waiting_for_a_slot();
    // The kernel lets go of its processes only now.
    for event in [Event::Dying(process(1, 0)), killed(1, 0), killed(1, 1), Event::WorldServerLost(WorldId(1))] {
        assert!(node.tell(event.clone()).is_empty(), "{event:?}");
    }
    node.tell(Event::SlotUp(SlotId(2)));
    let failures = &node.stored.as_ref().unwrap().failures;
    assert_eq!(failures.to_string(), "slot 1 on node 0 was lost (its shepherd died)");
}

#[test]
fn a_slot_that_is_not_replaced_ends_the_job_with_a_sentence() {
    let mut node = waiting_for_a_slot();
    let said = node.wait(10_000 * MS);
    assert!(
        said.last().unwrap().starts_with("end 1: the job cannot continue, because 1 of its 2 ranks cannot"),
        "{said:?}"
    );
}

#[test]
fn an_agent_that_starts_again_recovers_the_job_and_blames_no_rank() {
    let mut node = running();
    for (world, epoch) in (1..).zip(2..8) {
        node.restart(Policy::default());
        let said = node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
        assert_eq!(said, [format!("stop world {world}")]);
        assert_eq!(node.wait(MS), [format!("agree epoch {epoch} world {}", world + 1)]);
        let said = node.tell(Event::WorldEmptied(WorldId(world)));
        assert!(said.is_empty(), "the shepherds have not dialled in, nor brought the arenas");
        node.tell(Event::SlotUp(SlotId(0)));
        let said = node.tell(Event::SlotUp(SlotId(1)));
        assert_eq!(said, [format!("drain world {world}"), format!("inventory epoch {epoch} world {world}")]);
        let said = node.tell(Event::Drained(WorldId(world)));
        assert_eq!(said, [format!("launch world {} 0@0 1@1", world + 1), format!("release world {}", world + 1)]);
        node.initialize(world + 1);
    }
    assert!(node.stored.unwrap().streaks.is_empty());
}

#[test]
fn an_agent_that_starts_again_after_the_end_does_not_run_the_job_again() {
    let mut node = running();
    node.tell(exits(1, 0, 3));
    node.restart(Policy::default());
    assert_eq!(node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] }), ["stop world 1"]);
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(1))), ["end 3: rank 0 on node 0 exited with code 3"]);
}

#[test]
fn mode_none_recovers_nothing() {
    let mut node = Node::new(Policy::default(), Mode::None);
    node.start();
    node.tell(Event::Dying(process(1, 0)));
    node.wait(MS);
    assert_eq!(node.tell(killed(1, 0)), ["agree end 137", "stop world 1"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(
        said,
        [
            "end 137: rank 0 on node 0 was killed by SIGKILL; --ft=none recovers nothing (--ft=reinit would have started the ranks again)"
        ]
    );
}

#[test]
fn a_program_that_cannot_be_started_ends_the_job_with_its_reason() {
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    node.tell(Event::SlotUp(SlotId(0)));
    node.tell(Event::SlotUp(SlotId(1)));
    let reason = "cannot execute /x/y: no such file".to_string();
    node.tell(Event::StartFailed { process: process(1, 0), reason, status: 127 });
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(said, ["end 127: rank 0 cannot be started: cannot execute /x/y: no such file"]);
}

#[test]
fn what_ranks_cannot_tell_each_other_ends_the_job_with_its_own_sentence_and_only_in_its_world() {
    let cannot = |world| Event::CannotGoOn { world: WorldId(world), reason: "rank 1: too long".into() };
    let mut node = running();
    assert!(node.tell(cannot(2)).is_empty(), "it is another world's");
    assert!(node.tell(cannot(1)).iter().any(|said| said == "agree end 1"));
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(said, ["end 1: rank 1: too long"]);
}

#[test]
fn what_keeps_a_job_from_beginning_ends_it_and_only_before_it_has_begun() {
    let cannot = || Event::CannotBegin { reason: "no heartbeats".into(), status: 1 };
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    let said = node.tell(cannot());
    assert_eq!(said.last().map(String::as_str), Some("end 1: the job does not begin: no heartbeats"), "{said:?}");
    assert!(running().tell(cannot()).is_empty(), "it has begun");
}

#[test]
fn a_cancelled_jobs_ranks_hear_it_first_and_their_own_statuses_count() {
    let mut node = running();
    assert_eq!(node.tell(Event::Cancel { signal: 15 }), ["signal 15"]);
    assert!(node.tell(Event::Cancel { signal: 15 }).is_empty(), "what comes again is the launcher's matter");
    assert!(node.tell(exits(1, 1, 0)).is_empty(), "no failure, though it had not finalized: it was told to end");
    assert!(node.wait(9_000 * MS).is_empty());
    assert_eq!(node.tell(exits(1, 0, 3)), ["stop world 1", "agree end 3"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(said, ["end 3: the job was cancelled by SIGTERM, and its ranks ended by themselves"]);
}

#[test]
fn ranks_that_die_of_the_signal_are_no_failure() {
    let mut node = running();
    node.tell(Event::Cancel { signal: 15 });
    assert!(node.tell(Event::Dying(process(1, 0))).is_empty());
    let died = |rank| Event::Exited { process: process(1, rank), exit: Exit::Signal(15), limit: None };
    assert!(node.tell(died(0)).is_empty());
    assert!(node.wait(100 * MS).is_empty(), "no recovery begins");
    assert_eq!(node.tell(died(1)), ["stop world 1", "agree end 143"]);
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(1))), ["end 143: the job was cancelled by SIGTERM"]);
}

#[test]
fn nothing_that_dies_after_the_signal_is_a_failure() {
    let mut node = running();
    node.tell(Event::Cancel { signal: 2 });
    assert!(node.tell(Event::WorldServerLost(WorldId(1))).is_empty());
    assert!(node.tell(Event::SlotLost(SlotId(1))).is_empty());
    assert!(node.wait(MS).is_empty());
    // Libraries abort when a peer ends.
    assert_eq!(node.tell(Event::AbortRequested { process: process(1, 0), code: 1 }), ["proceed rank 0"]);
    let died = Event::Exited { process: process(1, 0), exit: Exit::Signal(6), limit: None };
    assert_eq!(node.tell(died), ["stop world 1", "agree end 130"], "one was killed with its slot");
}

#[test]
fn ranks_that_stay_are_killed_when_their_time_is_over() {
    let mut node = running();
    node.tell(Event::Cancel { signal: 1 });
    node.tell(exits(1, 0, 0));
    assert!(node.wait(9_999 * MS).is_empty());
    assert_eq!(node.wait(MS), ["stop world 1", "agree end 129"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    let reason = "the job was cancelled by SIGHUP; rank 1 had not ended 10.0 s later (--ft-grace): killed";
    assert_eq!(said, [format!("end 129: {reason}")]);
}

#[test]
fn an_end_that_is_held_is_the_answer_to_the_signal() {
    let mut node = running();
    let said = node.tell_with(Event::AbortRequested { process: process(1, 0), code: 7 }, &[], &[process(1, 1)]);
    assert!(said.is_empty(), "held: {said:?}");
    assert_eq!(node.tell(Event::Cancel { signal: 15 }), ["signal 15", "proceed rank 0"]);
    node.tell(exits(1, 0, 7));
    assert_eq!(node.tell(exits(1, 1, 0)), ["stop world 1", "agree end 7"]);
}

#[test]
fn a_job_that_is_cancelled_while_it_recovers_ends_at_once() {
    let mut node = running();
    node.tell(killed(1, 0));
    assert_eq!(node.tell(Event::Cancel { signal: 15 }), ["stop world 1", "agree end 143"], "noticed, not agreed");

    let mut node = running();
    node.tell(killed(1, 0));
    node.wait(MS);
    let said = node.tell(Event::Cancel { signal: 15 });
    assert_eq!(said, ["done: rank 0 on node 0 was killed by SIGKILL", "agree end 143"]);
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(1))), ["end 143: the job was cancelled by SIGTERM"]);

    let mut node = running();
    node.tell(killed(1, 0));
    node.wait(MS);
    recover(&mut node, 1);
    assert_eq!(node.tell(Event::Cancel { signal: 15 }), ["signal 15"], "it is over");

    let mut node = running();
    node.tell(killed(1, 0));
    node.wait(MS);
    begin_again(&mut node, 1, Inventory::default());
    assert!(node.wait(60_000 * MS).iter().any(|said| said.starts_with("done: ")), "reported without a sign");
    let said = node.tell(Event::Cancel { signal: 15 });
    assert_eq!(said, ["stop world 2", "agree end 143"], "the new world is still before the end of MPI_Init");

    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    let said = node.tell(Event::Cancel { signal: 2 });
    assert_eq!(said, ["agree end 130", "end 130: the job was cancelled by SIGINT"], "every end is a record");

    let mut node = Node::new(Policy { grace: Micros(0), ..Policy::default() }, Mode::Reinit);
    node.start();
    assert_eq!(node.tell(Event::Cancel { signal: 2 }), ["stop world 1", "agree end 130"], "--ft-grace=0");
}

#[test]
fn a_new_agents_ranks_that_have_not_started_are_told_nothing() {
    let ends = vec!["done: node 0 lost its agent", "stop world 2", "agree end 143"];
    for (speaks_mpi, end) in [(true, ends), (false, vec!["signal 15"])] {
        let mut node = running();
        let predecessor = Predecessor { failed: Micros(node.now), reported: EpochId(1), speaks_mpi, ..nobody() };
        let config = JobConfig::single_node(2, Mode::Reinit, Policy::default());
        node.agent = Agent::new(NodeId(0), config).succeeding(Some(predecessor));
        let mut said = node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
        let events = [
            Event::SlotUp(SlotId(0)),
            Event::SlotUp(SlotId(1)),
            Event::WorldEmptied(WorldId(1)),
            Event::Timer,
            Event::Drained(WorldId(1)),
            Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() },
        ];
        for event in events {
            node.now += MS;
            said.extend(node.tell(event));
        }
        // Nobody knows of a program without MPI where it is.
        assert_eq!(node.tell(Event::Cancel { signal: 15 }), end, "after {said:?}");
    }
}

#[test]
fn what_was_told_to_end_needs_not_start() {
    let mut node = running();
    node.tell(Event::Cancel { signal: 15 });
    let late = Event::StartFailed { process: process(1, 0), reason: "its wrapper has ended".into(), status: 1 };
    assert!(node.tell(late).is_empty(), "the others have their time");
    node.tell(exits(1, 0, 0));
    assert_eq!(node.tell(exits(1, 1, 0)), ["stop world 1", "agree end 143"]);
}

const SECOND: u64 = 1000 * MS;
const TERM: i32 = 15;
const USR1: i32 = 10;

fn died(world: u64, rank: u32, signal: i32) -> Event {
    Event::Exited { process: process(world, rank), exit: Exit::Signal(signal), limit: None }
}

/// Both tasks are sent that signal, and their ranks have it.
fn sent(signal: i32) -> Node {
    let mut node = running();
    for slot in 0..2 {
        let said = node.tell(Event::Signalled { slot: SlotId(slot), signal });
        assert_eq!(said, [format!("pass {signal} to slot {slot}")]);
    }
    node
}

#[test]
fn who_goes_on_after_a_signal_is_protected_as_before() {
    let mut node = sent(USR1);
    assert_eq!(
        node.tell(Event::Signalled { slot: SlotId(0), signal: USR1 }),
        ["pass 10 to slot 0"],
        "as often as it comes"
    );
    assert!(node.tell(killed(1, 0)).is_empty());
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);

    // A kill that follows SIGTERM may be the whole job's; one that comes alone is a failure.
    let mut node = sent(TERM);
    assert!(node.tell(killed(1, 0)).is_empty());
    assert!(node.wait(1_400 * MS).is_empty(), "the others may be killed, too");
    assert_eq!(node.wait(101 * MS), ["agree epoch 2 world 2", "stop world 1"]);

    let mut node = sent(TERM);
    node.tell(died(1, 0, 11));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"], "no job is ended by SIGSEGV");
}

#[test]
fn who_dies_of_a_signal_that_was_passed_on_has_not_failed() {
    for signal in [TERM, USR1] {
        let mut node = sent(signal);
        assert_eq!(node.tell(died(1, 0, signal)), ["leave"]);
        assert!(node.wait(MS).is_empty());
        let end = 128 + signal;
        assert_eq!(node.tell(died(1, 1, 9)), ["stop world 1".to_string(), format!("agree end {end}")]);
    }
    let mut node = sent(TERM);
    assert!(node.wait(301 * SECOND).iter().all(|said| !said.contains("leave")));
    node.tell(died(1, 0, TERM));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"], "that was somebody else's");
}

#[test]
fn who_takes_long_to_be_gone_is_waited_for() {
    let mut node = sent(TERM);
    assert!(node.tell(Event::Dying(process(1, 0))).is_empty());
    assert!(node.wait(20 * SECOND).is_empty(), "the kernel gives back a lot of memory");
    assert_eq!(node.tell(died(1, 0, TERM)), ["leave"]);

    let mut node = sent(TERM);
    node.tell(Event::Dying(process(1, 0)));
    assert!(node.wait(20 * SECOND).is_empty());
    assert!(node.tell(killed(1, 0)).is_empty());
    assert_eq!(node.wait(1_501 * MS), ["agree epoch 2 world 2", "stop world 1"]);

    // But not for ever.
    let mut node = sent(TERM);
    node.tell(Event::Dying(process(1, 0)));
    assert!(node.wait(30 * SECOND).is_empty());
    assert_eq!(node.wait(1_501 * MS), ["agree epoch 2 world 2", "stop world 1"]);
}

#[test]
fn handlers_that_end_have_their_time_and_their_status() {
    let mut node = sent(TERM);
    assert_eq!(node.tell(exits(1, 0, 5)), ["leave"]);
    assert!(node.wait(9 * SECOND).is_empty());
    assert_eq!(node.tell(exits(1, 1, 0)), ["stop world 1", "agree end 5"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert_eq!(said, ["end 5: the job was cancelled by SIGTERM, and its ranks ended by themselves"]);

    // However late the first one does, the others have no more time after the signal.
    for (answers, left) in [(200, 100), (299, 10)] {
        let mut node = Node::new(Policy { grace: Micros::from_secs(300), ..Policy::default() }, Mode::Reinit);
        node.start();
        node.tell(Event::Signalled { slot: SlotId(0), signal: TERM });
        node.wait(answers * SECOND);
        assert_eq!(node.tell(exits(1, 0, 5)), ["leave"]);
        assert!(node.wait(left * SECOND - 1).is_empty());
        assert_eq!(node.wait(1), ["stop world 1", "agree end 143"]);
    }

    let mut node = sent(USR1);
    node.tell(exits(1, 0, 0));
    assert!(node.wait(9 * SECOND).is_empty(), "no failure, though it had not finalized");
    assert_eq!(node.wait(SECOND), ["stop world 1", "agree end 138"], "--ft-grace");

    // All that end well have done what they were to do.
    let mut node = sent(USR1);
    for rank in 0..2 {
        node.tell(Event::Finalized(process(1, rank)));
    }
    node.tell(exits(1, 0, 0));
    assert_eq!(node.tell(exits(1, 1, 0)), ["agree end 0", "stop world 1"]);
}

#[test]
fn an_exit_that_follows_a_death_is_no_answer() {
    let mut node = sent(TERM);
    assert!(node.tell(killed(1, 0)).is_empty());
    assert!(node.tell(exits(1, 1, 1)).is_empty(), "its library gave up");
    assert_eq!(node.wait(1_501 * MS), ["agree epoch 2 world 2", "stop world 1"]);

    // Also when of the one that died nobody knows yet.
    let mut node = sent(USR1);
    assert!(node.tell_with(exits(1, 1, 1), &[process(1, 0)], &[]).is_empty());
    assert!(node.tell(killed(1, 0)).is_empty());
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
}

#[test]
fn an_abort_after_a_signal_leaves_nobody_waiting() {
    let mut node = sent(TERM);
    let said = node.tell(Event::AbortRequested { process: process(1, 0), code: 7 });
    assert_eq!(said, ["proceed rank 0", "agree end 7"], "as without a signal");

    // A library aborts because its peer has died of the signal, of which nobody knows yet.
    let mut node = Node::new(Policy { grace: Micros::from_secs(300), ..Policy::default() }, Mode::Reinit);
    node.start();
    node.tell(Event::Signalled { slot: SlotId(0), signal: TERM });
    let abort = Event::AbortRequested { process: process(1, 1), code: 1 };
    assert!(node.tell_with(abort, &[process(1, 0)], &[]).is_empty());
    assert_eq!(node.tell(died(1, 0, TERM)), ["leave", "proceed rank 1"]);
    assert!(node.wait(9 * SECOND).is_empty());
    assert_eq!(node.wait(SECOND), ["stop world 1", "agree end 143"], "the one that aborted hangs");
}

#[test]
fn what_comes_while_the_job_recovers_waits_for_the_ranks() {
    let mut node = running();
    node.tell(killed(1, 0));
    assert!(node.tell(Event::Signalled { slot: SlotId(1), signal: TERM }).is_empty());
    node.wait(2 * SECOND);
    begin_again(&mut node, 1, Inventory::default());
    assert!(node.tell(Event::Started(process(2, 0))).is_empty());
    node.tell(Event::Initialized(process(2, 0)));
    let said = node.tell(Event::Initialized(process(2, 1)));
    assert!(said.contains(&"pass 15 to slot 1: Start".to_string()), "{said:?}");
    let now = node.tell(Event::Signalled { slot: SlotId(0), signal: USR1 });
    assert_eq!(now, ["pass 10 to slot 0: Start"], "its handlers may not be there yet");
    node.wait(10 * SECOND);
    assert_eq!(node.tell(Event::Signalled { slot: SlotId(0), signal: USR1 }), ["pass 10 to slot 0"]);
}

/// The signals that ranks 0 and 1 are given when they compute in world 2.
fn given_in_the_next_world(node: &mut Node, world: u64) -> Vec<String> {
    begin_again(node, world - 1, Inventory::default());
    let mut said = Vec::new();
    for rank in 0..2 {
        said.extend(node.tell(Event::Started(process(world, rank))));
        said.extend(node.tell(Event::Initialized(process(world, rank))));
    }
    said.retain(|said| said.starts_with("pass"));
    said
}

#[test]
fn what_ranks_had_shortly_before_they_died_is_given_to_the_next_ones_once() {
    let again = ["pass 10 to slot 0: Caught", "pass 10 to slot 1: Caught"];
    let mut node = sent(USR1);
    node.wait(299 * SECOND);
    node.tell(died(1, 0, 11));
    node.wait(2 * SECOND);
    assert_eq!(given_in_the_next_world(&mut node, 2), again);
    // It dies before anybody has caught it.
    node.tell(died(2, 0, 11));
    node.wait(2 * SECOND);
    assert_eq!(given_in_the_next_world(&mut node, 3), again);
    node.tell(Event::Repeated { signal: USR1 });
    node.tell(died(3, 0, 11));
    node.wait(2 * SECOND);
    assert_eq!(given_in_the_next_world(&mut node, 4), [""; 0]);

    let mut node = sent(USR1);
    node.wait(301 * SECOND);
    node.tell(died(1, 0, 11));
    node.wait(2 * SECOND);
    assert_eq!(given_in_the_next_world(&mut node, 2), [""; 0], "it had its effect");

    // Whoever answers it has not failed.
    let mut node = sent(USR1);
    node.tell(died(1, 0, 11));
    node.wait(2 * SECOND);
    given_in_the_next_world(&mut node, 2);
    assert_eq!(node.tell(exits(2, 0, 5)), ["leave"]);
}

#[test]
fn what_came_during_a_recovery_as_well_is_given_once() {
    let mut node = sent(USR1);
    node.tell(died(1, 0, 11));
    node.wait(2 * SECOND);
    node.tell(Event::Signalled { slot: SlotId(1), signal: USR1 });
    let said = given_in_the_next_world(&mut node, 2);
    assert_eq!(said, ["pass 10 to slot 1: Start", "pass 10 to slot 0: Caught"]);
}

#[test]
fn what_comes_between_a_death_and_the_next_epoch_is_given_to_the_next_ranks() {
    for signal in [15, USR1] {
        let mut node = running();
        node.tell(died(1, 0, 11));
        node.tell(Event::Signalled { slot: SlotId(1), signal });
        node.wait(2 * SECOND);
        assert_eq!(given_in_the_next_world(&mut node, 2), [format!("pass {signal} to slot 1: Start")]);
    }
}

/// An agreed recovery from a death of which it is not known yet how it came about.
fn recovering_from_an_unknown_death() -> Node {
    let mut node = running();
    node.tell(Event::Dying(process(1, 0)));
    assert_eq!(node.wait(MS), ["agree epoch 2 world 2", "stop world 1"]);
    node
}

#[test]
fn the_last_block_waits_for_the_cause() {
    const KILLED: &str = "done: rank 0 on node 0 was killed by SIGKILL";

    let mut node = recovering_from_an_unknown_death();
    assert_eq!(node.tell(Event::Cancel { signal: 15 }), ["agree end 143"]);
    assert!(node.tell(Event::WorldEmptied(WorldId(1))).is_empty(), "its exit is on its way");
    assert_eq!(node.tell(killed(1, 0)), [KILLED, "end 143: the job was cancelled by SIGTERM"]);

    // The exit comes first, as a rule.
    let mut node = recovering_from_an_unknown_death();
    node.tell(Event::Cancel { signal: 15 });
    assert_eq!(node.tell(killed(1, 0)), [KILLED]);
    assert_eq!(node.tell(Event::WorldEmptied(WorldId(1))), ["end 143: the job was cancelled by SIGTERM"]);

    let mut node = recovering_from_an_unknown_death();
    for event in [Event::WorldEmptied(WorldId(1)), Event::Drained(WorldId(1))] {
        node.tell(event);
    }
    node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
    let said = node.tell(Event::StartFailed { process: process(2, 1), reason: "gone".into(), status: 127 });
    assert_eq!(said, ["agree end 127", "stop world 2"]);
    assert!(node.tell(Event::WorldEmptied(WorldId(2))).is_empty());
    assert_eq!(node.tell(killed(1, 0)), [KILLED, "end 127: rank 1 cannot be started: gone"]);
}

#[test]
fn the_last_block_does_not_wait_for_ever() {
    const UNKNOWN: &str = "done: rank 0 on node 0 died; of what is not known";

    let mut node = recovering_from_an_unknown_death();
    node.tell(Event::Cancel { signal: 15 });
    node.tell(Event::WorldEmptied(WorldId(1)));
    let timeout = Policy::default().exit_timeout.0;
    assert!(node.wait(timeout - 1).is_empty());
    assert_eq!(node.wait(1), [UNKNOWN, "end 143: the job was cancelled by SIGTERM"]);

    // Nor for what has come already and told nothing.
    let mut node = recovering_from_an_unknown_death();
    node.tell(Event::Exited { process: process(1, 0), exit: Exit::Unseen, limit: None });
    assert_eq!(node.tell(Event::Cancel { signal: 15 }), [UNKNOWN, "agree end 143"]);

    // Or comes then.
    let mut node = recovering_from_an_unknown_death();
    node.tell(Event::Cancel { signal: 15 });
    let unseen = Event::Exited { process: process(1, 0), exit: Exit::Unseen, limit: None };
    assert_eq!(node.tell(unseen), [UNKNOWN]);
}

#[test]
fn a_clean_end_waits_for_the_cause_of_a_death_before() {
    const KILLED: &str = "rank 0 on node 0 was killed by SIGKILL";
    let ends = |node: &mut Node| {
        node.wait(10 * MS);
        recover(node, 1);
        node.wait(40 * MS);
        for rank in 0..2 {
            node.tell(Event::Finalized(process(2, rank)));
        }
        node.tell(exits(2, 0, 0));
        node.tell(exits(2, 1, 0))
    };
    let end = ["agree end 0", "stop world 2"];

    // Its memory is still torn down.
    let mut node = recovering_from_an_unknown_death();
    assert!(ends(&mut node).is_empty(), "its exit is on its way");
    let said = node.tell(killed(1, 0));
    assert!(said[0].contains(KILLED), "{said:?}");
    assert_eq!(said[1..], end);

    let mut node = recovering_from_an_unknown_death();
    node.tell(killed(1, 0));
    assert_eq!(ends(&mut node), end);

    // What nobody knows is not waited for, nor what does not come.
    let mut node = recovering_from_an_unknown_death();
    node.tell(Event::Exited { process: process(1, 0), exit: Exit::Unseen, limit: None });
    assert_eq!(ends(&mut node), end);
    let mut node = recovering_from_an_unknown_death();
    assert!(ends(&mut node).is_empty());
    assert_eq!(node.wait(Policy::default().exit_timeout.0), end);
}

#[test]
fn a_pmix_server_that_dies_again_and_again_is_named() {
    let mut node = running();
    for world in 1..5 {
        node.tell(Event::WorldServerLost(WorldId(world)));
        node.wait(MS);
        recover(&mut node, world);
    }
    node.tell(Event::WorldServerLost(WorldId(5)));
    node.wait(MS);
    let said = node.tell(Event::WorldEmptied(WorldId(5)));
    assert!(said[0].contains("because the PMIx server (ft-pmix) of node 0 died 5 times in a row"), "{said:?}");
}

#[test]
fn a_program_without_mpi_just_runs_and_its_report_waits_for_nothing() {
    let mut node = Node::new(Policy::default(), Mode::Reinit);
    node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    node.tell(Event::SlotUp(SlotId(0)));
    node.tell(Event::SlotUp(SlotId(1)));
    node.tell(killed(1, 0));
    node.wait(MS);
    node.tell(Event::WorldEmptied(WorldId(1)));
    node.tell(Event::Drained(WorldId(1)));
    node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
    assert_eq!(node.wait(5_000 * MS), ["done: rank 0 on node 0 was killed by SIGKILL"]);
    node.tell(exits(2, 0, 0));
    assert_eq!(node.tell(exits(2, 1, 0)), ["agree end 0", "stop world 2"]);
}

fn joined(world: u64, rank: u32, family: Family) -> Event {
    Event::Joined { process: process(world, rank), family }
}

/// A world whose ranks have been started, and have not called `MPI_Init`.
fn started(mode: Mode) -> Node {
    let mut node = Node::new(Policy { max_failures: 2, ..Policy::default() }, mode);
    node.tell(Event::Start { slots: vec![SlotId(0), SlotId(1)] });
    node.tell(Event::SlotUp(SlotId(0)));
    node.tell(Event::SlotUp(SlotId(1)));
    node
}

const NEVER: &str = "rank 1 on node 0 ended with status 0 before it called MPI_Init, for which the others wait";

#[test]
fn who_ends_well_without_having_joined_is_waited_for_in_vain() {
    for end_is_first in [true, false] {
        let mut node = started(Mode::Reinit);
        for world in 1..=2 {
            let mut events = [exits(world, 1, 0), joined(world, 0, Family::Mpich)];
            if !end_is_first {
                events.reverse();
            }
            for event in events {
                let said = node.tell(event);
                assert!(!said.iter().any(|line| line.starts_with("agree")), "the window for others is open: {said:?}");
            }
            let said = node.wait(MS);
            if world == 1 {
                assert_eq!(said, ["agree epoch 2 world 2", "stop world 1"]);
                node.tell(Event::WorldEmptied(WorldId(1)));
                node.tell(Event::Drained(WorldId(1)));
                node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::default() });
            } else {
                assert!(said.iter().any(|line| line == "agree end 1"), "{said:?}");
                let said = node.tell(Event::WorldEmptied(WorldId(2)));
                assert!(said[0].contains("because the program died by itself 2 times in a row"), "{said:?}");
                assert_eq!(said[0].matches(NEVER).count(), 2, "{said:?}");
            }
        }
    }
}

#[test]
fn without_recovery_that_ends_the_job() {
    let mut node = started(Mode::None);
    node.tell(joined(1, 0, Family::OpenMpi));
    node.tell(exits(1, 1, 0));
    assert_eq!(node.wait(MS), ["agree end 1", "stop world 1"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    assert!(said[0].contains(NEVER), "{said:?}");
}

#[test]
fn who_joined_or_waits_for_nobody_may_end_well() {
    let mut node = started(Mode::Reinit);
    for rank in 0..2 {
        node.tell(joined(1, rank, Family::Mpich));
        node.tell(Event::Initialized(process(1, rank)));
    }
    node.tell(Event::Finalized(process(1, 1)));
    node.tell(exits(1, 1, 0));
    assert!(node.wait(MS).is_empty());
    // Nobody waits where nobody has joined, nor for who has begun with a session.
    let mut node = started(Mode::Reinit);
    node.tell(Event::Initializing(process(1, 0)));
    node.tell(exits(1, 1, 0));
    assert!(node.wait(MS).is_empty());
}

#[test]
fn mpis_that_do_not_understand_each_other_end_the_job() {
    let mut node = started(Mode::Reinit);
    assert!(node.tell(joined(1, 1, Family::Mpich)).is_empty());
    assert_eq!(node.tell(joined(1, 0, Family::OpenMpi)), ["agree end 1", "stop world 1"]);
    let said = node.tell(Event::WorldEmptied(WorldId(1)));
    let each = "rank 0 on node 0 uses Open MPI, rank 1 on node 0 uses MPICH or a relative of it";
    assert!(said[0].ends_with(each), "{said:?}");
}

/// Two ranks, each with versions 10 and 20, all but these verified in time.
fn slow(unread: &[(u32, u64)]) -> (Node, Vec<String>) {
    let mut node = running();
    fails(&mut node);
    let waited = Policy::default().inventory_timeout.0;
    assert!(!node.wait(waited - MS).iter().any(|line| line.starts_with("list")), "it has its time");
    assert_eq!(node.wait(MS), ["list verified epoch 2"]);
    let of = |(rank, version): &(u32, u64)| (Rank(*rank), Stamp { version: Version(*version), epoch: EpochId(1) });
    let all = [(0, 10), (0, 20), (1, 10), (1, 20)];
    let inventory = Inventory::own(all.iter().filter(|copy| !unread.contains(copy)).map(of));
    let unread = Inventory::own(unread.iter().map(of));
    let said = node.tell(Event::InventorySoFar { epoch: EpochId(2), inventory, unread });
    (node, said)
}

/// The world's first rank dies, and the world is emptied.
fn fails(node: &mut Node) {
    node.tell(Event::Dying(process(1, 1)));
    node.wait(MS);
    node.tell(killed(1, 0));
    node.tell(killed(1, 1));
    node.tell(Event::WorldEmptied(WorldId(1)));
    node.tell(Event::Drained(WorldId(1)));
}

#[test]
fn what_is_not_verified_in_time_is_left_out_when_something_else_is_complete() {
    let (mut node, said) = slow(&[(1, 20)]);
    assert!(said.iter().any(|line| line == "restore version 10"), "{said:?}");
    let notices: Vec<_> = said.iter().filter(|line| line.starts_with("NotVerified")).collect();
    assert!(notices.len() == 2 && notices[1].contains("restored: Some"), "{said:?}");
    // It comes too late: what is restored was chosen.
    let late = node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: both_hold(20, 1) });
    assert_eq!(late, [""; 0]);
}

#[test]
fn what_is_not_verified_in_time_is_waited_for_when_all_state_would_be_lost() {
    let (mut node, said) = slow(&[(1, 10), (1, 20)]);
    assert!(said.len() == 1 && said[0].starts_with("NotVerified"), "{said:?}");
    // It reads, and nobody ends the job; each time that is said once.
    for looks in 2..10 {
        let timeout = Policy::default().inventory_timeout;
        assert_eq!(node.wait(timeout.0), ["list verified epoch 2"]);
        let unread = Inventory::own([(Rank(1), Stamp { version: Version(20), epoch: EpochId(1) })]);
        let said = node.tell(Event::InventorySoFar { epoch: EpochId(2), inventory: both_hold(10, 1), unread });
        let waited = format!("timeout: {:?}, again: true, restored: None", Micros(looks * timeout.0));
        assert!(said.len() == 1 && said[0].starts_with("NotVerified") && said[0].contains(&waited), "{said:?}");
    }
    let said = node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: both_hold(20, 1) });
    assert!(said.iter().any(|line| line == "restore version 20"), "{said:?}");
    assert!(!said.iter().any(|line| line.starts_with("NotVerified")), "{said:?}");
}

#[test]
fn when_nothing_is_left_to_be_verified_it_is_the_beginning() {
    let (mut node, _) = slow(&[(1, 10), (1, 20)]);
    let of = |version| (Rank(0), Stamp { version: Version(version), epoch: EpochId(1) });
    let said = node.tell(Event::InventoryTaken { epoch: EpochId(2), inventory: Inventory::own([of(10), of(20)]) });
    assert!(said.iter().any(|line| line == "restore nothing"), "{said:?}");
}
