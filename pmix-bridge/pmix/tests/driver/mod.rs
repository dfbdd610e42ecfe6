//! Plays the agent for a world on one node: starts `ft-pmix` and the ranks, and answers as an agent would.

#![allow(clippy::unwrap_used, dead_code)]

use ft_wire::pmix::{
    App, ERR_NOT_FOUND, ERR_NOT_SUPPORTED, NOT_SINGLETON, OVERSUBSCRIBED, Proc, SUCCESS, ToAgent, ToPmix, WorldInfo,
};
use ft_wire::{FrameBuffer, PREAMBLE_LEN, Preamble, Role};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// No test waits longer.
pub const LIMIT: Duration = Duration::from_secs(60);

/// One MPI library to test with.
pub struct Mpi {
    pub mpicc: PathBuf,
    /// For the ranks.
    pub env: Vec<(String, String)>,
    /// For `ft-pmix`; decides which libpmix it runs on.
    pub host_env: Vec<(String, String)>,
    pub name: &'static str,
}

/// Debian's Open MPI 4, if it is installed.
pub fn ompi4() -> Option<Mpi> {
    let mpicc = PathBuf::from("/usr/bin/mpicc.openmpi");
    if !mpicc.exists() {
        println!("skipped: {} is not there (apt install libopenmpi-dev)", mpicc.display());
        return None;
    }
    let env = vec![pair(NOT_SINGLETON.0, NOT_SINGLETON.1)];
    Some(Mpi { mpicc, env, host_env: Vec::new(), name: "Open MPI 4" })
}

/// The wheel's Open MPI 5, if the environment says where.
pub fn ompi5() -> Option<Mpi> {
    let Some(venv) = std::env::var_os("FT_TEST_OMPI5").map(PathBuf::from) else {
        println!("skipped: FT_TEST_OMPI5 is not set");
        return None;
    };
    // The wheel's programs find their libraries by themselves; OPAL_PREFIX would only bring help texts.
    Some(Mpi { mpicc: venv.join("bin/mpicc"), env: Vec::new(), host_env: Vec::new(), name: "Open MPI 5" })
}

/// The wheel's Open MPI 5, with its own libpmix below `ft-pmix`.
pub fn ompi5_own_libpmix() -> Option<Mpi> {
    let mut mpi = ompi5()?;
    let venv = PathBuf::from(std::env::var_os("FT_TEST_OMPI5").unwrap());
    mpi.host_env = vec![
        pair("LD_LIBRARY_PATH", venv.join("lib/openmpi").to_str().unwrap()),
        pair("PMIX_PREFIX", venv.to_str().unwrap()),
    ];
    mpi.name = "Open MPI 5, its own libpmix";
    Some(mpi)
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_string(), value.to_string())
}

