//! The daemon's life: start, reloads, end.

use crate::config::{Config, ConfigError};
use crate::drain::Drain;
use crate::etcd::{Asked, now_and_then};
use crate::groups::Groups;
use crate::lock::{Lock, LockError};
use crate::log::Filter;
use crate::metrics::MetricsError;
use crate::node::{Memory, Node, NodeError, Record};
use crate::roll::Roll;
use crate::scripts::Scripts;
use crate::socket::{Socket, SocketError};
use crate::state::State;
use crate::{agents, control, metrics, parts, peers, resume, service};
use ft_store::{Etcd, StoreError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory of its state cannot be used.
    #[error("node.state: {} cannot be made: {error}", path.display())]
    State {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Another one runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// There is no control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// There is no endpoint for Prometheus.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Other nodes cannot reach it.
    #[error(transparent)]
    Peers(#[from] peers::ListenError),
    /// etcd's configuration cannot be used; it was checked before.
    #[error("{0}")]
    Etcd(String),
    /// As above.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Agents cannot be served.
    #[error(transparent)]
    Agents(#[from] agents::ListenError),
    /// It cannot be this node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The system does not give what every program has.
    #[error("the system: {0}")]
    Io(#[from] io::Error),
}

/// Runs until it is told to end.
///
/// # Errors
/// [`DaemonError`]: it could not begin.
pub async fn run(config: Config, filter: &Filter) -> Result<(), DaemonError> {
    // From here on they end nothing by themselves.
    let mut signals = Signals::take()?;
    let state_directory = config.state();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&state_directory);
    made.map_err(|error| DaemonError::State { path: state_directory.clone(), error })?;
    let _lock = Lock::take(&state_directory.join("lock"))?;
    let (_socket, listener) = Socket::make(&config.socket())?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let numbers = metrics::begin()?;
    if let Some(address) = config.metrics() {
        tokio::spawn(metrics::serve(metrics::listen(address).await?, numbers.clone()));
    }
    tokio::spawn(metrics::keep_up(numbers));
    tokio::spawn(service::watchdog());
    tracing::info!(node = config.node(), config = %config.file.display(), "ftd {} begins", ft_wire::release());
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let file = config.file.clone();
    let state = Arc::new(State::new(config));
    let store = etcd(&state)?;
    let etcd = Asked::new(store.clone(), state.clone(), state.config().etcd_within());
    // No part begins before it can be noted.
    let node = node(&state, etcd.clone())?;
    resume::sweep(&state.config());
    peers::listen(&state).await?;
    let _agents = agents::listen(&state, &store)?;
    tokio::spawn(control::serve(listener, state.clone()));
    if state.config().drains() {
        tokio::spawn(Drain::new(etcd.clone(), store.clone()).run());
    }
    let users = now_and_then(&state).map_err(DaemonError::Etcd)?;
    tokio::spawn(parts::bury_all(state.clone(), users.clone()));
    tokio::spawn(Scripts::new(state.clone(), etcd, store, users).run());
    let groups = Groups::own();
    if groups.are_none() {
        tracing::info!("no control group was given to ftd (Delegate= in its unit): jobs run in its own");
    } else {
        tokio::spawn(groups.tend());
    }
    service::ready();
    tokio::select! {
        refused = node.hold() => {
            let Err(error) = refused;
            service::stopping();
            return Err(error.into());
        }
        () = signals.until_end(&file, &state, filter) => {}
    }
    service::stopping();
    tracing::info!("ftd ends; jobs run on");
    Ok(())
}

/// The cluster's store.
fn etcd(state: &Arc<State>) -> Result<Etcd, DaemonError> {
    Ok(Etcd::new(&state.config().etcd().map_err(DaemonError::Etcd)?)?)
}

/// This machine as a node of the cluster, not yet in it.
fn node(state: &Arc<State>, etcd: Asked<Etcd>) -> Result<Node<Etcd>, DaemonError> {
    let config = state.config();
    let memory = Memory::open(&config.state(), &config.socket(), &config.key()).map_err(NodeError::from)?;
    let record = Record::of(&config, &memory.id);
    state.keeps(Roll::new(&config.state(), &memory.id));
    Ok(Node::new(etcd, memory, record, config.key(), config.lease()))
}

/// Reads the file again. A wrong one changes nothing.
fn reload(file: &Path, state: &State, filter: &Filter) {
    let old = state.config();
    let new = match Config::load(file) {
        Ok(new) => new,
        Err(error) => {
            let sentence = error.to_string();
            sentence.lines().for_each(|line| tracing::error!("{line}"));
            tracing::error!("the configuration stays as it was");
            metrics::reloaded(false);
            return state.refused(sentence);
        }
    };
    let (live, later) = old.changes(&new);
    if !later.is_empty() {
        tracing::warn!("{} changed in {}, and ftd must be started again for that", later.join(", "), file.display());
    }
    new.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    filter.set(new.filter());
    let what = if live.is_empty() { "nothing changes".into() } else { format!("changed: {}", live.join(", ")) };
    tracing::info!("{} was read again; {what}", file.display());
    metrics::reloaded(true);
    state.reloaded(old.with_live_of(&new), &later);
}

struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn take() -> io::Result<Signals> {
        Ok(Signals {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Reloads as often as it is asked to, until it is to end.
    async fn until_end(&mut self, file: &Path, state: &State, filter: &Filter) {
        while self.is_reload().await {
            service::reloading();
            reload(file, state, filter);
            service::ready();
        }
    }

    /// Waits for the next one: whether it asks for a reload, and not for the end.
    async fn is_reload(&mut self) -> bool {
        tokio::select! {
            _ = self.reload.recv() => true,
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => false,
        }
    }
}
