//! Who of a world has called `MPI_Init`, which waits for all of them, and with which MPI.

use crate::ids::Process;
use std::collections::BTreeMap;
use std::fmt;

/// MPIs that understand each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// They speak PMIx.
    OpenMpi,
    /// They speak PMI.
    Mpich,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH or a relative of it",
        })
    }
}

/// The lowest rank of each family that is known to have called it. Only gets more within an epoch, but for a lower rank in a
/// higher one's place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Joined(BTreeMap<Family, Process>);

impl Joined {
    /// Whether nobody has.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more has.
    pub fn insert(&mut self, family: Family, process: Process) {
        let known = self.0.entry(family).or_insert(process);
        *known = process.min(*known);
    }

    /// Adds what another knows.
    pub fn merge(&mut self, other: &Joined) {
        other.0.iter().for_each(|(family, process)| self.insert(*family, *process));
    }

    /// One of each family, the lowest rank first, where there is more than one family: they wait for each other for ever.
    pub fn mixed(&self) -> Option<Vec<(Process, Family)>> {
        let mut each: Vec<_> = self.0.iter().map(|(family, process)| (*process, *family)).collect();
        each.sort_unstable();
        (each.len() > 1).then_some(each)
    }
}

impl FromIterator<(Family, Process)> for Joined {
    fn from_iter<T: IntoIterator<Item = (Family, Process)>>(all: T) -> Self {
        let mut joined = Joined::default();
        all.into_iter().for_each(|(family, process)| joined.insert(family, process));
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Rank, WorldId};

    #[test]
    fn the_lowest_rank_of_each_family_is_named() {
        let process = |rank| Process::primary(WorldId(1), Rank(rank));
        let mut joined: Joined = [(Family::Mpich, process(3)), (Family::Mpich, process(1))].into_iter().collect();
        assert_eq!(joined.mixed(), None);
        joined.merge(&[(Family::OpenMpi, process(2)), (Family::Mpich, process(4))].into_iter().collect());
        assert_eq!(joined.mixed(), Some(vec![(process(1), Family::Mpich), (process(2), Family::OpenMpi)]));
        joined.merge(&[(Family::OpenMpi, process(0))].into_iter().collect());
        assert_eq!(joined.mixed().unwrap()[0], (process(0), Family::OpenMpi));
    }
}
