//! A direct child that leaves well before its rank has joined: `setsid ./app`, `./app & exit`.
//!
//! Under `mpirun` the program runs on. Here it is killed with its slot, unless what the child has left behind is to be a rank:
//! that is known when it has loaded an MPI, or joins.

use super::*;

/// What is left behind has so long to load an MPI. Most programs do at once; what has none is not to hold up the job's end.
const EARLY: Duration = Duration::from_secs(2);

impl Slot {
    /// Who stands for the direct child that ended well and left somebody behind, while it may be that a rank is among them.
    pub(super) fn early_heir(&self, child: &Child, status: Status) -> Option<Child> {
        let undecided = child.early.is_some();
        let first = child.wrapper.unwrap_or(status);
        if child.is_rank || self.joined.is_some() || first.as_raw() != 0 || (status.as_raw() != 0 && !undecided) {
            return None;
        }
        let left = ft_sys::process::children(std::process::id() as i32);
        let pid = left.into_iter().find(|pid| !ft_sys::death::is_past_user_code(*pid).unwrap_or(true))?;
        let early = child.early.or_else(|| Some(job_time::now() + scaled(EARLY)));
        Some(Child { pid, wrapper: Some(first), early, stands_in: true, ..*child })
    }

    /// The first who was left may be somebody else, a monitor for example, whose end nobody waits for: who stands above the rank
    /// that joins is the direct child.
    pub(super) fn heir_of_stand_in(&mut self, rank: i32) -> Option<ToAgent> {
        let child = self.child.as_mut().filter(|child| child.stands_in)?;
        let heir = ft_sys::process::child_above(rank)?;
        child.stands_in = false;
        if child.pid == heir {
            return None;
        }
        child.pid = heir;
        // Nobody has ended now.
        Some(ToAgent::Orphaned { world: child.world, rank: child.rank, pid: 0, heir })
    }

    /// Whether it is not known yet if a rank comes.
    pub fn is_undecided(&self) -> bool {
        self.child.as_ref().is_some_and(|child| child.early.is_some())
    }

    /// Decides that, when it can be decided: the slot is the rank's, or its child has ended as it said.
    pub fn decide(&mut self) -> Vec<ToAgent> {
        let Some((world, rank, status)) = self.decided() else { return Vec::new() };
        // The one who ended was named before; the other one did not end well.
        let end = ToAgent::Exited { world, rank, pid: 0, status, oom: false, cpu_limit: false, waited: false };
        vec![ToAgent::LeftAlone { world, rank }, end]
    }

    /// The child that has ended as it said, and how.
    fn decided(&mut self) -> Option<(World, Rank, i32)> {
        let until = self.child.as_ref()?.early?;
        // Who may join may also end before the agent's word on it is here, and then nobody is to be waited for.
        let (joined, comes) = (self.joined.is_some(), || descendants().into_iter().any(may_join));
        if joined || comes() {
            let early = (!joined).then(|| job_time::now() + scaled(EARLY));
            self.child.iter_mut().for_each(|child| child.early = early);
            return None;
        }
        let child = self.child.take_if(|_| job_time::now() >= until)?;
        let Child { world, rank, wrapper, .. } = child;
        if self.leaving.is_none() {
            self.leave(Leaving::new(world, Left::All(None)));
        }
        Some((world, rank, wrapper.map_or(0, Status::as_raw)))
    }
}

fn descendants() -> Vec<i32> {
    ft_sys::process::descendants(std::process::id() as i32)
}

/// Whether a process has loaded an MPI, or the checkpoint library: a file of that name, wherever it lies.
fn may_join(pid: i32) -> bool {
    const LIBRARIES: [&[u8]; 2] = [b"libmpi", b"libftd_client"];
    let map = ft_sys::proc::read(&ft_sys::proc::living(pid).join("maps")).ok().flatten().unwrap_or_default();
    let name = |line: &[u8]| line.iter().rposition(|byte| *byte == b'/').map(|at| at + 1);
    let is_one =
        |line: &[u8]| name(line).is_some_and(|at| LIBRARIES.iter().any(|library| line[at..].starts_with(library)));
    map.split(|byte| *byte == b'\n').any(is_one)
}
