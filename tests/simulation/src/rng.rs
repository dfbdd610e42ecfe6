//! splitmix64: the whole randomness of a run. Each part of the cluster draws from a stream of its own, so that a fault
//! that is left out does not change what the others meet.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `part` in the run of `seed`.
    pub fn of(seed: u64, part: u64) -> Self {
        let mut mixed = Rng(seed ^ part.wrapping_mul(0x2545_f491_4f6c_dd1d));
        Rng(mixed.draw())
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From `low` to `high`, `high` included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low + 1)
    }

    /// True so often in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.draw() % 1000 < per_mille
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.draw() % of.len() as u64) as usize]
    }
}

/// The finaliser of splitmix64.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
