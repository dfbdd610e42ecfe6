//! What helpers that died have left: it is killed, and what the ranks of a dead shepherd had printed through filters of their
//! own is not lost for that: a filter that such a shepherd had stopped goes on.

use ft_sys::filters;
use ft_sys::individual::Individual;
use ft_sys::sweep::Sweep;
use ft_sys::timescale::scaled;
use nix::libc::SIGCONT;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Filters have so long to pass on what they have, as in any recovery.
const FILTERS: Duration = Duration::from_secs(2);

/// The orphans, until they are gone.
#[derive(Debug, Default)]
pub struct Orphans {
    slot: filters::Slot,
    /// Those that a shepherd may have stopped, and whom it cannot continue any more.
    stopped: BTreeSet<Individual>,
    sweep: Sweep,
    spared: Vec<i32>,
}

impl Orphans {
    /// Of shepherds that have noted what they knew in the job's directory.
    pub fn of_job(job_dir: &Path) -> Orphans {
        let noted = ft_sys::notes::read(job_dir);
        // It stops those above a rank before all else.
        let stopped = noted.stopped.union(&noted.piping.above).copied().collect();
        let slot = filters::Slot { piping: noted.piping, ..filters::Slot::default() };
        Orphans { slot, stopped, ..Orphans::default() }
    }

    /// How long it has been going on.
    pub fn age(&self) -> Duration {
        self.sweep.age()
    }

    /// Kills what it may; true when nobody is left but `own` and what is below those. And a sentence, once, when the time of
    /// filters is over.
    pub fn round(&mut self, own: &[i32]) -> (bool, Option<String>) {
        let mut sentence = None;
        let has_time = self.age() < scaled(FILTERS);
        if !has_time && !self.spared.is_empty() {
            let named = filters::late(&std::mem::take(&mut self.spared), &self.slot);
            let seconds = scaled(FILTERS).as_secs_f32();
            sentence = Some(format!(
                "killed {seconds} s after the death of their shepherd, and what they had not printed is lost: {named}"
            ));
        }
        let (spared, slot) = (&mut self.spared, &mut self.slot);
        let gone = self.sweep.round_sparing(own, |found| {
            *spared = if has_time { filters::filters(found, slot) } else { Vec::new() };
            spared.clone()
        });
        // What was not to go on has been killed.
        let spared: BTreeSet<Individual> = self.spared.iter().filter_map(|pid| Individual::of(*pid)).collect();
        for one in spared.intersection(&self.stopped) {
            one.hold().inspect(|process| drop(process.signal(SIGCONT)));
        }
        self.stopped.retain(|one| !spared.contains(one));
        (gone && self.spared.is_empty(), sentence)
    }
}
