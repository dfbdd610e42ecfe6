//! Ranks that would be jobs of their own: an MPI was loaded into them without ftd's preload (`env -u LD_PRELOAD`, a wrapper
//! that sets it anew, an empty environment), or past it, so that nobody tells this MPI what it belongs to, and it starts alone.
//!
//! What decides is the environment that a process was given: what every rank finds there ([`ft_wire::forlorn`]) lets no MPI start
//! alone, and with the preload in front of it, it will join. A process that was given both is served. One that was given less
//! is alone as soon as it has an MPI and means to use it. It runs all the same where `--ft-mpi` has said which MPI it is, and
//! the environment serves it from the start; but not where that was another MPI's. Processes that may not be looked at (file
//! capabilities, set-id bits) are not seen here; what it does holds for them as well.

mod loner;
mod program;
mod sight;

pub use loner::{Loner, forlorn, name, unreadable};

use ft_sys::proc::{Open, Stat, has_left, living, of, stat};
use ft_sys::process::{LastNumber, processor_time};
use ft_wire::{Flavour, Rank};
use program::Programs;
use sight::{Sight, Surroundings};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// What an MPI says of itself, in short: MPICH's is a page with tabs.
pub fn in_short(library: &str) -> String {
    let line = library.split(['\n', ',']).next().unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The looks take one part of so many of a processor at the most, however many ranks there are and however slow `/proc` is.
const SHARE: u32 = 50;

/// The shortest rest between two looks, when the newest program was started this long ago: an MPI that is loaded takes longer
/// than that to get going. Each look wakes the agent: where nothing was started for long there are fewer.
fn shortest_rest(age: Duration) -> Duration {
    Duration::from_millis(match age {
        _ if age < Duration::from_millis(300) => 5,
        _ if age < YOUNG => 40,
        _ => 100,
    })
}

/// So long a program is looked at each time: most load their MPI at once. Later the others have their turn as well, but
/// programs without MPI are not to be troubled for ever.
const YOUNG: Duration = Duration::from_secs(5);
/// How often a program is looked at that is older.
const SELDOM: Duration = Duration::from_millis(500);

/// How often those who have been looked at are asked whether they have called `exec` or ended, while nobody is forked.
const EXECS: Duration = Duration::from_millis(500);

/// A search that has found nothing to look for looks all the same after this time …
const ANEW: Duration = Duration::from_secs(10);
/// … or this one, where somebody is below the ranks who is not looked at: who becomes another by `exec` is seen then.
const ANEW_SOON: Duration = Duration::from_secs(2);

/// A process below a rank's wrapper, or the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Below {
    /// The rank.
    pub rank: Rank,
    /// The direct child of its shepherd.
    pub child: i32,
    /// Who has joined as the rank, and is no loner.
    pub joined: Option<i32>,
    /// The family that its environment serves from the start.
    pub served: Option<Flavour>,
}

/// Of so many processes it is seen without a thread for it whether something has changed.
const FEW: usize = 16;

/// What a process runs: it changes with `exec`.
#[derive(Debug)]
struct Image {
    key: Key,
    since: Instant,
    looked: Option<Instant>,
    seen: Instant,
    served: bool,
    /// Its `stat`, once it was asked whether it is still the same.
    stat: Option<Open>,
}

impl Image {
    fn new(key: Key, now: Instant) -> Image {
        Image { key, since: now, looked: None, seen: now, served: false, stat: None }
    }

    fn is_same(&mut self, pid: i32) -> bool {
        if self.stat.is_none() {
            self.stat = Open::new(&of(pid).join("stat"));
        }
        let shown = self.stat.as_mut().and_then(Open::stat).filter(|stat| !has_left(stat));
        shown.map_or_else(|| key(pid), |stat| Some(key_of(stat.starttime, &stat))) == Some(self.key)
    }

    /// Whether it may be alone, and is to be looked at.
    fn is_due(&self, now: Instant) -> bool {
        !self.served && (now - self.since < YOUNG || self.looked.is_none_or(|looked| now - looked >= SELDOM))
    }
}

