//! The configuration: what is in the file, checked.

mod keys;
mod read;
mod value;

pub use keys::KEYS;
pub use read::Mistake;

use crate::tls::{self, Certificates, Tls, TlsError};
use ft_store::{Etcd, EtcdOptions, Login};
use ft_wire::cluster::LEAST_PERIODS;
use read::{Values, legible, read};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use value::check_name;
use value::{Said, Value};

/// Fewer periods in a time-out are a mistake. With these, and fewer than [`LEAST_PERIODS`], a file of an older release may be: the daemon starts with
/// it, and says what becomes of it.
const FEW_PERIODS: u32 = 3;

/// Where the file is if nobody says otherwise.
pub const DEFAULT: &str = "/etc/ftd/ftd.toml";

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// There are mistakes in it.
    #[error("{}", Lines(path, mistakes))]
    Mistakes {
        /// In which file.
        path: PathBuf,
        /// All of them, in the order of the file.
        mistakes: Vec<Mistake>,
    },
}

struct Lines<'a>(&'a Path, &'a [Mistake]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.1.iter().enumerate() {
            write!(f, "{}{}: {mistake}", if index == 0 { "" } else { "\n" }, self.0.display())?;
        }
        Ok(())
    }
}

/// With what the daemons of a cluster know each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// With certificates.
    Known(Certificates),
    /// With nothing: whoever dials is believed.
    Believed,
}

