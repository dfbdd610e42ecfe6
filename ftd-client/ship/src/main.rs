//! `ft-ship`: hosts libfabric for one agent. Started by it, and worth nothing: another one takes its place.

use ft_ship::{ServeError, serve};
use ft_sys::channel::Channel;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Names the descriptor of the socket to the agent.
const SOCKET: &str = "FT_SHIP_FD";

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{SOCKET} is not set; ft-ship is started by ft-agent")]
    Variable,
    #[error("{SOCKET}: {0}")]
    Socket(std::io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// ftrun reads in this file which build it is of.
#[used]
static BUILD: fn() = ft_sys::build::keep;

fn main() -> std::process::ExitCode {
    ft_sys::process::die_of_faults();
    ft_sys::priority::put_back_as_told();
    ft_ship::set_environment();
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => {
            ft_sys::log::say(format_args!("ft-ship: {failure}"));
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let number = std::env::var(SOCKET).ok().and_then(|number| number.parse().ok()).ok_or(Failure::Variable)?;
    ft_sys::process::set_pdeathsig().map_err(Failure::Socket)?;
    let socket = UnixStream::from(inherited(number).map_err(Failure::Socket)?);
    socket.local_addr().map_err(Failure::Socket)?;
    Ok(serve(Channel::from_stream(socket))?)
}

/// The agent gives it as standard input.
fn inherited(number: i32) -> std::io::Result<OwnedFd> {
    match number {
        0 => std::io::stdin().as_fd().try_clone_to_owned(),
        _ => ft_sys::process::take_inherited_fd(number),
    }
}
