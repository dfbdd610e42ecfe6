//! What failures cost the job: for the recovery's block, and for the job's end.

use ft_wire::toll::{self, Noticed, Sums, Toll};
use ft_wire::{Epoch, Rank, Version, World};
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};

/// What the ranks of a new world go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// A version of the library's.
    Version(Version),
    /// What the program's own files hold.
    Files,
    /// Nothing.
    Beginning,
    /// That was not known when it was asked.
    Unknown,
}

/// What was known when a failure was noticed.
#[derive(Debug, Clone)]
pub struct Failing {
    /// When that was, for people.
    pub day: SystemTime,
    /// When it was.
    pub since: Instant,
    /// Which processes of this node have died.
    pub dead: Vec<(Rank, i32)>,
    /// The newest version that was complete, and since when.
    pub complete: Option<(Version, Option<Instant>)>,
    /// The newest version that a rank here had taken.
    pub taken: Option<Version>,
}

/// A recovery that is over.
#[derive(Debug, Clone, Copy)]
pub struct Over {
    /// The epoch that runs now.
    pub epoch: Epoch,
    /// Its world was released, and could be started.
    pub survived: bool,
    /// What its ranks go on from.
    pub from: From,
    /// Its last step: the ranks compute from then on.
    pub end: Instant,
}

/// Words for the recovery's block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// When and where it was, and which processes.
    pub when: String,
    /// What has to be computed again.
    pub lost: String,
    /// Which failure it was, of how many.
    pub count: String,
    /// A version was complete at a failure of this job.
    pub checkpointed: bool,
}

/// What is computed again.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lost {
    /// How long it took.
    time: Option<Duration>,
    words: String,
}

/// Recoveries in a row that were reported before a rank had its state back: the failure that the first one was of.
#[derive(Debug, Clone)]
struct Late {
    failing: Failing,
    end: Instant,
    released: Option<Instant>,
    kept: Option<Duration>,
    /// So many they are.
    number: u64,
    /// What was computed between them.
    between: Duration,
}

impl Late {
    /// What was computed until the last one of them, and is not known to be lost.
    fn kept(&self) -> Option<Duration> {
        let computed = self.released.map(|released| self.failing.since.saturating_duration_since(released));
        Some(self.kept? + computed? + self.between)
    }
}

/// By the clock of this agent, of a toll that the one before it had told before it died.
fn failing_of(noticed: Noticed, died: Instant) -> Failing {
    let at = |age: Duration| earlier(died, age);
    Failing {
        day: day(at(noticed.age)),
        since: at(noticed.age),
        dead: noticed.dead,
        complete: noticed.complete.map(|(version, age)| (version, age.map(at))),
        taken: noticed.taken,
    }
}

/// For the agent that comes after this one.
fn noticed_of(failing: &Failing, now: Instant) -> Noticed {
    let age = |since: Instant| now.saturating_duration_since(since);
    Noticed {
        age: age(failing.since),
        dead: failing.dead.clone(),
        complete: failing.complete.map(|(version, since)| (version, since.map(age))),
        taken: failing.taken,
    }
}

/// That time, so much before.
fn earlier(died: Instant, age: Duration) -> Instant {
    died.checked_sub(age).unwrap_or(died)
}

/// All failures so far.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    sums: Sums,
    /// Since when the ranks of the newest world compute, or have computed.
    released: Option<Instant>,
    /// They do, below this agent.
    runs: bool,
    failing: Option<Failing>,
    late: Option<Late>,
    /// Who died of this node in the failure before.
    dead: Vec<(Rank, i32)>,
    /// Who has died on other nodes, by their names.
    elsewhere: Vec<(String, Rank, i32)>,
    /// Processes of whose deaths people were told, and not of what they died.
    untold: Vec<(World, Rank)>,
    /// The newest epoch in which a newer version was complete than the one that it had restored.
    progress: Option<Epoch>,
}

