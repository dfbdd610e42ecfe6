//! A real etcd, of one member or three, on loopback addresses of its own.

use ft_store::{Etcd, EtcdOptions, Login, Store, Swap, Tls};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A release of etcd.
#[derive(Debug, Clone, Copy)]
pub enum Release {
    V34,
    V35,
}

impl Release {
    fn program(self) -> PathBuf {
        let (variable, usual) = match self {
            Release::V34 => ("FT_TEST_ETCD34", "/usr/bin/etcd"),
            Release::V35 => ("FT_TEST_ETCD35", "/var/lib/ftd-test/etcd35/bin/etcd"),
        };
        let program = PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| usual.into()));
        assert!(program.exists(), "{} is not there: scripts/install-deps.sh test installs it", program.display());
        program
    }

    /// Whether a member that was killed knows when it is started again what it had written: of 3.5 the releases before 3.5.3 may not
    /// (etcd's issue 13766), and then its answers are wrong.
    pub fn remembers(self) -> bool {
        matches!(self, Release::V34)
    }
}

/// Starting, electing, restarting: on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

struct Member {
    address: String,
    args: Vec<String>,
    child: Option<Child>,
}

/// A cluster; its processes end with it, or with the thread that made it.
pub struct Cluster {
    release: Release,
    members: Vec<Member>,
    scheme: &'static str,
    directory: tempfile::TempDir,
}

/// Of each process, and of each cluster in it, other ones, so that tests that run beside each other do not meet.
pub fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.{}.{}.{}", 64 + (number >> 16) % 64, (number >> 8) % 256, number % 256);
        if std::net::TcpListener::bind((address.as_str(), 2379)).is_ok() {
            return address;
        }
    }
}

impl Cluster {
    pub async fn start(release: Release, members: usize) -> Cluster {
        Cluster::start_with(release, members, "http", |_, _| Vec::new()).await
    }

    /// `more` are arguments that depend on the directory and the member's address.
    pub async fn start_with(
        release: Release,
        members: usize,
        scheme: &'static str,
        more: impl Fn(&std::path::Path, &str) -> Vec<String>,
    ) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let addresses: Vec<String> = (0..members).map(|_| address()).collect();
        let peers: Vec<String> = (0..members).map(|n| format!("m{n}=http://{}:2380", addresses[n])).collect();
        let args = |n: usize| {
            let address = &addresses[n];
            let (client, peer) = (format!("{scheme}://{address}:2379"), format!("http://{address}:2380"));
            let mut args = vec![format!("--name=m{n}"), format!("--data-dir={}/m{n}", directory.path().display())];
            args.extend([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
            args.extend([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
            args.extend([format!("--initial-cluster={}", peers.join(",")), "--logger=zap".into()]);
            args.extend(more(directory.path(), address));
            args
        };
        let members = (0..members).map(|n| Member { address: addresses[n].clone(), args: args(n), child: None });
        let mut cluster = Cluster { release, members: members.collect(), scheme, directory };
        (0..cluster.members.len()).for_each(|n| cluster.run(n));
        cluster
    }

    /// Starts it, and waits until a leader is known.
    pub async fn ready(release: Release, members: usize) -> Cluster {
        let cluster = Cluster::start(release, members).await;
        cluster.store().check(LONG).await.unwrap_or_else(|error| panic!("{error}\n{}", cluster.log()));
        cluster
    }

    pub fn log(&self) -> String {
        let log = |n| std::fs::read_to_string(self.directory.path().join(format!("m{n}.log"))).unwrap_or_default();
        (0..self.members.len()).map(|n| log(n).lines().rev().take(5).collect::<Vec<_>>().join("\n")).collect()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a member, the first time or again.
    pub fn run(&mut self, n: usize) {
        let log = std::fs::File::options().append(true).create(true).open(self.path(&format!("m{n}.log"))).unwrap();
        // etcd does not outlive the test.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(self.release.program()).args(&self.members[n].args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[n].child = Some(command.spawn().unwrap());
    }

    fn signal(&self, n: usize, signal: Signal) {
        let child = self.members[n].child.as_ref().expect("the member runs");
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    }

    pub fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.members[n].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends it in a way after which it can be started again.
    pub fn lose(&mut self, n: usize) {
        if !self.release.remembers() {
            self.signal(n, Signal::SIGTERM);
            self.members[n].child.take().expect("the member runs").wait().unwrap();
        }
        self.kill(n);
    }

    /// Returns when it stands still: until each of its threads has been given a processor the others go on.
    pub fn stop(&self, n: usize) {
        self.signal(n, Signal::SIGSTOP);
        let pid = self.members[n].child.as_ref().expect("the member runs").id();
        let stands = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        let all_stand = || {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            threads.flatten().all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(stands))
        };
        let until = std::time::Instant::now() + LONG;
        while !all_stand() {
            assert!(std::time::Instant::now() < until, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn go_on(&self, n: usize) {
        self.signal(n, Signal::SIGCONT);
    }

    pub fn endpoint(&self, n: usize) -> String {
        format!("{}://{}:2379", self.scheme, self.members[n].address)
    }

    pub fn address(&self, n: usize) -> &str {
        &self.members[n].address
    }

    /// All endpoints, this one first.
    pub fn from(&self, first: usize) -> EtcdOptions {
        let count = self.members.len();
        EtcdOptions::plain((0..count).map(|n| self.endpoint((first + n) % count)))
    }

    pub fn store(&self) -> Etcd {
        Etcd::new(&self.from(0)).unwrap()
    }

    pub async fn client(&self, n: usize) -> etcd_client::Client {
        etcd_client::Client::connect([self.endpoint(n)], None).await.unwrap()
    }

    /// Which member leads, by its own word.
    pub async fn leader(&self) -> usize {
        let asked = async {
            loop {
                for n in (0..self.members.len()).filter(|n| self.members[*n].child.is_some()) {
                    let mut client = self.client(n).await;
                    let status = tokio::time::timeout(Duration::from_secs(1), client.status()).await;
                    let leads = |status: &etcd_client::StatusResponse| {
                        status.header().is_some_and(|header| header.member_id() == status.leader())
                    };
                    if status.is_ok_and(|status| status.is_ok_and(|status| leads(&status))) {
                        return n;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(LONG, asked).await.expect("a leader")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("etcd's last words:\n{}", self.log());
        }
        (0..self.members.len()).for_each(|n| self.kill(n));
    }
}

/// Puts a key as it comes.
pub async fn put(store: &impl Store, key: &str, value: &[u8]) -> u64 {
    let found = store.get(key, LONG).await.unwrap().found;
    let expected = ft_store::Expected::at(found.map_or(0, |found| found.revision));
    store.compare_and_swap(Swap::on(key, expected).put(key, value.to_vec()), LONG).await.unwrap()
}

pub fn login(user: &str, password: &str) -> Option<Login> {
    Some(Login { user: user.into(), password: password.into() })
}

pub fn tls(ca: PathBuf, identity: Option<(PathBuf, PathBuf)>) -> Option<Tls> {
    Some(Tls { ca, identity, name: None })
}
