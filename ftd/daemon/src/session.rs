//! The process that serves a connection of a job's (see [`crate::errand`]), from its start to its end.

use crate::config::Config;
use crate::errand::{COMMANDS, Errand, Reports, Whose};
use crate::jobs::Jobs;
use crate::node;
use crate::roll::Roll;
use crate::state::State;
use crate::{etcd, log, peers};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// Is the process; returns its exit status.
pub fn be(numbers: [RawFd; 3]) -> u8 {
    let [connection, memory, reports] = numbers.map(ft_sys::process::take_inherited_fd);
    let (Ok(connection), Ok(memory), Ok(reports)) = (connection, memory, reports) else {
        ft_sys::log::say(format_args!("ftd: {} are for ftd alone", COMMANDS.join(", ")));
        return 2;
    };
    match attempt(connection, memory, Reports::to(reports)) {
        Ok(()) => 0,
        Err(error) => {
            ft_sys::log::say(format_args!("ftd: a connection is not served: {error}"));
            1
        }
    }
}

fn attempt(connection: OwnedFd, memory: OwnedFd, reports: Reports) -> io::Result<()> {
    let mut frame = Vec::new();
    File::from(memory).read_to_end(&mut frame)?;
    let body = frame.get(ft_wire::FRAME_HEADER..).unwrap_or_default();
    let Errand { whose, config } = ft_wire::decode(body).map_err(io::Error::other)?;
    ft_sys::process::one_heap();
    let config = Config::of_texts(config);
    let _filter = log::begin(config.filter());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (directory, life) = (config.state(), node::life(&config.socket()));
        let state = Arc::new(State::new(config));
        life.iter().for_each(|life| state.keeps(Roll::new(&directory, life)));
        match whose {
            Whose::Launcher(uid) => {
                let stream = tokio::net::UnixStream::from_std(connection.into())?;
                serve_launcher(stream, uid, &state).await?;
            }
            Whose::Peer(from) => {
                let stream = tokio::net::TcpStream::from_std(connection.into())?;
                peers::meet(stream, from, &state, reports).await;
            }
            Whose::Own => {
                let stream = tokio::net::UnixStream::from_std(connection.into())?;
                peers::meet_own(stream, &state).await;
            }
        }
        // Its parent is to bury it, and to say that it is there.
        state.no_job().await;
        Ok(())
    })
}

async fn serve_launcher(stream: tokio::net::UnixStream, uid: u32, state: &Arc<State>) -> io::Result<()> {
    let etcd = etcd::now_and_then(state).map_err(io::Error::other)?;
    if let Err(error) = Jobs::new(state.clone(), etcd).serve(stream, uid).await {
        tracing::warn!(uid, "a launcher was turned away: {error}");
    }
    Ok(())
}
