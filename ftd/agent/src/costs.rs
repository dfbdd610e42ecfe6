//! What failures cost the job: for the recovery's block, and for the job's end.

use ft_wire::{Rank, Version};
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

/// Words for the recovery's block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// When and where it was, and which processes.
    pub when: String,
    /// What has to be computed again.
    pub lost: String,
    /// Which failure it was, of how many.
    pub count: String,
}

/// All failures so far.
#[derive(Debug, Default)]
pub struct Costs {
    /// Since when the ranks of the newest world run.
    released: Option<Instant>,
    failing: Option<Failing>,
    /// Who died of this node in the failure before.
    dead: Vec<(Rank, i32)>,
    /// Who has died on other nodes, by their names.
    elsewhere: Vec<(String, Rank, i32)>,
    /// It was looked whether anything protects the job.
    looked: bool,
    survived: u32,
    computing: Duration,
    recovering: Duration,
}

impl Costs {
    /// The ranks of a world run from now on.
    pub fn released(&mut self, now: Instant) {
        // A recovery that is not over is one with the next.
        if self.failing.is_none() {
            self.released = Some(now);
        }
    }

    /// How long they have run.
    pub fn computed(&self, now: Instant) -> Option<Duration> {
        self.released.map(|released| now.saturating_duration_since(released))
    }

    /// Whether it was not looked yet whether anything protects the job: it is now.
    pub fn look_once(&mut self) -> bool {
        !std::mem::replace(&mut self.looked, true)
    }

    /// A failure is noticed. Of several in one recovery the first one counts.
    pub fn failed(&mut self, failing: Failing) {
        match &mut self.failing {
            None => self.failing = Some(failing),
            Some(first) => first.dead.extend(failing.dead),
        }
    }

    /// Whether a failure is known that is not over.
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
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
    pub fn recovered(&mut self, host: &str, from: From, now: Instant) -> Words {
        let elsewhere = std::mem::take(&mut self.elsewhere);
        let Some(failing) = self.failing.take() else { return Words::default() };
        let mut when = format!("{}, on {host}", ft_sys::day::local(failing.day));
        let own = failing.dead.iter().map(|(rank, pid)| (String::new(), rank, pid));
        let others = elsewhere.iter().map(|(node, rank, pid)| (format!(" on {node}"), rank, pid));
        for (at, (node, rank, pid)) in own.chain(others).enumerate() {
            let _ = write!(when, "{}process {pid}{node} was rank {rank}", if at == 0 { "; " } else { ", " });
        }
        let (time, lost) = self.lost(&failing, from);
        self.count(failing, time, now);
        Words { when, lost, count: String::new() }
    }

    /// A recovery of which another node tells: its world runs.
    pub fn told_elsewhere(&mut self, now: Instant) {
        self.elsewhere.clear();
        let Some(failing) = self.failing.take() else { return };
        let from = failing.complete.map_or(From::Beginning, |(version, _)| From::Version(version));
        let (time, _) = self.lost(&failing, from);
        self.count(failing, time, now);
    }

    fn count(&mut self, failing: Failing, computed: Option<Duration>, now: Instant) {
        self.survived += 1;
        self.computing += computed.unwrap_or_default();
        self.recovering += now.saturating_duration_since(failing.since);
        self.released = Some(now);
        self.dead = failing.dead;
    }

    /// What has to be computed again: how long it took, where that is known, and words.
    fn lost(&self, failing: &Failing, from: From) -> (Option<Duration>, String) {
        let since = |begun: Instant| failing.since.saturating_duration_since(begun);
        let seconds = |time: Duration| format!("{:.1} s of computing", time.as_secs_f64());
        let all = self.released.map(since);
        match from {
            From::Version(version) => {
                let further = match failing.taken.filter(|taken| *taken > version) {
                    Some(taken) => format!("; ranks had taken version {taken}"),
                    None => String::new(),
                };
                match failing.complete {
                    Some((complete, Some(begun))) if complete == version => {
                        let time = since(begun);
                        (Some(time), format!("{}, since version {version} was complete{further}", seconds(time)))
                    }
                    // It was complete just then, and nobody had read so.
                    Some((complete, Some(begun))) if complete < version => {
                        (Some(Duration::ZERO), format!("less than {}{further}", seconds(since(begun))))
                    }
                    _ => (None, format!("what was computed since version {version}{further}")),
                }
            }
            From::Files => {
                let most = all.map_or_else(String::new, |time| format!(", of {}", seconds(time)));
                (None, format!("what the program's own files do not hold{most}"))
            }
            From::Beginning => match all {
                Some(time) => (Some(time), format!("{}: all of it", seconds(time))),
                None => (None, "all that was computed".into()),
            },
            From::Unknown => (None, String::new()),
        }
    }