impl Costs {
    /// What the agent before this one had told of them, and the newest version that was complete; it `died` then.
    pub fn after(toll: Toll, died: Instant) -> (Costs, Option<(Version, Option<Instant>)>) {
        let at = |age: Duration| earlier(died, age);
        let late = toll.late.map(|late| Late {
            failing: failing_of(late.noticed, died),
            end: at(late.end),
            released: late.computed.map(at),
            kept: late.kept,
            number: late.number,
            between: late.between,
        });
        let costs = Costs {
            sums: toll.sums,
            released: toll.computed.map(at),
            failing: toll.noticed.map(|noticed| failing_of(noticed, died)),
            late,
            untold: toll.untold,
            progress: toll.progress,
            ..Costs::default()
        };
        (costs, toll.complete.map(|(version, age)| (version, age.map(at))))
    }

    /// For the agent that comes after this one. `complete`: the newest version that is complete.
    pub fn toll(&self, complete: Option<(Version, Option<Instant>)>, now: Instant) -> Toll {
        let age = |since: Instant| now.saturating_duration_since(since);
        let late = self.late.as_ref().map(|late| toll::Late {
            noticed: noticed_of(&late.failing, now),
            end: age(late.end),
            computed: late.released.map(age),
            kept: late.kept,
            number: late.number,
            between: late.between,
        });
        Toll {
            sums: self.sums.clone(),
            computed: self.released.map(age),
            complete: complete.map(|(version, since)| (version, since.map(age))),
            noticed: self.failing.as_ref().map(|failing| noticed_of(failing, now)),
            late,
            untold: self.untold.clone(),
            progress: self.progress,
        }
    }

    /// The job has got on in this epoch, the newest of those that did.
    pub fn got_on(&mut self, epoch: Option<Epoch>) {
        self.progress = epoch;
    }

    /// People were told of these deaths, and not of what they came.
    pub fn told_without_cause(&mut self, processes: Vec<(World, Rank)>) {
        self.untold = processes;
    }

    /// The ranks of a world run from now on.
    pub fn released(&mut self, epoch: Epoch, now: Instant) {
        self.sums.epoch = epoch;
        // A recovery that is not over is one with the next.
        if self.failing.is_some() {
            return;
        }
        (self.released, self.runs) = (Some(now), true);
        self.comes_in(epoch);
    }

    /// What was before this node was in the job it has not seen.
    fn comes_in(&mut self, epoch: Epoch) {
        if self.sums.over == 0 {
            (self.sums.over, self.sums.unseen) = (epoch, epoch.saturating_sub(1));
            self.sums.survived = self.sums.unseen;
            self.sums.kept = self.sums.kept.filter(|_| epoch <= 1);
        }
    }

    /// For how long they run.
    pub fn computed(&self, now: Instant) -> Option<Duration> {
        let released = self.released.filter(|_| self.runs && self.failing.is_none());
        released.map(|released| now.saturating_duration_since(released))
    }

    /// The newest epoch whose world was released; 0 when none was.
    pub fn epoch(&self) -> Epoch {
        self.sums.epoch
    }

    /// Whether it was not looked yet whether anything protects the job: it is now.
    pub fn look_once(&mut self) -> bool {
        !std::mem::replace(&mut self.sums.looked, true)
    }

    /// Whether the job's summary was not said yet: it is now.
    pub fn say_once(&mut self) -> bool {
        !std::mem::replace(&mut self.sums.said, true)
    }

    /// A failure is noticed, which ends an epoch. Of several in one recovery the first one counts.
    pub fn failed(&mut self, ended: Epoch, failing: Failing) {
        self.comes_in(ended);
        self.sums.checkpointed |= failing.complete.is_some();
        match &mut self.failing {
            None => self.failing = Some(failing),
            Some(first) => {
                if failing.since < first.since {
                    (first.day, first.since) = (failing.day, failing.since);
                }
                let new = failing.dead.into_iter().filter(|one| !first.dead.contains(one));
                first.dead.extend(new.collect::<Vec<_>>());
            }
        }
    }

    /// Ranks had taken this version, as is seen when they are gone.
    pub fn had_taken(&mut self, version: Option<Version>) {
        self.failing.iter_mut().for_each(|failing| failing.taken = failing.taken.max(version));
    }