/// When the process was started, and where its program and its stack lie: also without address randomisation one of them
/// changes, but where a program calls itself with the same environment.
type Key = [u64; 4];

fn key_of(started: u64, memory: &Stat) -> Key {
    [started, memory.startcode, memory.endcode, memory.startstack]
}

fn key(pid: i32) -> Option<Key> {
    let own = stat(&of(pid)).ok()??;
    let shows = if has_left(&own) { stat(&living(pid)).ok().flatten() } else { None };
    Some(key_of(own.starttime, shows.as_ref().unwrap_or(&own)))
}

/// Looks again and again at ranks of one world that have not joined, at a few each time, in turn.
#[derive(Debug)]
pub struct Search {
    /// Whose turn it is next.
    next: Rank,
    /// Processor time of the last look.
    cost: Duration,
    images: BTreeMap<i32, Image>,
    programs: Programs,
    /// When the newest of them was started.
    newest: Instant,
    still: Still,
    last: LastNumber,
}

/// While nobody forks, and nobody who is known calls `exec` or ends, there is nobody new, and nobody has to be looked for.
#[derive(Debug, Default)]
struct Still {
    /// The newest process or thread of the machine before all these looks.
    number: Option<i32>,
    /// Those whose processes were looked at.
    ranks: Vec<Below>,
    /// So many of them since then.
    looked: usize,
    /// When those who are known were asked last whether they are still the same.
    asked: Option<Instant>,
    /// Somebody was passed over.
    passed_over: bool,
}

impl Still {
    /// These are about to be looked at.
    fn begin(&mut self, ranks: &[Below]) {
        let number = ft_sys::process::last_number();
        if number.is_none() || number != self.number || self.ranks != ranks {
            *self = Still { number, ranks: ranks.to_vec(), ..Still::default() };
        }
    }

    /// Whether all have been looked at. A number is given a moment before its process is seen below its parent: so all have, twice.
    fn is_whole(&self) -> bool {
        self.looked >= 2 * self.ranks.len()
    }
}

impl Default for Search {
    fn default() -> Search {
        let (images, programs, still) = (BTreeMap::new(), Programs::default(), Still::default());
        Search {
            next: 0,
            cost: Duration::ZERO,
            images,
            programs,
            newest: Instant::now(),
            still,
            last: LastNumber::default(),
        }
    }
}

impl Search {
    /// Whether nothing was started for long, and looks are as rare as they become.
    pub fn has_grown_old(&self) -> bool {
        self.rest() == shortest_rest(Duration::MAX)
    }

    /// How long to rest after the last look.
    pub fn rest(&self) -> Duration {
        shortest_rest(self.newest.elapsed()).max(self.cost * SHARE)
    }

    /// Whether nothing that could make one of them alone has happened since all were looked at. It is seen in no time, or not at all.
    pub fn is_still(&mut self) -> bool {
        let now = Instant::now();
        let whole = self.images.len() <= FEW && self.still.is_whole() && self.still.number.is_some();
        if !whole || self.images.values().any(|image| image.is_due(now)) {
            return false;
        }
        if self.still.asked.is_none_or(|asked| now - asked >= EXECS) {
            self.still.asked = Some(now);
            if !self.images.iter_mut().all(|(pid, image)| image.is_same(*pid)) {
                return false;
            }
        }
        self.last.now() == self.still.number
    }

    /// For so long it need not look, as long as it [is still](Self::is_still).
    pub fn anew(&self) -> Duration {
        if self.still.passed_over { ANEW_SOON } else { ANEW }
    }

