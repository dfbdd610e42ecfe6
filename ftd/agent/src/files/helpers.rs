//! Processes that the ranks have started: they write restart files as well (a forked child, `cp` in a script), and die by
//! themselves. Nobody tells the agent of them: it looks for them below the shepherds, and holds each by a descriptor.

use ft_sys::death::is_past_user_code;
use ft_sys::individual::{Held, Individual};
use ft_sys::open_files::{Descriptors, FileSystem, descriptors_for_writing, open_for_writing};
use ft_sys::post_mortem::{self, End};
use ft_sys::process::processor_time;
use nix::libc;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many are held by a descriptor, and no more than half of those that the agent may have: it needs some for its work.
const MOST: usize = 4096;

/// A look that takes less is worth it at any time.
const CHEAP: Duration = Duration::from_millis(1);

/// Where nobody has looked for longer than this, because there were no files, nothing follows from a kill since then.
const RECENT: Duration = Duration::from_secs(2);

/// Ends that are a part of ordinary scripts (`seq | head`, `kill $monitor`), as statuses other than 0 are: nothing follows for
/// files that others may have closed at that moment, unless the process was seen to write here.
const ORDINARY: [i32; 4] = [libc::SIGPIPE, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The end of a process that may have left a file torn.
#[derive(Debug, Clone)]
pub struct Death {
    /// Why a file of its is not known to be whole, for people.
    pub why: Arc<str>,
    /// The inodes that it had open for writing when it was last looked at. It may have opened more since.
    pub files: BTreeSet<u64>,
    /// Whether it may have been about anything, also if it was not seen to write in the directory.
    pub sudden: bool,
}

/// What a look at the processes told.
#[derive(Debug, Default)]
pub struct Survey {
    /// Whether up to now no process closed files because it died, but for these.
    pub all_alive: bool,
    /// Those that have ended since the last look.
    pub deaths: Vec<Death>,
    /// The inodes that those who live have open for writing, or had who have ended well, as far as that is known.
    pub writing: BTreeSet<u64>,
}

#[derive(Debug)]
struct Helper {
    held: Arc<Held>,
    /// What it had open for writing when it was last looked at; `None` before that.
    files: Option<BTreeSet<u64>>,
    /// It could not be looked at then: it may have anything open.
    hidden: bool,
    /// It has ended, and nobody knows yet how.
    undecided: bool,
}

impl Helper {
    /// Whether it may be closing files because it ends. The memory of a large one takes a second to go, and its descriptors
    /// are closed after that; mappings go with the memory.
    fn is_closing(&self, of: Option<&FileSystem>) -> bool {
        let pid = self.held.identity.pid;
        let has_all = || match (descriptors_for_writing(pid, of), &self.files) {
            (Descriptors::Writing(open), Some(files)) => !self.hidden && files.is_subset(&open),
            _ => false,
        };
        is_past_user_code(pid).unwrap_or(true) && !has_all()
    }
}

/// The processes below the ranks and beside them.
#[derive(Debug, Default)]
pub struct Helpers {
    /// That of the directory; files of others do not count.
    file_system: Option<FileSystem>,
    held: BTreeMap<i32, Helper>,
    /// Seen for the first time when they had ended, and not waited for yet.
    buried: BTreeSet<Individual>,
    /// The newest process on the machine at the last two looks.
    newest: [Option<i32>; 2],
    /// Kills for lack of memory so far, and when they were counted.
    kills: Option<(Instant, u64)>,
    /// There was nothing to look for since then.
    rested: bool,
    /// Some cannot be held: nothing is known of what they do.
    too_many: bool,
    /// The same at any time of this world.
    ever_too_many: bool,
    /// When it was last looked at what they have open, and how much of a processor's time that took.
    files_seen: Option<(Instant, Duration)>,
}

impl Helpers {
    /// Those who write in this directory.
    pub fn of(directory: &Path) -> Helpers {
        let file_system = FileSystem::of(directory).inspect_err(|error| {
            tracing::warn!(%error, "inodes of several file systems are not told apart");
        });
        Helpers { file_system: file_system.ok(), ..Helpers::default() }
    }

    /// Looks for new ones below the `roots`, `ranks` excepted, at how those that are known fare, and at what they have open.
    pub fn survey(&mut self, roots: &BTreeSet<i32>, ranks: &BTreeSet<i32>) -> Survey {
        let mut survey = Survey { all_alive: true, deaths: self.killed_for_memory(), writing: BTreeSet::new() };
        // First those that are known: what has a number of theirs after that is another one.
        self.held.retain(|pid, _| !ranks.contains(pid));
        self.note_ends(&mut survey);
        self.find_new(roots, ranks, &mut survey);
        self.see_files();
        survey.writing.extend(self.held.values().flat_map(|helper| helper.files.iter().flatten()));
        survey.all_alive &= !self.too_many;
        survey
    }

    /// Many processes with many descriptors cost a fifth of a processor; each is looked at at least once.
    fn see_files(&mut self) {
        let begun = processor_time();
        let all = self.files_seen.is_none_or(|(at, took)| took < CHEAP || at.elapsed() >= 4 * took);
        for (pid, helper) in self.held.iter_mut().filter(|(_, helper)| all || helper.files.is_none()) {
            // Of one that is closing its files the last look counts.
            let files = open_for_writing(*pid, self.file_system.as_ref());
            if !is_past_user_code(*pid).unwrap_or(true) {
                helper.hidden = files.is_none();
                // What it had open before it may have open still.
                helper.files = files.or(helper.files.take()).or_else(|| Some(BTreeSet::new()));
            }
        }
        if all {
            self.files_seen = Some((Instant::now(), processor_time().saturating_sub(begun)));
        }
    }

    /// Whoever it was, when nobody knew of it.
    fn killed_for_memory(&mut self) -> Vec<Death> {
        let kills = ft_sys::oom::kills_around().map(|kills| (Instant::now(), kills));
        let before = std::mem::replace(&mut self.kills, kills);
        // However late this look comes where one was due: the agent may have been without a processor.
        let rested = std::mem::take(&mut self.rested);
        let counts = |at: Instant| !rested || at.elapsed() < RECENT;
        let killed = before.zip(kills).is_some_and(|((at, before), (_, now))| before != now && counts(at));
        let why = "the kernel killed a process for lack of memory while it was written";
        let death = Death { why: why.into(), files: BTreeSet::new(), sudden: true };
        if killed { vec![death] } else { Vec::new() }
    }

    /// There are no files: the next look comes when there is one.
    pub fn rest(&mut self) {
        self.rested = true;
    }

    fn note_ends(&mut self, survey: &mut Survey) {
        self.held.retain(|pid, helper| {
            let end = match post_mortem::end(&helper.held) {
                None if helper.is_closing(self.file_system.as_ref()) => Some(End::NotYet),
                end => end,
            };
            survey.all_alive &= end != Some(End::NotYet);
            helper.undecided = end == Some(End::NotYet) && !helper.held.lives();
            if let Some(end) = end
                && end != End::NotYet
            {
                let files = helper.files.take().unwrap_or_default();
                if end == End::Status(0) {
                    survey.writing.extend(&files);
                }
                survey.deaths.extend(death(*pid, end, files, helper.hidden));
            }
            matches!(end, None | Some(End::NotYet))
        });
        self.buried.retain(|one| one.exists());
    }

    fn find_new(&mut self, roots: &BTreeSet<i32>, ranks: &BTreeSet<i32>, survey: &mut Survey) {
        // A number is taken a moment before its process is seen below its parent: so two looks after each change.
        let newest = ft_sys::process::last_number();
        // Where there were too many some may have ended since.
        if newest.is_some() && self.newest == [newest; 2] && !self.too_many {
            return;
        }
        self.newest = [newest, self.newest[0]];
        self.too_many = false;
        let most = most();
        let below = roots.iter().flat_map(|root| ft_sys::process::descendants(*root));
        for pid in below.filter(|pid| !ranks.contains(pid)).collect::<Vec<_>>() {
            if self.held.contains_key(&pid) {
                continue;
            }
            if self.held.len() >= most {
                self.too_many = true;
            } else if let Some(held) = Held::of(pid) {
                self.held.insert(pid, Helper { held: Arc::new(held), files: None, hidden: false, undecided: false });
            } else if let Some(one) = Individual::of(pid) {
                match post_mortem::zombie(pid) {
                    Some(end) if self.buried.insert(one) => {
                        survey.deaths.extend(death(pid, end, BTreeSet::new(), false))
                    }
                    Some(_) => {}
                    // It lives, and there is no descriptor for it.
                    None => self.too_many |= one.exists(),
                }
            }
        }
        self.ever_too_many |= self.too_many;
    }

    /// Descriptors that tell when one ends.
    pub fn descriptors(&self) -> Vec<Arc<Held>> {
        self.held.values().filter(|helper| !helper.undecided).map(|helper| helper.held.clone()).collect()
    }

    /// What is to be said of it when files are set aside: there were too many of them at some time.
    pub fn complaint(&self) -> Option<String> {
        let most = most();
        self.ever_too_many.then(|| {
            format!(
                "the ranks have started more processes than the agent can watch ({most}, by its limit of open files): while there are so many nothing that is written in $FT_CHECKPOINT_DIR counts as whole"
            )
        })
    }

    /// Whether one has ended of which more will be known soon.
    pub fn is_undecided(&self) -> bool {
        self.held.values().any(|helper| helper.undecided)
    }
}

fn most() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 2).unwrap_or(MOST).min(MOST)
}

