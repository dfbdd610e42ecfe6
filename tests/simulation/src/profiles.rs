//! Named mixes of faults; each draws a schedule from a seed.

use crate::rng::Rng;
use crate::setup::Setup;

/// Whether today's core passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Every seed passes.
    Holds,
    /// Some seeds do not, and this is why; the complaint contains the second.
    Fails(&'static str, &'static str),
}

/// A named mix of faults.
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What it does, one line.
    pub about: &'static str,
    /// Whether today's core passes.
    pub known: Known,
    draw: fn(&mut Rng, &mut Setup),
}

impl Profile {
    /// The schedule of this seed.
    pub fn setup(&self, seed: u64) -> Setup {
        let part = self.name.bytes().fold(0xf7d, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let mut rng = Rng::of(seed, part);
        let mut setup = Setup { seed, ..Setup::default() };
        (self.draw)(&mut rng, &mut setup);
        setup
    }
}

/// All profiles.
pub static ALL: &[Profile] = &[Profile { name: "calm", about: "nothing happens", known: Known::Holds, draw: calm }];

/// The profile of this name.
pub fn named(name: &str) -> Option<&'static Profile> {
    ALL.iter().find(|profile| profile.name == name)
}

fn calm(_: &mut Rng, setup: &mut Setup) {
    setup.promises.ends_well = true;
}
