//! What a shepherd has seen below itself, noted in the job's directory: when it and all others that knew are killed at once,
//! number and start time prove what was theirs.

use crate::filters::Piping;
use crate::individual::Individual;
use crate::timescale::scaled;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a shepherd's file begins.
const PREFIX: &str = "below.";
/// Bytes of a record: number and start time, little endian. A record is never written in part.
const RECORD: usize = 16;
/// Set in the number of the shepherd itself.
const KEEPER: u64 = 1 << 63;
/// The first look after something has happened: what a rank starts for itself it starts early.
const SOON: Duration = Duration::from_millis(20);
/// Between looks at a slot on which nothing happens.
const SELDOM: Duration = Duration::from_secs(5);
/// Set in the number of one that stands above a rank.
const ABOVE: u64 = 1 << 62;
/// A record that says into which pipe ranks print, in place of a number.
const OUTPUT: u64 = 1 << 61;
/// Set in the number of a filter.
const READER: u64 = 1 << 60;
/// Set in the number of one that the shepherd has stopped.
const STOPPED: u64 = 1 << 59;
/// How much longer each pause is than the one before. All of a node's ranks start at once, and looks take their processors.
const GROWTH: u32 = 4;

/// A shepherd's notes.
#[derive(Debug)]
pub struct Notes {
    path: PathBuf,
    file: Option<File>,
    own: Option<Individual>,
    piping: Piping,
    noted: BTreeSet<Individual>,
    stopped: BTreeSet<Individual>,
    next: Instant,
    pause: Duration,
}

impl Notes {
    /// Of the shepherd of this slot. Nothing is written before there is something to note.
    pub fn new(job_dir: &Path, slot: u32) -> Notes {
        let path = job_dir.join(format!("{PREFIX}{slot}"));
        let next = Instant::now() + scaled(SELDOM);
        let (noted, stopped) = (BTreeSet::new(), BTreeSet::new());
        Notes { path, file: None, own: None, piping: Piping::default(), noted, stopped, next, pause: SOON }
    }

    /// As if these had been seen.
    #[cfg(test)]
    pub(crate) fn of(job_dir: &Path, slot: u32, seen: impl IntoIterator<Item = Individual>) -> Notes {
        let notes = &mut Notes::new(job_dir, slot);
        notes.write(&seen.into_iter().collect());
        std::mem::replace(notes, Notes::new(job_dir, slot))
    }

    /// This process was started by the shepherd itself: it is noted at once, without a look.
    pub fn started(&mut self, pid: i32) {
        let mut now = self.noted.clone();
        now.extend(Individual::of(pid));
        self.keep(now);
        self.pause = SOON;
        self.next = Instant::now() + SOON;
    }

    /// Something happened: there may be more below than there was.
    pub fn stir(&mut self) {
        self.pause = SOON;
        self.next = self.next.min(Instant::now() + SOON);
    }

    /// How long until the next look.
    pub fn pause(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks, when it is time to: each time nothing happens the pause grows. Whether it did.
    pub fn look_if_due(&mut self) -> bool {
        let due = self.pause().is_zero();
        if due {
            self.look();
            self.pause = (self.pause * GROWTH).min(scaled(SELDOM));
            self.next = Instant::now() + self.pause;
        }
        due
    }

    /// Notes what is below this process now.
    pub fn look(&mut self) {
        let found = crate::process::own_descendants();
        let mut now: BTreeSet<Individual> = found.into_iter().filter_map(Individual::of).collect();
        // One that moves up while its parent ends is missed by a look; it was seen before.
        let missed: Vec<Individual> = self.noted.difference(&now).filter(|old| old.exists()).copied().collect();
        now.extend(missed);
        self.keep(now);
    }

    /// Notes how ranks print, when that has changed.
    pub fn piping(&mut self, now: &Piping) {
        if *now != self.piping {
            self.piping = now.clone();
            self.write(&self.noted.clone());
        }
    }

    /// Notes whom the shepherd is about to stop, or that it has continued all.
    pub fn stopped(&mut self, now: BTreeSet<Individual>) {
        if now != self.stopped {
            self.stopped = now;
            self.write(&self.noted.clone());
        }
    }

    fn keep(&mut self, now: BTreeSet<Individual>) {
        if now != self.noted && self.write(&now).is_some() {
            self.noted = now;
        }
    }

    fn write(&mut self, all: &BTreeSet<Individual>) -> Option<()> {
        self.own = self.own.or_else(|| Individual::of(std::process::id() as i32));
        let own = self.own?;
        let mut bytes = record(own.pid as u64 | KEEPER, own.start);
        all.iter().for_each(|one| bytes.append(&mut record(one.pid as u64, one.start)));
        self.piping.above.iter().for_each(|one| bytes.append(&mut record(one.pid as u64 | ABOVE, one.start)));
        self.piping.readers.iter().for_each(|one| bytes.append(&mut record(one.pid as u64 | READER, one.start)));
        self.stopped.iter().for_each(|one| bytes.append(&mut record(one.pid as u64 | STOPPED, one.start)));
        self.piping.outputs.iter().for_each(|pipe| bytes.append(&mut record(OUTPUT, *pipe)));
        if self.file.is_none() {
            let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path);
            self.file = open.ok();
        }
        let file = self.file.as_ref()?;
        // Whoever reads between the two lines finds some that have ended as well.
        file.write_all_at(&bytes, 0).ok()?;
        file.set_len(bytes.len() as u64).ok()
    }
}