impl Mpi {
    /// Compiles `world.c` into `folder`.
    pub fn compile(&self, folder: &Path) -> PathBuf {
        let program = folder.join("world");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/world.c");
        let mut command = Command::new(&self.mpicc);
        command.arg("-o").arg(&program).arg(&source).arg("-ldl");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

/// `ft-pmix` and the link to it.
pub struct Host {
    pub process: Child,
    link: UnixStream,
    frames: FrameBuffer,
    pub version: String,
    /// Whether the end of `ft-pmix` is expected.
    pub may_crash: bool,
}

/// Waits for the end of a process that must end.
pub fn wait_end(process: &mut Child) -> ExitStatus {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < end, "the process does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Host {
    fn spawn(env: &[(String, String)], folder: &Path, stderr: Stdio) -> (UnixStream, Child) {
        let (link, theirs) = UnixStream::pair().unwrap();
        let fd = theirs.as_raw_fd();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ft-pmix"));
        command.env("FT_PMIX_FD", fd.to_string()).env("FT_PMIX_TMPDIR", folder).envs(env.iter().cloned());
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        (link, command.stdin(Stdio::null()).stderr(stderr).spawn().unwrap())
    }

    /// Starts with a folder that cannot be made; returns what the agent is told, and the exit status.
    pub fn fail(folder: &Path) -> (String, ExitStatus) {
        let mut host = Host::greeted(&[], folder);
        let Some(ToAgent::Failed { reason }) = host.receive(LIMIT) else { panic!("it did not say that it fails") };
        host.hang_up();
        (reason, wait_end(&mut host.process))
    }

    pub fn start(env: &[(String, String)], folder: &Path) -> Host {
        let mut host = Host::greeted(env, folder);
        match host.receive(LIMIT) {
            Some(ToAgent::Ready { version }) => host.version = version,
            other => panic!("{other:?}"),
        }
        host
    }

    fn greeted(env: &[(String, String)], folder: &Path) -> Host {
        let (link, process) = Host::spawn(env, folder, Stdio::inherit());
        let mut host = Host { process, link, frames: FrameBuffer::default(), version: String::new(), may_crash: false };
        host.link.write_all(&Preamble::ours(Role::Agent).to_bytes()).unwrap();
        host.link.set_read_timeout(Some(LIMIT)).unwrap();
        let mut preamble = [0; PREAMBLE_LEN];
        host.link.read_exact(&mut preamble).unwrap();
        assert_eq!(Preamble::from_bytes(&preamble).unwrap().role, Role::Pmix);
        host
    }

    pub fn send(&mut self, message: &ToPmix) {
        self.send_bytes(&ft_wire::encode(message, 0).unwrap());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        match self.link.write_all(bytes) {
            Err(_) if self.may_crash => {}
            result => result.unwrap(),
        }
    }

    pub fn hang_up(&mut self) {
        self.link.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// The next message; `None` after `wait` without one.
    pub fn receive(&mut self, wait: Duration) -> Option<ToAgent> {
        let end = Instant::now() + wait;
        loop {
            if let Some((body, _)) = self.frames.next_frame().unwrap() {
                return Some(ft_wire::decode(&body).unwrap());
            }
            let left = end.saturating_duration_since(Instant::now());
            self.link.set_read_timeout(Some(left.max(Duration::from_micros(1)))).unwrap();
            let mut bytes = [0; 1 << 16];
            match self.link.read(&mut bytes) {
                // libpmix may crash when clients die: then nothing more comes, and the agent would end the world.
                Ok(0) if self.may_crash => {
                    std::thread::sleep(left);
                    return None;
                }
                Ok(0) => panic!("ft-pmix ended: {:?}", self.process.wait()),
                Ok(count) => self.frames.push(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Registers a world of `size` ranks on this machine; returns the environment of each.
    pub fn register(&mut self, folder: &Path, size: u32) -> Vec<(u32, Vec<(String, String)>)> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        self.send(&ToPmix::Register(WorldInfo {
            nspace: format!("ftd-test-{}.1", self.process.id()),
            world_size: size,
            nodes: vec![(host.trim().to_string(), (0..size).collect())],
            me: 0,
            tmpdir: folder.to_path_buf(),
            incarnation: 0,
            apps: vec![App { ranks: size, argv0: b"world".to_vec(), cwd: b"/".to_vec() }],
        }));
        match self.receive(LIMIT) {
            Some(ToAgent::Registered { env }) => {
                let text = |(name, value)| (name, String::from_utf8(value).unwrap());
                env.into_iter().map(|(rank, env)| (rank, env.into_iter().map(text).collect())).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Kills the process; says whether it had ended by itself.
    pub fn end(mut self) -> bool {
        let ended = self.process.try_wait().unwrap().is_some();
        self.kill();
        ended
    }

    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts one rank of `program`.
pub fn start_rank(mpi: &Mpi, program: &Path, what: &str, size: u32, rank: &(u32, Vec<(String, String)>)) -> Child {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars() {
        if ["PMIX_", "PMI_", "OMPI_", "PRTE_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.envs(mpi.env.iter().cloned()).envs(rank.1.iter().cloned());
    // What a killed rank leaves goes with the test's folder.
    for name in ["OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"] {
        command.env(name, program.parent().unwrap());
    }
    if size as usize > std::thread::available_parallelism().unwrap().get() {
        command.env(OVERSUBSCRIBED.0, OVERSUBSCRIBED.1);
    }
    command.env("FT_RANK", rank.0.to_string()).env("FT_SIZE", size.to_string());
    command.arg(what).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// What happened in a world.
#[derive(Debug, Default)]
pub struct Story {
    pub statuses: Vec<Option<ExitStatus>>,
    pub output: String,
    pub connected: Vec<u32>,
    pub finalized: Vec<u32>,
    /// Who ended before it was answered that it has.
    pub unanswered: Vec<u32>,
    pub lost: Vec<u32>,
    pub aborts: Vec<(u32, i32, String)>,
    pub spawns: Vec<String>,
    pub fences: usize,
    pub modexes: usize,
}

impl Story {
    pub fn all_succeeded(&self) -> bool {
        self.statuses.iter().all(|status| status.is_some_and(|status| status.success()))
    }
}

/// Publisher and packed value by key.
type Published = HashMap<String, (Proc, Vec<u8>)>;

/// Answers what comes from `ft-pmix` until every rank has ended, or `end` says so. Who finalizes waits for its answer for so long.
pub fn run(
    host: &mut Host,
    ranks: &mut [Child],
    finalize: Duration,
    mut end: impl FnMut(&Story, &mut [Child]) -> bool,
) -> Story {
    let mut story = Story { statuses: vec![None; ranks.len()], ..Story::default() };
    let mut published = Published::new();
    let began = Instant::now();
    while !end(&story, ranks) {
        for (status, rank) in story.statuses.iter_mut().zip(ranks.iter_mut()) {
            if status.is_none() {
                *status = rank.try_wait().unwrap();
            }
        }
        let ended = story.statuses.iter().all(Option::is_some);
        let message = host.receive(Duration::from_millis(20));
        if message.is_none() && ended {
            break;
        }
        if began.elapsed() > LIMIT {
            for rank in ranks.iter_mut() {
                let _ = rank.kill();
            }
            panic!("the world did not end: {story:?}");
        }
        if let Some(message) = message {
            if let ToAgent::Finalized { rank, .. } = message {
                std::thread::sleep(finalize);
                if ranks[rank as usize].try_wait().unwrap().is_some() {
                    story.unanswered.push(rank);
                }
            }
            answer(host, &mut story, &mut published, message);
        }
    }
    for rank in ranks.iter_mut() {
        let mut text = String::new();
        if rank.try_wait().unwrap().is_some() {
            rank.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            rank.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        }
        story.output += &text;
    }
    story
}

fn answer(host: &mut Host, story: &mut Story, published: &mut Published, message: ToAgent) {
    match message {
        ToAgent::Connected { rank } => story.connected.push(rank),
        ToAgent::Finalized { token, rank } => {
            story.finalized.push(rank);
            host.send(&ToPmix::Done { token, status: SUCCESS });
        }
        ToAgent::LostConnection { rank } => story.lost.push(rank),
        ToAgent::Abort { rank, status, message, .. } => {
            // Held, as an agent does while it looks for an earlier death; the test kills the ranks.
            story.aborts.push((rank, status, message));
        }
        ToAgent::Fence { token, data, .. } => {
            story.fences += 1;
            host.send(&ToPmix::FenceDone { token, status: SUCCESS, data });
        }
        ToAgent::Modex { token, .. } => {
            story.modexes += 1;
            host.send(&ToPmix::ModexDone { token, status: ERR_NOT_FOUND, data: Vec::new() });
        }
        ToAgent::Publish { token, proc, values, .. } => {
            published.extend(values.into_iter().map(|(key, value)| (key, (proc.clone(), value))));
            host.send(&ToPmix::Done { token, status: SUCCESS });
        }
        ToAgent::Lookup { token, keys, .. } => {
            let found = keys
                .iter()
                .filter_map(|key| published.get(key).map(|(proc, value)| (proc.clone(), key.clone(), value.clone())));
            let found: Vec<_> = found.collect();
            let status = if found.is_empty() { ERR_NOT_FOUND } else { SUCCESS };
            host.send(&ToPmix::Found { token, status, found });
        }
        ToAgent::Unpublish { token, keys, .. } => {
            published.retain(|key, _| !keys.contains(key));
            host.send(&ToPmix::Done { token, status: SUCCESS });
        }
        ToAgent::Connect { token, .. } => host.send(&ToPmix::Done { token, status: SUCCESS }),
        ToAgent::Spawn { token, command, .. } => {
            story.spawns.push(command);
            host.send(&ToPmix::Done { token, status: ERR_NOT_SUPPORTED });
        }
        other => panic!("{other:?}"),
    }
}

/// Whether this status is a death by SIGKILL.
pub fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}
