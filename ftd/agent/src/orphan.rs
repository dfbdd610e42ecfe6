//! The launcher's death ends the job, whatever the agent is doing at that moment.

use ft_sys::job_dir::Proven;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// How long the driver has to notice and to end in order.
const GRACE: Duration = Duration::from_millis(500);

/// Watches the launcher link on a thread of its own. When it hangs up and the driver does not end the process by itself,
/// because it is busy or stands at a gate, removes what the job has on this machine and ends the process; `ft-pmix` dies
/// with it, and the shepherds see the launcher's death on their own.
///
/// # Errors
/// When the thread cannot be started.
pub fn clean_up_after_launcher(launcher: UnixStream, job_dir: PathBuf) -> io::Result<()> {
    let mut litter = ft_sys::litter::Litter::of_job(&job_dir);
    let directory = Proven::recognise(&job_dir);
    std::thread::Builder::new().name("launcher-watch".into()).spawn(move || {
        // No event is asked for: POLLHUP comes unasked.
        loop {
            let heard = poll(&mut [PollFd::new(launcher.as_fd(), PollFlags::empty())], PollTimeout::NONE);
            if heard.is_err_and(|error| error != nix::errno::Errno::EINTR) {
                // Memory is short for a moment; nobody else would notice a launcher that dies while the driver is busy.
                std::thread::sleep(GRACE);
            }
            if hung_up(&launcher) {
                litter.read(&job_dir);
                std::thread::sleep(GRACE);
                // A launcher that lives has only given this agent up.
                if let Some(directory) = &directory
                    && let Some(_held) = directory.wait_abandoned(GRACE)
                {
                    ft_sys::stray::end_strays(directory);
                    litter.read(&job_dir);
                    // There is nobody left to tell what stays.
                    litter.sweep(ft_sys::litter::End::Killed);
                    directory.group().inspect(|group| group.remove(GRACE));
                    directory.remove(GRACE);
                }
                std::process::exit(1);
            }
        }
    })?;
    Ok(())
}

fn hung_up(launcher: &UnixStream) -> bool {
    let mut waited = [PollFd::new(launcher.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    poll(&mut waited, PollTimeout::ZERO).is_ok() && waited[0].revents().is_some_and(|events| events.intersects(gone))
}