    /// Looks at as many of these ranks as may be looked at before the shortest rest, and at one at least. Returns one that has
    /// loaded an MPI alone, itself or in a process below it. With [`Below::served`] (the environment serves that family from the start)
    /// it is one that is certainly of another family, or has another environment.
    pub fn look(&mut self, ranks: &[Below], preload: &Path) -> Option<Loner> {
        let preload = preload.file_name()?;
        let (begun, enough) = (processor_time(), shortest_rest(self.newest.elapsed()) / SHARE);
        let (before, from) = ranks.split_at(ranks.partition_point(|below| below.rank < self.next));
        self.cost = Duration::ZERO;
        self.still.begin(ranks);
        for below in from.iter().chain(before) {
            self.still.looked += 1;
            let found = self.find(*below, Surroundings { preload, served: below.served });
            self.next = below.rank + 1;
            self.cost = processor_time().saturating_sub(begun);
            if found.is_some() || self.cost >= enough {
                return found;
            }
        }
        self.images.retain(|_, image| image.seen.elapsed() < YOUNG);
        None
    }

    fn find(&mut self, below: Below, around: Surroundings<'_>) -> Option<Loner> {
        let mut passed_over = false;
        let all = ft_sys::process::tree_without(below.child, |pid| {
            let of_ftd = is_of_ftd(pid);
            passed_over |= of_ftd;
            of_ftd
        });
        self.still.passed_over |= passed_over;
        let mut strangers = all.into_iter().filter(|pid| below.joined != Some(*pid));
        strangers.find_map(|pid| self.judge(below.rank, pid, around))
    }

    fn judge(&mut self, rank: Rank, pid: i32, around: Surroundings<'_>) -> Option<Loner> {
        let key_before = key(pid)?;
        let now = Instant::now();
        let image = self.images.entry(pid).or_insert_with(|| Image::new(key_before, now));
        if image.key != key_before {
            *image = Image::new(key_before, now);
        }
        image.seen = now;
        self.newest = self.newest.max(image.since);
        if !image.is_due(now) {
            return None;
        }
        image.looked = Some(now);
        let sight = sight::look(rank, pid, around, &mut self.programs);
        // What was read may be of two programs, or of one who dies.
        if key(pid) != Some(key_before) {
            return None;
        }
        match sight {
            Sight::Innocent => None,
            Sight::Served => {
                image.served = true;
                None
            }
            Sight::Alone(loner) => (!ft_sys::death::is_dying(pid).unwrap_or(true)).then_some(loner),
        }
    }
}