    /// These have died on another node.
    pub fn died_elsewhere(&mut self, node: &str, dead: Vec<(Rank, i32)>) {
        if self.failing.is_some() {
            self.elsewhere.extend(dead.into_iter().map(|(rank, pid)| (node.to_string(), rank, pid)));
        }
    }

    /// Who has died of this node in the failure that was noticed last.
    pub fn dead(&self) -> &[(Rank, i32)] {
        self.failing.as_ref().map_or(&self.dead, |failing| &failing.dead)
    }

    /// The recovery is over; what is to be said of it, on this host.
    pub fn recovered(&mut self, host: &str, over: Over) -> Words {
        let elsewhere = std::mem::take(&mut self.elsewhere);
        let checkpointed = self.sums.checkpointed;
        let Some(failing) = self.failing.take() else { return Words { checkpointed, ..Words::default() } };
        let mut when = format!("{}, on {host}", ft_sys::day::local(failing.day));
        let own = failing.dead.iter().map(|(rank, pid)| (String::new(), rank, pid));
        let others = elsewhere.iter().map(|(node, rank, pid)| (format!(" on {node}"), rank, pid));
        for (at, (node, rank, pid)) in own.chain(others).enumerate() {
            let _ = write!(when, "{}process {pid}{node} was rank {rank}", if at == 0 { "; " } else { ", " });
        }
        let late = self.late.take();
        let before = match (&late, over.from) {
            (Some(late), From::Version(version)) => self.lost_before(late, version),
            (Some(late), From::Beginning) => {
                // Whatever they would have gone on from.
                self.sums.unknown = self.sums.unknown.saturating_sub(late.number);
                self.sums.kept = late.kept();
                None
            }
            _ => None,
        };
        let (released, kept) = (self.released, self.sums.kept);
        let Lost { time, words } = match over.from {
            From::Version(version) if late.is_some() && before.is_none() => {
                Lost { time: None, words: format!("what was computed since version {version}") }
            }
            from => self.lost(&failing, from, before),
        };
        self.count(time, (failing.since, released));
        self.sums.recovering += over.end.saturating_duration_since(failing.since);
        self.sums.over = over.epoch;
        if over.survived {
            self.sums.survived = over.epoch.saturating_sub(1);
        }
        (self.released, self.runs) = (Some(over.end), true);
        self.dead.clone_from(&failing.dead);
        if over.from == From::Unknown {
            // What is still recovered from then is not counted twice.
            let computed =
                released.map_or(Duration::ZERO, |released| failing.since.saturating_duration_since(released));
            self.late = Some(match late {
                Some(late) => Late { end: over.end, number: late.number + 1, between: late.between + computed, ..late },
                None => Late { failing, end: over.end, released, kept, number: 1, between: Duration::ZERO },
            });
        }
        Words { when, lost: words, count: String::new(), checkpointed }
    }

    /// What was lost with the failure before is known now: ranks that died without having their state back would have gone on from the same.
    fn lost_before(&mut self, late: &Late, version: Version) -> Option<Duration> {
        let released = std::mem::replace(&mut self.released, late.released);
        let lost = self.lost_since(version, &late.failing, None).time.map(|time| time + late.between);
        self.released = released;
        self.sums.unknown -= if lost.is_some() { late.number.min(self.sums.unknown) } else { 0 };
        self.sums.kept = lost.and(late.kept());
        lost
    }

    /// Of a recovery that was reported without that: a rank has its state back since `end`. What is to be said of what was lost.
    pub fn restored_late(&mut self, version: Version, end: Instant) -> String {
        let Some(late) = self.late.take() else { return String::new() };
        let Late { failing, end: reported, released, kept, number, between } = late;
        self.sums.unknown = self.sums.unknown.saturating_sub(number);
        (self.released, self.sums.kept) = (released, kept.map(|kept| kept + between));
        let before = Some(between).filter(|_| number > 1);
        let Lost { time, words } = self.lost(&failing, From::Version(version), before);
        self.count(time, (failing.since, released));
        self.sums.recovering += end.saturating_duration_since(reported);
        self.released = Some(end);
        words
    }

