//! `ft-agent`: one per job and node, the job's user. Executes epochs, serves PMI-1, holds the checkpoint arenas.
//!
//! It is started by the launcher, never by hand: `FT_LAUNCHER_FD` names its end of the launcher link, `FT_LISTEN_FD` the
//! listening socket that shepherds and ranks dial; the launcher made both, so that dials during an agent's death wait for
//! the next agent instead of failing.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.

mod accept;
mod act;
mod alarm;
mod arenas;
mod aside;
mod asker;
mod below;
mod between;
mod binding;
mod checkpoints;
mod clients;
mod commits;
mod config;
mod costs;
mod door;
mod driver;
mod elsewhere;
mod environment;
mod epochs;
mod error;
mod events;
mod fences;
mod files;
mod filtered;
#[cfg(test)]
mod forks;
mod full_places;
mod hear;
mod injections;
mod input;
mod job;
mod layout;
mod lease;
mod leavers;
mod library;
mod link;
mod lone;
mod loners;
mod names;
mod ordinary;
mod orphan;
mod outlet;
mod panicked;
mod partners;
mod pmi;
mod pmix;
mod pmix_host;
mod published;
mod ready;
mod report;
mod restart_files;
mod rooms;
mod shepherds;
mod ship_host;
mod slurm;
mod timer;
mod together;
mod too_long;
mod unheard;
mod versions;
mod view;
mod wait;
mod watcher;
mod ways;
mod wish;
mod world;
mod worlds;

use driver::{Driver, Handed};
use error::AgentError;
use ft_wire::launcher::ToAgent;
use input::Input;
use link::Incoming;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

/// Room for so many descriptors is there from the beginning: enough for some hundred ranks, and 32 KiB of the kernel's.
const DESCRIPTORS: u64 = 4096;

/// So many it may have, where the hard limit allows it: it holds one for each process that the ranks have started.
const MOST_DESCRIPTORS: u64 = 2 * DESCRIPTORS;

/// ftrun reads in this file which build it is of.
#[used]
static BUILD: fn() = ft_sys::build::keep;

fn main() -> ExitCode {
    ft_sys::process::die_of_faults();
    ft_sys::process::one_heap();
    ft_sys::process::allow_descriptors(MOST_DESCRIPTORS);
    // Without it, jobs only start more slowly.
    let _ = ft_sys::process::make_room_for_descriptors(DESCRIPTORS);
    ft_sys::process::lift_file_size_limit();
    ft_sys::log::begin("ft-agent").unwrap_or_else(|error| ft_sys::log::say(format_args!("ftd: {error}")));
    tracing_subscriber::fmt()
        .with_env_filter(what_to_log())
        .with_writer(|| ft_sys::log::Logged)
        .with_ansi(false)
        .log_internal_errors(false)
        .init();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&AgentError::Io(error)),
    };
    // As a task among the others: what these tell it costs no look at all descriptors before it goes on.
    let result = runtime.block_on(async { tokio::spawn(work()).await });
    let result = result.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Ok(()),
    });
    // Threads that hash or sweep must not hold up the end.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    ft_sys::log::say_what_was_dropped();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// One thread that hears, answers and decides. Others work behind it, for long at times: they take no ranks' processors.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().on_thread_start(ft_sys::priority::put_back).build()
}

/// What `FT_LOG` says, or errors only. ft-pmix reads the same variable and leaves the complaint to the agent.
fn what_to_log() -> tracing_subscriber::EnvFilter {
    match std::env::var_os("FT_LOG").filter(|text| !text.is_empty()) {
        None => "error".into(),
        Some(text) => tracing_subscriber::EnvFilter::try_new(text.to_string_lossy()).unwrap_or_else(|error| {
            ft_sys::log::say(format_args!(
                "ftd: FT_LOG: '{}' is not what can be logged ({error}): errors only",
                text.to_string_lossy()
            ));
            "error".into()
        }),
    }
}

fn fail(error: &AgentError) -> ExitCode {
    ft_sys::log::say(format_args!("ftd: ft-agent: {error}"));
    ExitCode::FAILURE
}

fn inherited(variable: &'static str) -> Result<OwnedFd, AgentError> {
    let number = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    number.and_then(|n| ft_sys::process::take_inherited_fd(n).ok()).ok_or(AgentError::NoDescriptor(variable))
}

async fn work() -> Result<(), AgentError> {
    let launcher = std::os::unix::net::UnixStream::from(inherited("FT_LAUNCHER_FD")?);
    let hang_up = launcher.try_clone().map_err(AgentError::Io)?;
    let listener = std::os::unix::net::UnixListener::from(inherited("FT_LISTEN_FD")?);
    listener.set_nonblocking(true).map_err(AgentError::Io)?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(AgentError::Io)?;

    ft_sys::gate::reach("agent.born", None);
    let (_, launcher, mut incoming) = Incoming::open(launcher).await.map_err(AgentError::NoJob)?;
    let (spec, slots, before, handed) = match incoming.next::<ToAgent>().await.map_err(AgentError::NoJob)? {
        (ToAgent::Job { spec, slots, before }, fds) => {
            let handed = Handed::of(&spec, fds).ok_or(AgentError::WrongFirst)?;
            (spec, slots, before, handed)
        }
        _ => return Err(AgentError::WrongFirst),
    };
    ft_sys::gate::reach("agent.described", None);
    spec.nice.into_iter().for_each(ft_sys::priority::raised_from);
    let (inputs, queue) = tokio::sync::mpsc::unbounded_channel();
    orphan::clean_up_after_launcher(hang_up, spec.job_dir.clone()).map_err(AgentError::Io)?;
    let ears = unheard::Ears::default();
    let looks = wait::Looks::new().map_err(AgentError::Io)?;
    let mut driver = Driver::new(spec, handed, launcher, (&inputs, &ears, looks.clone()), before)?;

    let from_launcher = inputs.clone();
    tokio::spawn(async move {
        match accept::relay(incoming, &from_launcher, |message, _| Input::Launcher(Box::new(message))).await {
            Err(error) if error.is_trouble() => {
                ft_sys::log::say(format_args!("ftd: ft-agent: the link to ftrun: {error}"))
            }
            _ => {}
        }
        let _ = from_launcher.send(Input::LauncherClosed);
    });
    tokio::spawn(accept::accept(listener, inputs, ears));
    tokio::spawn(looks.often());
    driver.run(slots, queue).await;
    // The exit gives the arenas back. Who looks at this process then sees one that has ended, and not one that hangs.
    std::mem::forget(driver);
    Ok(())
}