fn record(pid: u64, start: u64) -> Vec<u8> {
    [pid.to_le_bytes(), start.to_le_bytes()].concat()
}

/// What all shepherds of a job have noted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The shepherds.
    pub keepers: BTreeSet<Individual>,
    /// What they saw below themselves.
    pub below: BTreeSet<Individual>,
    /// Whom they had stopped.
    pub stopped: BTreeSet<Individual>,
    /// How what was below them prints.
    pub piping: Piping,
}

/// Reads the notes in a job's directory.
pub fn read(job_dir: &Path) -> Noted {
    let mut noted = Noted::default();
    for entry in std::fs::read_dir(job_dir).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        for record in bytes.chunks_exact(RECORD) {
            let word = |at: usize| record[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
            let (pid, start) = (word(0), word(8));
            let set = match pid & (KEEPER | ABOVE | OUTPUT | READER | STOPPED) {
                KEEPER => &mut noted.keepers,
                ABOVE => &mut noted.piping.above,
                READER => &mut noted.piping.readers,
                STOPPED => &mut noted.stopped,
                OUTPUT => {
                    noted.piping.outputs.insert(start);
                    continue;
                }
                _ => &mut noted.below,
            };
            set.extend(
                i32::try_from(pid & !(KEEPER | ABOVE | READER | STOPPED)).ok().map(|pid| Individual { pid, start }),
            );
        }
    }
    noted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_below_is_noted_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let mut notes = Notes::new(directory.path(), 3);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Individual::of(child.id() as i32).unwrap();
        notes.look();
        let noted = read(directory.path());
        assert_eq!(noted.keepers.iter().map(|keeper| keeper.pid).collect::<Vec<_>>(), [std::process::id() as i32]);
        assert!(noted.below.contains(&identity));
        notes.stopped([identity].into());
        assert_eq!(read(directory.path()), Noted { stopped: [identity].into(), ..noted });
        notes.stopped(BTreeSet::new());
        assert!(read(directory.path()).stopped.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        notes.look();
        assert!(!read(directory.path()).below.contains(&identity));
    }

    #[test]
    fn what_the_shepherd_starts_is_noted_without_a_look() {
        let directory = tempfile::tempdir().unwrap();
        let mut notes = Notes::new(directory.path(), 0);
        assert!(notes.pause() > SOON);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        notes.started(child.id() as i32);
        assert!(read(directory.path()).below.contains(&Individual::of(child.id() as i32).unwrap()));
        assert!(notes.pause() <= SOON);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_slot_on_which_nothing_happens_is_looked_at_seldom() {
        let directory = tempfile::tempdir().unwrap();
        let mut notes = Notes::new(directory.path(), 0);
        for _ in 0..20 {
            notes.next = Instant::now();
            notes.look_if_due();
        }
        assert_eq!(notes.pause, SELDOM);
        notes.stir();
        assert!(notes.pause() <= SOON);
    }
}