    /// `time`: so much is computed again of what was computed from the release on until the failure.
    fn count(&mut self, time: Option<Duration>, (failed, released): (Instant, Option<Instant>)) {
        let Some(time) = time else {
            self.sums.unknown += 1;
            self.sums.kept = None;
            return;
        };
        self.sums.computing += time;
        let computed = released.map(|released| failed.saturating_duration_since(released));
        let all = self.sums.kept.zip(computed).map(|(kept, computed)| kept + computed);
        self.sums.kept = all.map(|all| all.saturating_sub(time));
    }

    /// What has to be computed again; `before`: of worlds before the newest.
    fn lost(&self, failing: &Failing, from: From, before: Option<Duration>) -> Lost {
        let since = |begun: Instant| failing.since.saturating_duration_since(begun);
        let seconds = |time: Duration| format!("{:.1} s of computing", time.as_secs_f64());
        // Of the newest world.
        let all = self.released.map(since);
        let unknown = |words: String| Lost { time: None, words };
        // Of which no version is left that is whole: what ranks had taken was not safe elsewhere yet.
        let taken = failing.taken.map_or_else(String::new, |taken| format!("; ranks had taken version {taken}"));
        match from {
            From::Version(version) => self.lost_since(version, failing, before),
            From::Files => {
                let most = all.map_or_else(String::new, |time| format!(", of {}", seconds(time)));
                unknown(format!("what the program's own files do not hold{most}"))
            }
            From::Beginning => match (all, self.sums.kept) {
                (Some(time), Some(kept)) => {
                    Lost { time: Some(time + kept), words: format!("{}: all of it{taken}", seconds(time + kept)) }
                }
                (Some(time), None) => unknown(format!("more than {}: all of it{taken}", seconds(time))),
                (None, _) => unknown(format!("all that was computed{taken}")),
            },
            From::Unknown => unknown(String::new()),
        }
    }

    /// … where the ranks go on from a version.
    fn lost_since(&self, version: Version, failing: &Failing, before: Option<Duration>) -> Lost {
        let seconds = |begun: Instant| {
            let time = failing.since.saturating_duration_since(begun) + before.unwrap_or_default();
            (time, format!("{:.1} s of computing", time.as_secs_f64()))
        };
        let further = match failing.taken.filter(|taken| *taken > version) {
            Some(taken) => format!("; ranks had taken version {taken}"),
            None => String::new(),
        };
        // What was lost before the newest world was lost then.
        let begun = match failing.complete {
            Some((complete, Some(begun))) if complete <= version => {
                Some(self.released.map_or(begun, |released| released.max(begun)))
            }
            Some((complete, None)) if complete <= version => self.released,
            None => self.released,
            Some(_) => None,
        };
        let Some(begun) = begun else {
            return Lost { time: None, words: format!("what was computed since version {version}{further}") };
        };
        let ((time, words), known) = (seconds(begun), failing.complete.map(|(complete, _)| complete));
        if known != Some(version) {
            // It was complete just then, and nobody had read so.
            return Lost {
                time: None,
                words: format!("less than {words}, since version {version} was complete{further}"),
            };
        }
        let how = if self.released == Some(begun) && before.is_none() { "restored" } else { "complete" };
        Lost { time: Some(time), words: format!("{words}, since version {version} was {how}{further}") }
    }

    /// For the job's end: how many failures it has survived, and what they cost; nothing when there were none, and where that is not `asked`
    /// for, when it has survived none.
    pub fn summary(&self, asked: bool) -> Option<String> {
        self.sums.sentence(asked)
    }

    /// For the end of a job that did not recover from the first one.
    pub fn only_failure(&self) -> Option<String> {
        let failing = self.failing.as_ref().filter(|_| self.sums.survived == 0)?;
        let computed = failing.since.saturating_duration_since(self.released?).as_secs_f64();
        Some(format!("no failure was survived: the first one ended the job after {computed:.1} s of computing"))
    }
}

