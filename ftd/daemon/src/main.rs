//! `ftd`: the node's daemon. One per node, root's, started by systemd.

mod agents;
mod askers;
mod birth;
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
mod link;
mod lock;
mod log;
mod looks;
mod members;
mod metrics;
mod node;
mod orders;
mod own_jobs;
mod parts;
mod peers;
mod places;
mod records;
mod relay;
mod resume;
mod roll;
mod scripts;
mod service;
mod session;
mod socket;
mod state;
mod status;
mod steps;
mod strangers;
mod tls;
mod told;
mod unpassed;

use clap::{Parser, Subcommand};
use config::{Config, ConfigError};
use daemon::DaemonError;
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
    /// What the daemon starts for a part of a job: becomes the job's user, and ftrun.
    #[command(name = birth::COMMAND, hide = true)]
    StartPart {
        /// The descriptor of the link.
        link: i32,
        /// The descriptor of what is to be started.
        memory: i32,
        /// The descriptor of a process of the step of Slurm's in which it is to live.
        task: Option<i32>,
    },
    /// What the daemon starts for a connection of a job's.
    #[command(name = errand::COMMAND, hide = true)]
    Serve {
        /// The descriptor of the connection.
        connection: i32,
        /// The descriptor of what is to be known.
        memory: i32,
        /// The descriptor on which it is said how it goes.
        reports: i32,
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
        Some(Command::StartPart { link, memory, task }) => ExitCode::from(birth::be(link, memory, task)),
        Some(Command::Serve { connection, memory, reports }) => {
            ExitCode::from(session::be([connection, memory, reports]))
        }
        Some(Command::Status { config, socket }) => tell_status(&config, socket),
    }
}

fn tell_status(config: &Path, socket: Option<PathBuf>) -> ExitCode {
    let socket = match socket.map_or_else(|| Config::socket_of(config), Ok) {
        Ok(socket) => socket,
        Err(error @ ConfigError::File { .. }) => {
            return fail(&format!("{error}; --socket names the control socket without it"), ExitCode::FAILURE);
        }
        Err(error) => return fail(&error, ExitCode::FAILURE),
    };
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