/// Whether this is a launcher or a shepherd of a job within the job: all below it are that job's, which looks at them itself.
/// (Also a shepherd of this job that is about to become the rank.)
fn is_of_ftd(pid: i32) -> bool {
    let program = std::fs::read_link(ft_sys::proc::living(pid).join("exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().as_encoded_bytes();
    // It may have been installed anew meanwhile.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    name == b"ftrun" || name == b"ft-shepherd"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_is_forlorn() {
        let of = |family| forlorn(family).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(of(Some(Flavour::OpenMpi)), ["MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS"]);
        assert_eq!((of(Some(Flavour::Mpich)).len(), of(None).len()), (2, 4));
        assert!(of(None).iter().all(|name| !name.starts_with("PMI_")));
    }

    /// A command that goes on with each line, below nobody, and a search that has seen all of it.
    fn searched(script: &str) -> (std::process::Child, [Below; 1], Search) {
        let forks = crate::forks::one();
        let mut command = std::process::Command::new("bash");
        let child = command.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        drop(forks);
        let ranks = [Below { rank: 0, child: child.id() as i32, joined: None, served: None }];
        let mut search = Search::default();
        eventually(|| is_bash(ranks[0].child), "bash");
        look(&mut search, &ranks);
        assert!(!search.is_still(), "all are to be looked at twice");
        let quiet = || {
            look(&mut search, &ranks);
            grow_old(&mut search);
            search.is_still()
        };
        eventually(quiet, "nothing to look for");
        (child, ranks, search)
    }

    fn is_bash(pid: i32) -> bool {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("bash"))
    }

    fn look(search: &mut Search, ranks: &[Below]) {
        assert!(search.look(ranks, Path::new("libft_preload.so")).is_none());
    }

    /// Who was seen is so no more because of its youth, and was looked at just now; whether it is another by now is asked next.
    fn grow_old(search: &mut Search) {
        let now = Instant::now();
        search.still.asked = None;
        search.newest = now.checked_sub(YOUNG).unwrap();
        for image in search.images.values_mut() {
            (image.since, image.looked) = (now.checked_sub(YOUNG).unwrap(), Some(now));
        }
    }

    fn eventually(mut what: impl FnMut() -> bool, text: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < until, "waited in vain for {text}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn line(child: &mut std::process::Child) {
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    }

    #[test]
    fn who_forks_is_looked_at_again() {
        let (mut child, ranks, mut search) = searched("read; sleep 100 & read; kill -KILL $!");
        assert_eq!(shortest_rest(search.newest.elapsed()), Duration::from_millis(100));
        line(&mut child);
        eventually(|| !ft_sys::process::children(ranks[0].child).is_empty(), "its child");
        assert!(!search.is_still());
        look(&mut search, &ranks);
        assert!(search.images.len() == 2 && !search.is_still());
        assert_eq!(shortest_rest(search.newest.elapsed()), Duration::from_millis(5));
        line(&mut child);
        child.wait().unwrap();
    }

    #[test]
    fn who_calls_exec_or_ends_is_looked_at_again_though_nobody_forks() {
        let (mut child, ranks, mut search) = searched("read; exec sleep 100");
        let pid = ranks[0].child;
        // Whom nobody has to look at again.
        search.images.values_mut().for_each(|image| image.served = true);
        line(&mut child);
        eventually(|| !is_bash(pid) && key(pid) != Some(search.images[&pid].key), "another program");
        // Whatever else has been started on this machine.
        let soon = || {
            search.still.number = ft_sys::process::last_number();
            !search.is_still()
        };
        eventually(soon, "the question who has called exec");
        assert!(search.still.asked.is_some());
        look(&mut search, &ranks);
        assert_eq!(key(pid), Some(search.images[&pid].key));
        let quiet = || {
            grow_old(&mut search);
            search.still.number = ft_sys::process::last_number();
            search.still.looked = 2;
            search.is_still()
        };
        eventually(quiet, "nothing to look for");
        child.kill().unwrap();
        child.wait().unwrap();
        let soon = || {
            search.still.number = ft_sys::process::last_number();
            !search.is_still()
        };
        eventually(soon, "the question who has ended");
    }

    #[test]
    fn where_somebody_is_passed_over_it_is_looked_sooner() {
        let mut search = Search::default();
        assert_eq!(search.anew(), ANEW);
        search.still.passed_over = true;
        assert_eq!(search.anew(), ANEW_SOON);
    }

    #[test]
    fn who_may_load_an_mpi_later_is_looked_at_now_and_then() {
        let (mut child, _, mut search) = searched("read");
        let image = search.images.values_mut().next().unwrap();
        image.looked = Some(Instant::now().checked_sub(SELDOM).unwrap());
        search.still.number = ft_sys::process::last_number();
        assert!(!search.is_still());
        line(&mut child);
        child.wait().unwrap();
    }

    #[test]
    fn every_rank_has_its_turn_and_all_looks_together_their_share() {
        let child = std::process::id() as i32;
        let ranks: Vec<Below> = (0..500).map(|rank| Below { rank, child, joined: None, served: None }).collect();
        let preload = Path::new("libft_preload.so");
        let mut search = Search::default();
        let (begun, mut rests, mut looks) = (processor_time(), Duration::ZERO, 0);
        loop {
            let from = search.next;
            assert!(search.look(&ranks, preload).is_none());
            rests += search.rest();
            looks += 1;
            // Round once.
            if search.next <= from {
                break;
            }
        }
        assert!(looks > 2, "500 maps were read in {looks} looks");
        let used = processor_time() - begun;
        assert!(used < rests / (SHARE / 2), "{used:?} of a processor with rests of {rests:?}");
        assert!(search.look(&[], preload).is_none() && search.cost == Duration::ZERO);
    }
}