/// The time of day at which that was.
fn day(at: Instant) -> SystemTime {
    let ago = ft_sys::job_time::now().saturating_duration_since(at);
    SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }

        fn failing(&self, since: u64, complete: Option<(Version, u64)>, taken: Option<Version>) -> Failing {
            Failing {
                day: SystemTime::UNIX_EPOCH,
                since: self.at(since),
                dead: vec![(3, 77)],
                complete: complete.map(|(version, since)| (version, Some(self.at(since)))),
                taken,
            }
        }

        fn over(&self, epoch: Epoch, from: From, end: u64) -> Over {
            Over { epoch, survived: true, from, end: self.at(end) }
        }
    }

    #[test]
    fn what_is_lost_is_what_was_computed_since() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        assert_eq!((costs.summary(false), costs.computed(clock.at(3))), (None, Some(Duration::from_secs(2))));
        let mut epoch = 1;
        let mut lost = |failing: Failing, from, end| {
            costs.failed(epoch, failing.clone());
            costs.failed(epoch, Failing { since: clock.at(999), dead: vec![(4, 78)], ..failing });
            costs.released(epoch + 1, clock.at(999));
            epoch += 1;
            let words = costs.recovered("there", clock.over(epoch, from, end));
            assert!(words.when.ends_with(", on there; process 77 was rank 3, process 78 was rank 4"), "{}", words.when);
            words.lost
        };
        let of_version = lost(clock.failing(11, Some((20, 8)), Some(30)), From::Version(20), 12);
        assert_eq!(of_version, "3.0 s of computing, since version 20 was complete; ranks had taken version 30");
        let once_more = lost(clock.failing(14, Some((20, 8)), None), From::Version(20), 15);
        assert_eq!(
            once_more, "2.0 s of computing, since version 20 was restored",
            "what was lost before was counted then"
        );
        let all = lost(clock.failing(20, None, None), From::Beginning, 21);
        assert_eq!(all, "12.0 s of computing: all of it", "7 s before version 20, and 5 s since");
        let just = lost(clock.failing(24, Some((30, 22)), Some(40)), From::Version(40), 25);
        assert_eq!(just, "less than 2.0 s of computing, since version 40 was complete");
        let beginning = lost(clock.failing(27, None, Some(60)), From::Beginning, 28);
        assert_eq!(beginning, "more than 2.0 s of computing: all of it; ranks had taken version 60");
        let older = lost(clock.failing(30, Some((50, 29)), None), From::Version(40), 31);
        assert_eq!(older, "what was computed since version 40");
        let files = lost(clock.failing(35, None, None), From::Files, 36);
        assert_eq!(files, "what the program's own files do not hold, of 4.0 s of computing");
        assert_eq!(lost(clock.failing(37, None, None), From::Unknown, 38), "");
        let summary = costs.summary(false).unwrap();
        assert_eq!(summary, "8 failures were survived; lost: at least 17.0 s of computing and 8.0 s of recovering");
        let none = Words { checkpointed: true, ..Words::default() };
        assert_eq!(costs.recovered("there", clock.over(9, From::Beginning, 40)), none, "once");
    }

    #[test]
    fn of_several_nodes_one_tells_and_all_count() {
        let clock = Clock(Instant::now());
        let failing = |dead: Vec<(Rank, i32)>| Failing { dead, ..clock.failing(11, Some((20, 8)), None) };
        let (mut told, mut counted) = (Costs::default(), Costs::default());
        [&mut told, &mut counted].into_iter().for_each(|costs| costs.released(1, clock.at(1)));
        told.died_elsewhere("b", vec![(1, 1)]);
        told.failed(1, failing(vec![]));
        counted.failed(1, failing(vec![(3, 77)]));
        assert_eq!(counted.dead(), [(3, 77)]);
        let mut later = Costs::default();
        later.failed(1, failing(vec![(3, 77)]));
        later.failed(1, failing(vec![(3, 77), (4, 78)]));
        assert_eq!(later.dead(), [(3, 77), (4, 78)], "when it is agreed who has died");
        let over = clock.over(2, From::Version(20), 12);
        counted.recovered("b", over);
        assert_eq!(
            (counted.dead(), counted.failing.is_some()),
            (&[(3, 77)][..], false),
            "it may be asked a moment later"
        );
        told.died_elsewhere("b", vec![(3, 77)]);
        let words = told.recovered("a", over);
        assert!(words.when.ends_with(", on a; process 77 on b was rank 3"), "{}", words.when);
        let all = Some("1 failure was survived; lost: 3.0 s of computing and 1.0 s of recovering".to_string());
        assert_eq!((told.summary(false), counted.summary(false)), (all.clone(), all));
        let mut late = Costs::default();
        late.released(3, clock.at(20));
        late.failed(3, clock.failing(25, None, None));
        late.recovered("c", clock.over(4, From::Beginning, 26));
        let said = "3 failures were survived; lost: an unknown time of computing and 1.0 s of recovering; what 2 of them cost is not known here";
        assert_eq!(late.summary(false).as_deref(), Some(said), "who comes in late has not seen what was before");
    }

    #[test]
    fn who_comes_in_while_a_recovery_runs_has_seen_no_more() {
        let clock = Clock(Instant::now());
        let mut late = Costs::default();
        // Epoch 3 is not released when the next failure comes.
        late.failed(3, clock.failing(25, None, None));
        late.released(4, clock.at(26));
        late.recovered("c", clock.over(4, From::Beginning, 26));
        let said = "3 failures were survived; lost: an unknown time of computing and 1.0 s of recovering; what 2 of them cost is not known here";
        assert_eq!(late.summary(false).as_deref(), Some(said));
    }

    #[test]
    fn an_interrupted_recovery_lasts_until_then_and_is_none_that_was_survived() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        costs.failed(1, clock.failing(11, Some((20, 8)), None));
        costs.released(2, clock.at(12));
        costs.recovered("a", Over { survived: false, ..clock.over(2, From::Unknown, 14) });
        let said = "no failure was survived; lost: an unknown time of computing and 3.0 s of recovering";
        assert_eq!((costs.summary(false), costs.summary(true).as_deref()), (None, Some(said)));
        costs.failed(2, clock.failing(14, Some((20, 8)), None));
        let words = costs.clone().recovered("a", clock.over(3, From::Version(20), 15));
        assert_eq!(words.lost, "3.0 s of computing, since version 20 was complete", "nothing was computed since");
        // Nobody had read that a newer one was complete.
        let words = costs.clone().recovered("a", clock.over(3, From::Version(21), 15));
        assert_eq!(words.lost, "what was computed since version 21", "it was not restored yet");
        // As the next agent has it; once more; and then all that was computed is lost.
        let (mut next, _) = Costs::after(costs.toll(None, clock.at(14)), clock.at(14));
        for costs in [&mut costs, &mut next] {
            costs.recovered("a", Over { survived: false, ..clock.over(3, From::Unknown, 15) });
            costs.failed(3, clock.failing(16, Some((20, 8)), None));
            let mut anew = costs.clone();
            let words = costs.recovered("a", clock.over(4, From::Version(20), 17));
            assert_eq!(words.lost, "4.0 s of computing, since version 20 was complete", "one second more");
            let said = "3 failures were survived; lost: 4.0 s of computing and 5.0 s of recovering";
            assert_eq!(costs.summary(false).as_deref(), Some(said));
            let words = anew.recovered("a", clock.over(4, From::Beginning, 17));
            assert_eq!(words.lost, "11.0 s of computing: all of it");
            let said = "3 failures were survived; lost: 11.0 s of computing and 5.0 s of recovering";
            assert_eq!(anew.summary(false).as_deref(), Some(said));
        }
    }

    #[test]
    fn it_is_known_whether_there_ever_was_a_checkpoint() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        let mut checkpointed = |epoch: Epoch, complete| {
            costs.failed(epoch, clock.failing(10 * epoch, complete, None));
            costs.recovered("a", clock.over(epoch + 1, From::Beginning, 10 * epoch + 1)).checkpointed
        };
        assert_eq!(
            [checkpointed(1, None), checkpointed(2, Some((20, 19))), checkpointed(3, None)],
            [false, true, true]
        );
    }

    #[test]
    fn a_job_that_its_first_failure_ends_says_what_it_had_computed() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        assert_eq!(costs.only_failure(), None);
        costs.failed(1, clock.failing(11, None, None));
        let said = "no failure was survived: the first one ended the job after 10.0 s of computing";
        assert_eq!((costs.summary(true), costs.only_failure().as_deref()), (None, Some(said)));
    }

    #[test]
    fn the_next_agent_goes_on_where_one_died() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        assert!(costs.look_once() && costs.say_once());
        costs.failed(1, clock.failing(5, None, None));
        costs.recovered("a", clock.over(2, From::Beginning, 6));
        let toll = costs.toll(Some((20, Some(clock.at(8)))), clock.at(10));
        // It is told later, and by another clock.
        let there = Clock(clock.at(1000));
        let (mut next, complete) = Costs::after(toll.later(Duration::from_secs(1)), there.at(11));
        assert_eq!(complete, Some((20, Some(there.at(8)))));
        assert!(!next.look_once() && !next.say_once(), "what is said once was said");
        next.failed(2, Failing { complete, ..there.failing(11, None, None) });
        let again = Costs::after(next.toll(complete, there.at(12)), clock.at(12)).0;
        assert_eq!(again.dead(), [(3, 77)], "a failure that is not over is not over with the agent");
        let mut again = again;
        again.released(3, clock.at(13));
        assert_eq!(again.computed(clock.at(13)), None, "the world of the agent that died does not compute");
        let words = again.recovered("a", clock.over(3, From::Version(20), 14));
        assert_eq!(again.computed(clock.at(15)), Some(Duration::from_secs(1)));
        assert_eq!(words.lost, "3.0 s of computing, since version 20 was complete");
        let said = "2 failures were survived; lost: 7.0 s of computing and 4.0 s of recovering";
        assert_eq!(again.summary(false).as_deref(), Some(said));
    }

    #[test]
    fn who_has_its_state_late_recovers_until_then() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        costs.failed(1, clock.failing(11, Some((20, 8)), None));
        assert_eq!(costs.recovered("a", clock.over(2, From::Unknown, 12)).lost, "");
        assert_eq!(costs.restored_late(20, clock.at(15)), "3.0 s of computing, since version 20 was complete");
        assert_eq!(costs.restored_late(20, clock.at(16)), "", "it is told once");
        let said = "1 failure was survived; lost: 3.0 s of computing and 4.0 s of recovering";
        assert_eq!(
            (costs.summary(false).as_deref(), costs.computed(clock.at(16))),
            (Some(said), Some(Duration::from_secs(1)))
        );
    }

    #[test]
    fn two_recoveries_without_their_state_are_not_counted_twice() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        for (epoch, failed) in [(2, 11), (3, 14)] {
            costs.failed(epoch - 1, clock.failing(failed, Some((20, 8)), None));
            costs.recovered("a", clock.over(epoch, From::Unknown, failed + 1));
        }
        costs.restored_late(20, clock.at(18));
        let summary = costs.summary(false).unwrap_or_default();
        assert!(summary.ends_with(" and 5.0 s of recovering"), "11 to 12, and 14 to 18: {summary}");
    }

    #[test]
    fn who_dies_before_it_has_its_state_has_lost_what_was_lost_before() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        costs.failed(1, clock.failing(11, Some((20, 8)), None));
        costs.recovered("a", clock.over(2, From::Unknown, 12));
        costs.failed(2, clock.failing(14, Some((20, 8)), None));
        let words = costs.recovered("a", clock.over(3, From::Version(20), 15));
        assert_eq!(words.lost, "5.0 s of computing, since version 20 was complete");
        let said = "2 failures were survived; lost: 5.0 s of computing and 2.0 s of recovering";
        assert_eq!(costs.summary(false).as_deref(), Some(said));
        costs.failed(3, clock.failing(16, None, None));
        let words = costs.recovered("a", clock.over(4, From::Beginning, 17));
        assert_eq!(words.lost, "8.0 s of computing: all of it", "7 s before version 20, and 1 s since");
    }

    #[test]
    fn what_could_not_be_started_again_is_not_survived() {
        let clock = Clock(Instant::now());
        let mut costs = Costs::default();
        costs.released(1, clock.at(1));
        costs.failed(1, clock.failing(11, None, None));
        costs.recovered("a", Over { survived: false, ..clock.over(2, From::Unknown, 12) });
        assert_eq!(costs.summary(false), None);
    }
}