/// What its end means for files; nothing when it ended well, or when it had time to see to them and was seen to have none open.
fn death(pid: i32, end: End, files: BTreeSet<u64>, hidden: bool) -> Option<Death> {
    let (how, sudden) = match end {
        End::Status(0) => return None,
        End::Status(status) if status & 0x7f == 0 => (format!("ended with status {}", status >> 8 & 0xff), false),
        End::Status(status) => {
            let signal = status & 0x7f;
            (format!("was ended by signal {signal}"), !ORDINARY.contains(&signal))
        }
        End::NotYet | End::Unknown => ("ended, how is not known (Linux 6.15 and later tell it)".to_string(), true),
    };
    let sudden = sudden || hidden;
    if !sudden && files.is_empty() {
        return None;
    }
    Some(Death { why: format!("process {pid}, which may have written it, {how}").into(), files, sudden })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command, Stdio};

    fn shell(script: &str) -> Child {
        let mut command = Command::new("bash");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let forks = crate::forks::one();
        let child = command.spawn().unwrap();
        drop(forks);
        child
    }

    /// Looks until the processes are as expected, for a while.
    fn until(helpers: &mut Helpers, root: &Child, done: impl Fn(&Helpers, &[Death]) -> bool) -> Vec<Death> {
        let roots = BTreeSet::from([root.id() as i32]);
        let mut deaths = Vec::new();
        for _ in 0..2000 {
            deaths.extend(helpers.survey(&roots, &BTreeSet::new()).deaths);
            if done(helpers, &deaths) {
                return deaths;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{deaths:?} {helpers:?}");
    }

    /// A shell whose child writes a file and ends like this; the deaths, and the file's inode.
    fn deaths_of(how: &str, path: &std::path::Path) -> (Vec<Death>, u64) {
        let script = format!("exec 2> /dev/null; (read; {how}) > '{}'; sleep 60", path.display());
        let mut root = shell(&script);
        let mut helpers = Helpers::default();
        let writes = |helper: &Helper| {
            let inode = std::fs::metadata(path).map_or(0, |meta| meta.ino());
            helper.files.as_ref().is_some_and(|files| files.contains(&inode))
        };
        until(&mut helpers, &root, |helpers, _| helpers.held.values().any(writes));
        drop(root.stdin.take());
        let deaths = until(&mut helpers, &root, |helpers, _| !helpers.held.values().any(writes));
        for pid in helpers.held.keys() {
            ft_sys::process::kill(*pid, libc::SIGKILL);
        }
        root.kill().unwrap();
        root.wait().unwrap();
        (deaths, std::fs::metadata(path).unwrap().ino())
    }

    #[test]
    fn the_end_of_a_process_of_which_nobody_tells_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert!(deaths_of("true", &path).0.is_empty(), "closed by a living one");
        let (deaths, inode) = deaths_of("kill -9 $BASHPID", &path);
        assert!(deaths.iter().any(|death| death.sudden && death.files.contains(&inode)), "{deaths:?}");
        assert!(deaths.iter().any(|death| death.why.ends_with("was ended by signal 9")), "{deaths:?}");
    }

    #[test]
    fn a_kill_for_memory_counts_however_late_a_look_comes_that_was_due() {
        let mut helpers = Helpers::default();
        let mut kills_since = |ago: Duration, rested: bool| {
            let count = ft_sys::oom::kills_around().unwrap();
            helpers.kills = Instant::now().checked_sub(ago).map(|at| (at, count.wrapping_sub(1)));
            if rested {
                helpers.rest();
            }
            helpers.survey(&BTreeSet::new(), &BTreeSet::new()).deaths.len()
        };
        let minute = Duration::from_secs(60);
        assert_eq!(
            [kills_since(minute, false), kills_since(minute, true), kills_since(Duration::ZERO, true)],
            [1, 0, 1]
        );
        assert_eq!(kills_since(minute, false), 1, "it has been looked since it rested");
    }

    #[test]
    fn only_who_ended_well_or_had_nothing_open_leaves_no_doubt() {
        let files = || BTreeSet::from([7]);
        assert!(death(1, End::Status(0), files(), false).is_none());
        assert!(death(1, End::Status(3 << 8), BTreeSet::new(), false).is_none());
        assert!(death(1, End::Status(3 << 8), files(), false).is_some_and(|death| !death.sudden));
        assert!(death(1, End::Status(6), BTreeSet::new(), false).is_some_and(|death| death.sudden));
        assert!(death(1, End::Status(libc::SIGPIPE), BTreeSet::new(), false).is_none());
        assert!(death(1, End::Status(libc::SIGPIPE), files(), false).is_some_and(|death| !death.sudden));
        assert!(death(1, End::Status(0), BTreeSet::new(), true).is_none());
        for end in [3 << 8, libc::SIGTERM] {
            let death = death(1, End::Status(end), BTreeSet::new(), true);
            assert!(death.is_some_and(|death| death.sudden), "nobody knows what it had open");
        }
        assert!(death(1, End::Unknown, BTreeSet::new(), false).is_some_and(|death| death.sudden), "an older kernel");
    }
}
