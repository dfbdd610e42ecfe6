//! The keys of the configuration file: one table, from which the file is read and checked, and with which the default file and the
//! manual page are compared (`cargo test -p ftd`).

use std::ops::RangeInclusive;
use std::time::Duration;

/// What a key's value looks like.
#[derive(Debug, Clone)]
pub enum Form {
    /// The name of a node or of a failure domain: a part of a key in etcd.
    Name,
    /// Any words.
    Text,
    /// The full path of something that ftd makes.
    Place,
    /// The full path of a file that is there.
    File,
    /// As [`File`](Self::File), and nobody but its owner and its group may read it.
    Secret,
    /// What all of ftd's keys in etcd begin with.
    Prefix,
    /// `address:port`.
    Address,
    /// Addresses of etcd's members.
    Endpoints,
    /// A time.
    Time(RangeInclusive<Duration>),
    /// A number.
    Count(RangeInclusive<u64>),
    /// Bytes a second, with a unit.
    Rate,
    /// libfabric's providers, best first.
    Fabric,
    /// A nice value: the lower, the sooner a process has its turn.
    Nice(RangeInclusive<i32>),
    /// Yes or no.
    Switch,
    /// What is logged.
    Filter,
}

/// One key.
#[derive(Debug, Clone)]
pub struct Key {
    /// Section and name, with a dot between them.
    pub name: &'static str,
    /// What its value looks like.
    pub form: Form,
    /// The value that it has when the file does not say, as the file would say it.
    pub default: &'static str,
    /// The empty text is a value, too.
    pub may_be_empty: bool,
    /// SIGHUP changes it.
    pub live: bool,
}

const fn key(name: &'static str, form: Form, default: &'static str) -> Key {
    Key { name, form, default, may_be_empty: false, live: false }
}

impl Key {
    const fn or_none(mut self) -> Key {
        self.may_be_empty = true;
        self
    }

    const fn live(mut self) -> Key {
        self.live = true;
        self
    }

    /// Its section.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// Its name within its section.
    pub fn short(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, short)| short)
    }
}

const fn time(least: u64, most: u64) -> Form {
    Form::Time(Duration::from_millis(least)..=Duration::from_millis(most))
}

/// Where the file names a time-out of heartbeats alone, the period is so much of it.
pub const FIFTH: u32 = 5;

/// All of them, in the order of the file.
pub static KEYS: [Key; 34] = [
    key("node.name", Form::Name, r#""""#).or_none(),
    key("node.label", Form::Name, r#""""#).or_none(),
    key("node.state", Form::Place, r#""/var/lib/ftd""#),
    key("etcd.endpoints", Form::Endpoints, r#"["http://127.0.0.1:2379"]"#),
    key("etcd.prefix", Form::Prefix, r#""/ftd""#),
    key("etcd.ca-file", Form::File, r#""""#).or_none(),
    key("etcd.cert-file", Form::File, r#""""#).or_none(),
    key("etcd.key-file", Form::Secret, r#""""#).or_none(),
    key("etcd.server-name", Form::Text, r#""""#).or_none(),
    key("etcd.user", Form::Text, r#""""#).or_none(),
    key("etcd.password-file", Form::Secret, r#""""#).or_none(),
    key("etcd.attempt", time(100, 60_000), r#""2s""#),
    // etcd itself grants no less than 2 s with its default election time-out.
    key("etcd.lease", time(2_000, 3_600_000), r#""10s""#),
    key("peers.mpi", Form::Address, r#""""#).or_none(),
    key("peers.store", Form::Address, r#""""#).or_none(),
    key("peers.ca-file", Form::File, r#""""#).or_none(),
    key("peers.cert-file", Form::File, r#""""#).or_none(),
    key("peers.key-file", Form::Secret, r#""""#).or_none(),
    key("peers.insecure", Form::Switch, "false"),
    key("control.socket", Form::Place, r#""/run/ftd/ftd.sock""#),
    key("control.connections", Form::Count(1..=65_536), "256").live(),
    key("control.connections-per-user", Form::Count(1..=65_536), "16").live(),
    key("jobs.heartbeat-period", time(10, 60_000), r#""100ms""#).live(),
    key("jobs.heartbeat-timeout", time(30, 600_000), r#""500ms""#).live(),
    // Longer than a switch takes to restart, which stops a job for 30 s without ending it.
    key("jobs.path-timeout", time(1_000, 3_600_000), r#""60s""#).live(),
    key("jobs.copy-rate", Form::Rate, r#""0""#).live(),
    key("jobs.fabric", Form::Fabric, r#""auto""#).live(),
    key("jobs.agent-nice", Form::Nice(-20..=0), "-10").live(),
    key("jobs.root", Form::Switch, "false").live(),
    key("slurm.drain", Form::Switch, "false"),
    key("slurm.node", Form::Name, r#""""#).or_none(),
    key("slurm.scontrol", Form::Place, r#""/usr/bin/scontrol""#),
    key("metrics.address", Form::Address, r#""127.0.0.1:9727""#).or_none(),
    key("log.filter", Form::Filter, r#""info""#).live(),
];
