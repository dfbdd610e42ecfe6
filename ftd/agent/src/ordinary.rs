//! The programs that an agent starts run other libraries' code: they have the priority of the user's own, not the agent's.

use ft_sys::priority::{VARIABLE, users};
use tokio::process::Command;

/// Has it told so.
pub fn ordinary(mut command: Command) -> Command {
    match users() {
        Some(nice) => command.env(VARIABLE, nice.to_string()),
        None => command.env_remove(VARIABLE),
    };
    command
}
