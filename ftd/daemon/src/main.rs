//! `ftd`: the node's daemon. One per node, root's, started by systemd.

mod agents;
mod askers;
mod birth;
mod carrier;
mod comebacks;
mod config;
mod control;
mod daemon;
mod dial;
mod drain;
mod elsewhere;
mod errand;
mod etcd;
mod frames;
mod groups;
mod home;
mod jobs;
mod kept;
mod link;
mod lock;
mod log;
mod looks;
mod metrics;
mod node;
mod own_jobs;
mod parts;
mod peers;
mod places;
mod records;
mod resume;
mod roll;
mod said;
mod scripts;
mod served;
mod service;
mod session;
mod socket;
mod state;
mod status;
mod steps;
mod strangers;
mod succession;
mod tls;
mod watch;

use clap::{Parser, Subcommand};
use config::Config;
use daemon::DaemonError;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Of what no new start can mend: the unit does not start it again.
const WRONG_CONFIG: u8 = 2;

/// Keeps a node's MPI jobs: without a command, it runs as the node's daemon until SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "ftd", version = ft_wire::release(), args_conflicts_with_subcommands = true)]
struct Options {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT)]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what is wrong with a configuration file, each mistake with its line; the status is 0 if nothing is.
    CheckConfig {
        /// The file.
        #[arg(value_name = "FILE", default_value = config::DEFAULT)]
        file: PathBuf,
    },
    /// Says how this node's daemon is.
    Status {
        /// The configuration file that names the control socket.
        #[arg(long, value_name = "FILE", default_value = config::DEFAULT)]
        config: PathBuf,
        /// The control socket, whatever the configuration says.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    ft_sys::process::die_of_faults();
    if let Some(status) = of_the_daemon(std::env::args_os().skip(1)) {
        return status;
    }
    let options = Options::parse();
    match options.command {
        None => run(&options.config),
        Some(Command::CheckConfig { file }) => match Config::load(&file) {
            Ok(config) => {
                for warning in config.warnings() {
                    ft_sys::log::say(format_args!("ftd: warning: {}: {warning}", file.display()));
                }
                print(&format!("{}: no mistakes\n", file.display()))
            }
            Err(error) => fail(&error, ExitCode::FAILURE),
        },
        Some(Command::Status { config, socket }) => tell_status(&config, socket),
    }
}

/// What the daemon starts of this program itself, with descriptors that it gives along: nobody else's commands, which nobody is to be told of.
fn of_the_daemon(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let command = words.next()?;
    let descriptors: Option<Vec<i32>> = words.map(|word| word.to_str()?.parse().ok()).collect();
    match (command.to_str()?, &descriptors?[..]) {
        (birth::COMMAND, &[link, memory]) => Some(ExitCode::from(birth::be(link, memory, None))),
        (birth::COMMAND, &[link, memory, task]) => Some(ExitCode::from(birth::be(link, memory, Some(task)))),
        (command, &[connection, memory, reports]) if errand::COMMANDS.contains(&command) => {
            Some(ExitCode::from(session::be([connection, memory, reports])))
        }
        _ => None,
    }
}

fn tell_status(config: &Path, socket: Option<PathBuf>) -> ExitCode {
    let (socket, wrong) = socket.map_or_else(|| Config::socket_of(config), |socket| (socket, None));
    if let Some(error) = wrong {
        fail(&error, ExitCode::FAILURE);
        let socket = socket.display();
        ft_sys::log::say(format_args!("ftd: the daemon is asked on {socket} all the same; --socket names another one"));
    }
    match status::ask(&socket) {
        Ok(status) => print(&status::text(&status)),
        Err(error) => fail(&error, ExitCode::FAILURE),
    }
}

fn run(file: &Path) -> ExitCode {
    // One heap and one thread: a daemon that mostly sleeps needs no more of either.
    ft_sys::process::one_heap();
    let config = match Config::load(file) {
        Ok(config) => config,
        Err(error) => return fail(&error, ExitCode::from(WRONG_CONFIG)),
    };
    let filter = log::begin(config.filter());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&DaemonError::Io(error), ExitCode::FAILURE),
    };
    let ended = runtime.block_on(daemon::run(config, &filter));
    ft_sys::log::say_what_was_dropped();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, ExitCode::FAILURE),
    }
}

/// Each sentence on a line of its own.
fn fail(error: &impl std::fmt::Display, status: ExitCode) -> ExitCode {
    error.to_string().lines().for_each(|line| ft_sys::log::say(format_args!("ftd: {line}")));
    status
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&format!("standard output cannot be written: {error}"), ExitCode::FAILURE),
    }
}
