//! Processes of a job that no parent of ftd's is left to find: they have left their session, their shepherd was killed and
//! so was the launcher, and the kernel gave them to somebody else. What proves that they are the job's is that their
//! shepherd noted them ([`notes`](crate::notes)), that they stand below such a one, or their [cgroup](crate::cgroup). What a
//! process has in its environment proves nothing: a batch script has it too that a rank's terminal was left in.

use crate::death::is_past_user_code;
use crate::individual::{Held, Individual, ancestors};
use crate::job_dir::Proven;
use crate::notes;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long they are looked for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks in a row that must find nothing: one that forks and ends can be missed by a single one.
const QUIET: u32 = 3;

/// Kills all that is proven to be of this job, until none is found. To be called only when the launcher of that job is dead.
pub fn end_strays(job: &Proven) {
    if !job.is_of_this_system() {
        return;
    }
    // Numbers are those of one name space of processes and of one run of the machine; so are these of its cgroups.
    let group = job.group();
    let noted = notes::read(job.path());
    for keeper in noted.keepers.iter().filter_map(|keeper| keeper.hold()) {
        // One that was stopped does its own part when it runs.
        let _ = keeper.signal(libc::SIGCONT);
    }
    // Who cleans up may have been started by what is left: from a terminal that a rank opened.
    let own = ancestors(std::process::id() as i32);
    let mut known: BTreeSet<Individual> = noted.below.into_iter().filter(|one| !own.contains(&one.pid)).collect();
    let until = Instant::now() + PATIENCE;
    let mut quiet = 0;
    while quiet < QUIET && Instant::now() < until {
        let populated = group.as_ref().is_some_and(|group| {
            group.kill();
            group.is_populated()
        });
        quiet = if end_found(&mut known, &own) || populated { 0 } else { quiet + 1 };
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One look; whether it found any that can still do something.
fn end_found(known: &mut BTreeSet<Individual>, own: &[i32]) -> bool {
    let mut found = false;
    let mut todo: Vec<Individual> = known.iter().copied().collect();
    while let Some(one) = todo.pop() {
        let Some(held) = one.hold() else { continue };
        let more = one.children().into_iter().filter(|child| !own.contains(&child.pid));
        todo.extend(more.filter(|child| known.insert(*child)));
        found |= kill(&held);
    }
    known.retain(|one| one.exists());
    found
}

fn kill(held: &Held) -> bool {
    !is_past_user_code(held.identity.pid).unwrap_or(true) && held.signal(libc::SIGKILL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Notes;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn what_was_noted_and_what_is_below_it_ends_and_what_has_the_environment_stays() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let directory = root.path().join("job");
        crate::job_dir::tests::stated(&directory);
        let socket = directory.join(ft_wire::AGENT_SOCKET);
        let mut noted = Command::new("sh").args(["-c", "env -i setsid sleep 60 & wait"]).spawn().unwrap();
        let shell = Individual::of(noted.id() as i32).unwrap();
        let below = loop {
            if let [below] = shell.children()[..] {
                break below;
            }
        };
        // Only the shell, and a number that another process has now.
        let mut other = Command::new("sleep").arg("60").env("FT_SOCKET", &socket).spawn().unwrap();
        let reused = Individual { start: 1, ..Individual::of(other.id() as i32).unwrap() };
        Notes::of(&directory, 0, [shell, reused]);
        end_strays(&Proven::recognise(&directory).unwrap());
        assert_eq!(noted.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(is_past_user_code(below.pid).unwrap());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