/// The configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file.
    pub file: PathBuf,
    values: Values,
    host: String,
    /// The text from which it was read, and the one of which what SIGHUP changes was taken.
    texts: (String, Option<String>),
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read(file).map_err(|error| ConfigError::File { path: file.into(), error })?;
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (config, mistakes) = match String::from_utf8(text) {
            Ok(text) => Config::parse(file, &text, host),
            Err(error) => {
                let before = error.as_bytes()[..error.utf8_error().valid_up_to()].iter();
                let line = before.filter(|byte| **byte == b'\n').count() + 1;
                let what = "this is no TOML: there are bytes that are no UTF-8".into();
                (Config::parse(file, "", host).0, vec![Mistake { line, key: String::new(), what }])
            }
        };
        let mistakes = if mistakes.is_empty() { config.of_files() } else { mistakes };
        if mistakes.is_empty() { Ok(config) } else { Err(ConfigError::Mistakes { path: file.into(), mistakes }) }
    }

    /// The control socket that a file names, whatever else is wrong with it, or may be read by root alone. Where it names none that can be
    /// read, the default one, and why.
    pub fn socket_of(file: &Path) -> (PathBuf, Option<ConfigError>) {
        let (text, unread) = match std::fs::read(file) {
            Ok(text) => (String::from_utf8_lossy(&text).into_owned(), None),
            Err(error) => (String::new(), Some(ConfigError::File { path: file.into(), error })),
        };
        let (_, mut mistakes) = read(&text);
        mistakes.retain(|mistake| mistake.key.is_empty() || mistake.key == "control.socket");
        let socket = match legible(&text).get("control.socket") {
            Some((Value::Text(socket), _)) => socket.into(),
            _ => PathBuf::new(),
        };
        let wrong = (!mistakes.is_empty()).then(|| ConfigError::Mistakes { path: file.into(), mistakes });
        (socket, unread.or(wrong))
    }

    /// Reads a file's text, on a machine of this name.
    fn parse(file: &Path, text: &str, host: String) -> (Config, Vec<Mistake>) {
        let (values, mut mistakes) = read(text);
        let config = Config { file: file.into(), values, host, texts: (text.into(), None) };
        mistakes.extend(config.disagreements(&mistakes));
        mistakes.extend(config.addresses_of_nobody());
        mistakes.sort_by_key(|mistake| mistake.line);
        (config, mistakes)
    }

    /// What is wrong with keys that each are right; of one that is not, nothing more can be said.
    fn disagreements(&self, mistakes: &[Mistake]) -> Vec<Mistake> {
        let mut found = Vec::new();
        let spoilt = |key: &str| mistakes.iter().any(|mistake| mistake.key == key);
        let given = |key| !self.text(key).is_empty() || spoilt(key);
        let mut wrong = |key: &'static str, what: String| {
            found.push(Mistake { line: self.values.get(key).map_or(0, |(_, line)| *line), key: key.into(), what });
        };
        if !given("node.name")
            && let Err(what) = check_name(&self.host)
        {
            wrong("node.name", format!("the node has no name here, and the host's cannot be used: {what}"));
        }
        let secure = self.endpoints().iter().filter(|url| url.starts_with("https://")).count();
        if secure > 0 && secure < self.endpoints().len() {
            wrong(
                "etcd.endpoints",
                "some begin with https:// and some with http://; all members are reached in the same way".into(),
            );
        } else if secure > 0 && !given("etcd.ca-file") {
            wrong("etcd.endpoints", "https:// needs the CA that has signed etcd's certificate: etcd.ca-file".into());
        }
        for key in ["etcd.ca-file", "etcd.cert-file", "etcd.server-name"] {
            if secure == 0 && given(key) && !spoilt(key) && !spoilt("etcd.endpoints") {
                wrong(key, "the endpoints begin with http://, which has no use for it; https:// is meant?".into());
            }
        }
        for (one, other) in [
            ("etcd.cert-file", "etcd.key-file"),
            ("etcd.key-file", "etcd.cert-file"),
            ("etcd.user", "etcd.password-file"),
            ("etcd.password-file", "etcd.user"),
            ("peers.ca-file", "peers.cert-file"),
            ("peers.cert-file", "peers.key-file"),
            ("peers.key-file", "peers.ca-file"),
        ] {
            if given(one) && !given(other) && !spoilt(one) {
                wrong(one, format!("it is of no use without {other}"));
            }
        }
        if self.switch("peers.insecure") && given("peers.ca-file") && !spoilt("peers.insecure") {
            wrong("peers.insecure", "there are certificates (peers.ca-file), which would be of no use".into());
        }
        let counts = ["control.connections", "control.connections-per-user"];
        if self.connections_per_user() > self.connections() && !counts.into_iter().any(spoilt) {
            let what = format!(
                "one user may have more ({}) than all together ({})",
                self.connections_per_user(),
                self.connections()
            );
            wrong("control.connections-per-user", what);
        }
        let (period, timeout) = self.heartbeat();
        if timeout < period * FEW_PERIODS
            && !["jobs.heartbeat-period", "jobs.heartbeat-timeout"].into_iter().any(spoilt)
        {
            let what = format!("{} is less than {FEW_PERIODS} periods of {}", Said(timeout), Said(period));
            wrong("jobs.heartbeat-timeout", format!("{what}: one late datagram would be a node's death"));
        }
        found
    }

    /// Addresses that are told to other nodes and say nothing to them.
    fn addresses_of_nobody(&self) -> Vec<Mistake> {
        let of_nobody = |address: Option<SocketAddr>| address.is_some_and(|address| address.ip().is_unspecified());
        let addresses = [("peers.mpi", self.peer_mpi()), ("peers.store", self.peer_store())];
        let wrong = addresses.into_iter().filter(|(_, address)| of_nobody(*address));
        let what = "other nodes are told this address and cannot reach it: the node's own in that network is meant";
        let mistake = |(key, _): (&str, _)| Mistake {
            line: self.values.get(key).map_or(0, |(_, line)| *line),
            key: key.into(),
            what: what.into(),
        };
        wrong.map(mistake).collect()
    }

    /// What is wrong with the files that are named.
    fn of_files(&self) -> Vec<Mistake> {
        let mistake = |key: &str, what| Mistake {
            line: self.values.get(key).map_or(0, |(_, line)| *line),
            key: key.into(),
            what,
        };
        let etcd = match self.etcd() {
            Ok(options) => Etcd::new(&options).err().map(|error| mistake("etcd.endpoints", error.to_string())),
            Err(what) => Some(mistake("etcd.password-file", what)),
        };
        let peers = match self.peers() {
            Some(Peers::Known(certificates)) => Tls::read(&certificates).err(),
            Some(Peers::Believed) | None => None,
        };
        let peers = peers.map(|error| mistake(error.key(), error.to_string()));
        let scontrol = self.scontrol();
        let missing = self.drains() && nix::unistd::access(&scontrol, nix::unistd::AccessFlags::X_OK).is_err();
        let what = || format!("{} is no program, and slurm.drain needs it: where is scontrol?", scontrol.display());
        let slurm = missing.then(|| mistake("slurm.scontrol", what()));
        etcd.into_iter().chain(peers).chain(slurm).collect()
    }

    /// What is no mistake, and should be known all the same.
    pub fn warnings(&self) -> Vec<String> {
        let at = |key: &str| match self.values.get(key) {
            Some((_, line)) if *line > 0 => format!("line {line}: {key}"),
            _ => key.to_string(),
        };
        let mut found = Vec::new();
        let asks = !self.text("etcd.user").is_empty() || !self.text("etcd.cert-file").is_empty();
        if self.peers().is_some() && !asks {
            let what = "etcd asks nobody who they are (no user, no cert-file): whoever reaches it decides which nodes there are, where they \
                        are, and what becomes of the jobs over them; let the nodes alone reach it";
            found.push(format!("{}: {what}", at("etcd.endpoints")));
        }
        if self.peers() == Some(Peers::Believed) {
            let what = "whoever reaches this node's port for other daemons starts processes here as any user";
            found.push(format!("{}: {what}", at("peers.insecure")));
        }
        let (period, timeout) = self.heartbeat();
        if timeout < period * LEAST_PERIODS {
            let what = format!("{} is less than {LEAST_PERIODS} periods of {}", Said(timeout), Said(period));
            found.push(format!("{}: {what}: a fifth of it is taken for the period", at("jobs.heartbeat-timeout")));
        }
        found.extend(self.warnings_of_peers().into_iter().map(|(key, what)| format!("{}: {what}", at(key))));
        found
    }

    /// Why this node could take no job over several nodes, although something is set up for that.
    fn warnings_of_peers(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let key = if self.peer_mpi().is_some() { "peers.mpi" } else { "peers.store" };
        if self.peer_mpi().or(self.peer_store()).is_some() && self.peers().is_none() {
            let what = "jobs over several nodes are not set up: nothing listens there without certificates (peers.ca-file, cert-file and key-file)";
            found.push((key, what.to_string()));
        } else if self.peer_store().is_some() && self.peer_mpi().is_none() {
            let what = "jobs over several nodes are not set up: this node does not say where it is in MPI's network (peers.mpi)";
            found.push((key, what.to_string()));
        }
        if let Some(Peers::Known(files)) = self.peers() {
            // A file that cannot be read is a mistake of its own.
            let why = match tls::refused_by_others(&files, self.node()) {
                Ok(why) => why,
                Err(TlsError::Pair(what)) => vec![what],
                Err(TlsError::File { .. }) => Vec::new(),
            };
            for why in why {
                found.push(("peers.cert-file", format!("other nodes refuse this node's certificate: {why}")));
            }
        }
        found
    }

    /// How etcd is reached.
    ///
    /// # Errors
    /// A sentence on the password's file.
    pub fn etcd(&self) -> Result<EtcdOptions, String> {
        let path = |key| Some(self.text(key)).filter(|text| !text.is_empty()).map(PathBuf::from);
        let tls = path("etcd.ca-file").map(|ca| ft_store::Tls {
            ca,
            identity: path("etcd.cert-file").zip(path("etcd.key-file")),
            name: Some(self.text("etcd.server-name").to_string()).filter(|name| !name.is_empty()),
        });
        let login = match path("etcd.password-file") {
            None => None,
            Some(file) => {
                let text = std::fs::read_to_string(&file)
                    .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
                match text.lines().next() {
                    Some(line) if !line.is_empty() => {
                        Some(Login { user: self.text("etcd.user").into(), password: line.into() })
                    }
                    _ => {
                        return Err(format!(
                            "the first line of {} is empty, and should be the password",
                            file.display()
                        ));
                    }
                }
            }
        };
        Ok(EtcdOptions {
            endpoints: self.endpoints().to_vec(),
            tls,
            login,
            attempt: self.time("etcd.attempt"),
            idle: None,
        })
    }

    /// How long etcd has for a request: each member is asked once, and the first one once more.
    pub fn etcd_within(&self) -> Duration {
        let members = u32::try_from(self.endpoints().len()).unwrap_or(u32::MAX);
        self.time("etcd.attempt").saturating_mul(members.saturating_add(1))
    }

    /// The time of the node's lease.
    pub fn lease(&self) -> Duration {
        self.time("etcd.lease")
    }

    /// The node's key in etcd.
    pub fn key(&self) -> String {
        format!("{}/nodes/{}", self.text("etcd.prefix"), self.node())
    }

    /// Where the node is in MPI's network.
    pub fn peer_mpi(&self) -> Option<SocketAddr> {
        self.address("peers.mpi")
    }

    /// Where the node is in the store's network.
    pub fn peer_store(&self) -> Option<SocketAddr> {
        self.address("peers.store")
    }

    /// With what the daemons know each other: `None` where jobs over several nodes are not set up.
    pub fn peers(&self) -> Option<Peers> {
        let path = |key| Some(self.text(key)).filter(|text| !text.is_empty()).map(PathBuf::from);
        match (path("peers.ca-file"), path("peers.cert-file"), path("peers.key-file")) {
            (Some(ca), Some(certificate), Some(key)) => Some(Peers::Known(Certificates { ca, certificate, key })),
            _ => self.switch("peers.insecure").then_some(Peers::Believed),
        }
    }

    /// What all of ftd's keys in etcd begin with.
    pub fn prefix(&self) -> &str {
        self.text("etcd.prefix")
    }

    /// Whether nodes are drained in Slurm whose own daemon is gone.
    pub fn drains(&self) -> bool {
        self.switch("slurm.drain")
    }

    /// What Slurm calls this node; empty: by its name.
    pub fn slurm_node(&self) -> &str {
        self.text("slurm.node")
    }

    /// Slurm's program that drains nodes.
    pub fn scontrol(&self) -> PathBuf {
        self.text("slurm.scontrol").into()
    }

    /// Whether root may start jobs.
    pub fn allows_root(&self) -> bool {
        self.switch("jobs.root")
    }

    /// What another process of this program needs to have the same one.
    pub fn texts(&self) -> (PathBuf, String, (String, Option<String>)) {
        (self.file.clone(), self.host.clone(), self.texts.clone())
    }

    /// The one that another process has.
    pub fn of_texts((file, host, (first, live)): (PathBuf, String, (String, Option<String>))) -> Config {
        let config = Config::parse(&file, &first, host.clone()).0;
        match live {
            Some(text) => config.with_live_of(&Config::parse(&file, &text, host).0),
            None => config,
        }
    }

    /// For tests of others.
    #[cfg(test)]
    pub fn of_text(text: &str, host: &str) -> Config {
        Config::parse(Path::new("ftd.toml"), text, host.into()).0
    }

    /// The keys whose values differ: those that SIGHUP changes, and those that only a start does.
    pub fn changes(&self, new: &Config) -> (Vec<&'static str>, Vec<&'static str>) {
        let value = |config: &Config, key| config.values.get(key).map(|(value, _)| value.clone());
        let differ = KEYS.iter().filter(|key| value(self, key.name) != value(new, key.name));
        let (live, later): (Vec<_>, Vec<_>) = differ.partition(|key| key.live);
        let names = |keys: Vec<&keys::Key>| keys.iter().map(|key| key.name).collect();
        (names(live), names(later))
    }

    /// This one, with what SIGHUP changes taken from another one.
    #[must_use]
    pub fn with_live_of(&self, new: &Config) -> Config {
        let mut config = self.clone();
        config.texts.1 = Some(new.texts.0.clone());
        for key in KEYS.iter().filter(|key| key.live) {
            if let Some(value) = new.values.get(key.name) {
                config.values.insert(key.name, value.clone());
            }
        }
        config
    }

    fn text(&self, key: &str) -> &str {
        match self.values.get(key) {
            Some((Value::Text(text), _)) => text,
            _ => "",
        }
    }

    fn count(&self, key: &str) -> usize {
        match self.values.get(key) {
            Some((Value::Count(number), _)) => usize::try_from(*number).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    fn time(&self, key: &str) -> Duration {
        match self.values.get(key) {
            Some((Value::Time(time), _)) => *time,
            _ => Duration::ZERO,
        }
    }

    fn switch(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some((Value::Switch(true), _)))
    }

    /// So many bytes a second a job sends from here at most for copies of checkpoints; 0: no limit.
    pub fn copy_rate(&self) -> u64 {
        match self.values.get("jobs.copy-rate") {
            Some((Value::Rate(rate), _)) => *rate,
            _ => 0,
        }
    }

    /// libfabric's providers for copies of checkpoints, best first; `None`: nobody says.
    pub fn fabric(&self) -> Option<String> {
        Some(self.text("jobs.fabric")).filter(|text| *text != ft_sys::fabric::AUTO).map(Into::into)
    }

    /// The nice value of jobs' agents.
    pub fn agent_nice(&self) -> i32 {
        match self.values.get("jobs.agent-nice") {
            Some((Value::Nice(nice), _)) => *nice,
            _ => 0,
        }
    }

    fn address(&self, key: &str) -> Option<SocketAddr> {
        match self.values.get(key) {
            Some((Value::Address(address), _)) => Some(*address),
            _ => None,
        }
    }

    /// The machine's own name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        match self.text("node.name") {
            "" => &self.host,
            name => name,
        }
    }

    /// Its failure domain.
    pub fn label(&self) -> &str {
        match self.text("node.label") {
            "" => self.node(),
            label => label,
        }
    }

    /// The directory that outlives the machine's restart.
    pub fn state(&self) -> PathBuf {
        self.text("node.state").into()
    }

    /// etcd's members.
    pub fn endpoints(&self) -> &[String] {
        match self.values.get("etcd.endpoints") {
            Some((Value::Texts(texts), _)) => texts,
            _ => &[],
        }
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.text("control.socket").into()
    }

    /// How many connections the control socket has at most.
    pub fn connections(&self) -> usize {
        self.count("control.connections")
    }

    /// How many of them one user has at most; root has no such limit.
    pub fn connections_per_user(&self) -> usize {
        self.count("control.connections-per-user")
    }

    /// So long what a node of a job tells another one may come by no way.
    pub fn path_timeout(&self) -> Duration {
        self.time("jobs.path-timeout")
    }

    /// Period and time-out of the heartbeats of jobs that say nothing else. A period that the file does not name follows the time-out.
    pub fn heartbeat(&self) -> (Duration, Duration) {
        let (key, timeout) = ("jobs.heartbeat-period", self.time("jobs.heartbeat-timeout"));
        let is_named = self.values.get(key).is_some_and(|(_, line)| *line > 0);
        (if is_named { self.time(key) } else { timeout / keys::FIFTH }, timeout)
    }

    /// Where Prometheus finds its numbers.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.address("metrics.address")
    }

    /// What is logged.
    pub fn filter(&self) -> &str {
        self.text("log.filter")
    }
}

#[cfg(test)]
mod tests;