    /// For the job's end: how many failures it has survived, and what they cost; nothing when there were none.
    pub fn summary(&self) -> Option<String> {
        let (computing, recovering) = (self.computing.as_secs_f64(), self.recovering.as_secs_f64());
        let number = match self.survived {
            0 => return None,
            1 => "1 failure was".into(),
            number => format!("{number} failures were"),
        };
        let known = if computing > 0.0 { format!("{computing:.1} s of computing and ") } else { String::new() };
        Some(format!("{number} survived; lost: {known}{recovering:.1} s of recovering"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_what_was_computed_since() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let failing = |since, complete: Option<(Version, u64)>, taken| Failing {
            day: SystemTime::UNIX_EPOCH,
            since: at(since),
            dead: vec![(3, 77)],
            complete: complete.map(|(version, since)| (version, Some(at(since)))),
            taken,
        };
        let mut costs = Costs::default();
        costs.released(at(1));
        assert_eq!((costs.summary(), costs.computed(at(3))), (None, Some(Duration::from_secs(2))));
        let mut lost = |failing: Failing, from, now| {
            costs.failed(failing.clone());
            costs.failed(Failing { since: at(999), dead: vec![(4, 78)], ..failing });
            costs.released(at(999));
            let words = costs.recovered("there", from, at(now));
            assert!(words.when.ends_with(", on there; process 77 was rank 3, process 78 was rank 4"), "{}", words.when);
            words.lost
        };
        let of_version = lost(failing(11, Some((20, 8)), Some(30)), From::Version(20), 12);
        assert_eq!(of_version, "3.0 s of computing, since version 20 was complete; ranks had taken version 30");
        assert_eq!(lost(failing(14, Some((20, 8)), Some(30)), From::Version(30), 15), "less than 6.0 s of computing");
        assert_eq!(lost(failing(17, None, Some(30)), From::Version(30), 18), "what was computed since version 30");
        assert_eq!(lost(failing(20, None, None), From::Beginning, 21), "2.0 s of computing: all of it");
        let files = lost(failing(25, None, None), From::Files, 26);
        assert_eq!(files, "what the program's own files do not hold, of 4.0 s of computing");
        assert_eq!(lost(failing(27, None, None), From::Unknown, 28), "");
        let summary = costs.summary().unwrap();
        assert_eq!(summary, "6 failures were survived; lost: 5.0 s of computing and 6.0 s of recovering");
        assert_eq!(costs.recovered("there", From::Beginning, at(30)), Words::default());
    }

    #[test]
    fn of_several_nodes_one_tells_and_all_count() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let failing = |dead: Vec<(Rank, i32)>| Failing {
            day: SystemTime::UNIX_EPOCH,
            since: at(11),
            dead,
            complete: Some((20, Some(at(8)))),
            taken: None,
        };
        let (mut told, mut counted) = (Costs::default(), Costs::default());
        told.died_elsewhere("b", vec![(1, 1)]);
        told.failed(failing(vec![]));
        counted.failed(failing(vec![(3, 77)]));
        assert_eq!(counted.dead(), [(3, 77)]);
        counted.told_elsewhere(at(12));
        assert_eq!((counted.dead(), counted.is_failing()), (&[(3, 77)][..], false), "it may be asked a moment later");
        told.died_elsewhere("b", vec![(3, 77)]);
        let words = told.recovered("a", From::Version(20), at(12));
        assert!(words.when.ends_with(", on a; process 77 on b was rank 3"), "{}", words.when);
        let all = Some("1 failure was survived; lost: 3.0 s of computing and 1.0 s of recovering".to_string());
        assert_eq!((told.summary(), counted.summary()), (all.clone(), all));
    }
}
