//! `ft-pmix`: hosts libpmix's server for the ranks of one world on one node. Started by the agent, and worth nothing:
//! it is killed with its world.

use ft_pmix::{
    Constructed, GroupResponder, LookupResponder, ModexResponder, OpResponder, Server, SpawnResponder, Status, Upcall,
};
use ft_wire::pmix::{Proc, Raised, ToAgent, ToPmix, WorldInfo};
use ft_wire::{FrameBuffer, FrameError, PREAMBLE_LEN, Preamble, Role};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0} is not set; ft-pmix is started by ft-agent")]
    Variable(&'static str),
    #[error("FT_PMIX_FD: {0}")]
    Socket(std::io::Error),
    #[error("the host name cannot be read: {0}")]
    Host(std::io::Error),
    #[error(transparent)]
    Pmix(#[from] ft_pmix::PmixError),
    #[error("the link to ft-agent: {0}")]
    Link(std::io::Error),
    #[error("the link to ft-agent: {0}")]
    Frame(#[from] FrameError),
    #[error("the agent is a {0:?}")]
    Stranger(Role),
}

/// A responder that waits for the agent.
enum Waiting {
    Op(OpResponder),
    Modex(ModexResponder),
    Lookup(LookupResponder),
    Spawn(SpawnResponder),
    /// With the members.
    Group(GroupResponder, Vec<Proc>),
}

/// What stands open.
#[derive(Default)]
struct Requests {
    last: u64,
    /// Requests to the agent, by token.
    waiting: HashMap<u64, Waiting>,
    /// Processes that have finalized: their connections may break without a meaning (libpmix 5 reports some).
    finalized: HashSet<Proc>,
    /// How many groups there were.
    groups: u64,
    /// The place of this node among those of the world, and how many these are.
    node: (u32, usize),
}

/// Numbers of groups begin here.
const FIRST_CONTEXT: u64 = 1000;

impl Requests {
    fn add(&mut self, responder: Waiting) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, responder);
        self.last
    }

    fn serves(&mut self, world: &WorldInfo) {
        self.node = (world.me, world.nodes.len());
    }

    /// The world has ranks on other nodes.
    fn several(&self) -> bool {
        self.node.1 > 1
    }

    /// A number for a group that no other has, of whatever node.
    fn context(&mut self) -> u64 {
        let (me, nodes) = self.node;
        self.groups += 1;
        FIRST_CONTEXT + self.groups * nodes.max(1) as u64 + u64::from(me)
    }
}

fn complain(what: &dyn std::fmt::Display) {
    ft_sys::log::say(format_args!("ft-pmix: {what}"));
}

/// Room for so many descriptors is there from the beginning: enough for some hundred ranks, and 16 KiB of the kernel's.
const DESCRIPTORS: u64 = 2048;

/// The agent has so long to close the link when it was told that there is no server.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// ftrun reads in this file which build it is of.
#[used]
static BUILD: fn() = ft_sys::build::keep;

fn main() {
    ft_sys::process::die_of_faults();
    ft_sys::priority::put_back_as_told();
    // Without it, jobs only start more slowly.
    let _ = ft_sys::process::make_room_for_descriptors(DESCRIPTORS);
    // The agent has said it where it cannot.
    let _ = ft_sys::log::begin("ft-pmix");
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("FT_LOG"))
        .with_writer(|| ft_sys::log::Logged)
        .with_ansi(false)
        .log_internal_errors(false)
        .init();
    let code = match run() {
        Ok(()) => 0,
        Err(failure) => {
            complain(&failure);
            1
        }
    };
    ft_pmix::leave(code)
}

fn run() -> Result<(), Failure> {
    let fd = std::env::var("FT_PMIX_FD").ok().and_then(|fd| fd.parse().ok()).ok_or(Failure::Variable("FT_PMIX_FD"))?;
    let folder = std::env::var_os("FT_PMIX_TMPDIR").map(PathBuf::from).ok_or(Failure::Variable("FT_PMIX_TMPDIR"))?;
    let socket = ft_pmix::take_inherited_socket(fd).map_err(Failure::Socket)?;
    // What gethostname says; Open MPI compares it with the node's name in the job's information.
    let host = ft_sys::process::host_name().map_err(Failure::Host)?;

    let began = Instant::now();
    let server = match Server::start(&folder, &host) {
        Ok(server) => server,
        Err(error) => return refuse(socket, &format!("{error}{}", without_network())).map_err(Failure::Link),
    };
    tracing::debug!(version = Server::version(), took = ?began.elapsed(), "server started");

    // libpmix has a thread of its own; one more is enough.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(Failure::Link)?;
    runtime.block_on(serve(server, socket))
}

/// There is no server, and the next one would fare no better: the agent is told, and closes the link when it has read this.
fn refuse(mut socket: StdUnixStream, reason: &str) -> std::io::Result<()> {
    let frame = ft_wire::encode(&ToAgent::Failed { reason: reason.to_string() }, 0).map_err(std::io::Error::other)?;
    socket.write_all(&Preamble::ours(Role::Pmix).to_bytes())?;
    socket.write_all(&frame)?;
    socket.set_read_timeout(Some(LAST_WORDS))?;
    socket.read_to_end(&mut Vec::new()).map(drop)
}

/// libpmix names only numbers; this is what is wrong in a network name space of its own.
fn without_network() -> &'static str {
    let connected = std::net::UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| socket.connect(("127.0.0.1", 9)));
    match connected {
        Ok(()) => "",
        Err(_) => "; the loopback interface is down here, and Open MPI needs an interface (`ip link set lo up`)",
    }
}

async fn serve(mut server: Server, socket: StdUnixStream) -> Result<(), Failure> {
    socket.set_nonblocking(true).map_err(Failure::Link)?;
    let (mut reader, writer) = UnixStream::from_std(socket).map_err(Failure::Link)?.into_split();
    let (to_agent, queue) = mpsc::unbounded_channel();
    tokio::spawn(write(writer, queue));
    let send = |message: ToAgent| {
        // The writer ends only with the link, and the reader sees that, too.
        let _ = to_agent.send(message);
    };

    let mut theirs = [0; PREAMBLE_LEN];
    if let Err(error) = reader.read_exact(&mut theirs).await {
        return if is_end(&error) { Ok(()) } else { Err(Failure::Link(error)) };
    }
    let peer = Preamble::from_bytes(&theirs)?;
    if peer.role != Role::Agent {
        return Err(Failure::Stranger(peer.role));
    }
    send(ToAgent::Ready { version: Server::version() });

    let mut frames = FrameBuffer::default();
    let mut requests = Requests::default();
    loop {
        tokio::select! {
            message = next(&mut reader, &mut frames) => match message? {
                None => return Ok(()),
                Some(ToPmix::Register(world)) => {
                    let began = Instant::now();
                    requests.serves(&world);
                    match server.register(&world).await {
                        Ok(env) => {
                            tracing::debug!(took = ?began.elapsed(), "world registered");
                            send(ToAgent::Registered { env });
                        }
                        Err(error) => {
                            // The agent closes the link when it has read this.
                            send(ToAgent::Failed { reason: error.to_string() });
                        }
                    }
                }
                Some(ToPmix::Ask) => send(ToAgent::Here),
                Some(ToPmix::Raise(event)) => drop(tokio::spawn(raise(event))),
                Some(ToPmix::ModexRequest { token, proc }) => {
                    let to_agent = to_agent.clone();
                    // The process may not have committed its data yet: others must not wait for it.
                    tokio::spawn(async move {
                        let (status, data) = Server::modex_data(&proc).await;
                        let _ = to_agent.send(ToAgent::ModexData { token, rank: Some(proc.rank), status: status.0, data });
                    });
                }
                Some(answer) => answered(&mut requests, answer),
            },
            upcall = server.upcall() => {
                let Some(upcall) = upcall else { return Ok(()) };
                if let Some(message) = translate(upcall, &mut requests) {
                    send(message);
                }
            }
        }
    }
}

/// The local processes hear of an event of another node.
async fn raise(event: Raised) {
    if let Err(error) = Server::raise(event).await {
        complain(&format_args!("an event of another node does not come through: {error}"));
    }
}

/// Gives an answer of the agent to the responder that waits for it. One that nobody waits for is dropped.
fn answered(requests: &mut Requests, answer: ToPmix) {
    let (token, status, data, found) = match answer {
        ToPmix::GroupDone { token, status, context, shared } => {
            return grouped(requests, token, Status(status), context, shared);
        }
        ToPmix::FenceDone { token, status, data } | ToPmix::ModexDone { token, status, data } => {
            (token, status, data, Vec::new())
        }
        ToPmix::Done { token, status } => (token, status, Vec::new(), Vec::new()),
        ToPmix::Found { token, status, found } => (token, status, Vec::new(), found),
        ToPmix::Register(_) | ToPmix::Ask | ToPmix::Raise(_) | ToPmix::ModexRequest { .. } => return,
    };
    let status = Status(status);
    match requests.waiting.remove(&token) {
        Some(Waiting::Op(respond)) => respond.complete(status),
        Some(Waiting::Modex(respond)) => respond.complete(status, data),
        Some(Waiting::Lookup(respond)) => respond.complete(status, found),
        Some(Waiting::Spawn(respond)) => {
            // The protocol has no way to say what was spawned yet, so "success" would be a lie.
            respond.complete(Err(if status == Status::SUCCESS { Status::NOT_SUPPORTED } else { status }));
        }
        // It is answered with an error when it is dropped.
        Some(Waiting::Group(..)) | None => tracing::warn!(token, "an answer that nobody waits for"),
    }
}

/// All members of a group over several nodes are in.
fn grouped(requests: &mut Requests, token: u64, status: Status, context: u64, shared: Vec<u8>) {
    match requests.waiting.remove(&token) {
        Some(Waiting::Group(respond, members)) => {
            let constructed = constructed(context, members, Some(shared));
            respond.complete(status, (status == Status::SUCCESS).then_some(constructed));
        }
        _ => tracing::warn!(token, "an answer that nobody waits for"),
    }
}

fn constructed(context: u64, members: Vec<Proc>, shared: Option<Vec<u8>>) -> Constructed {
    Constructed { context: usize::try_from(context).unwrap_or(usize::MAX), members, shared }
}

/// The message that an upcall becomes; what needs no agent is answered at once.
fn translate(upcall: Upcall, requests: &mut Requests) -> Option<ToAgent> {
    tracing::trace!(?upcall);
    let message = match upcall {
        Upcall::Connected { proc, respond } => {
            respond.complete(Status::SUCCESS);
            // A process may come again after it finalized (MPI sessions).
            requests.finalized.remove(&proc);
            ToAgent::Connected { rank: proc.rank }
        }
        Upcall::Finalized { proc, respond } => {
            // It may end as soon as it is answered, and is not to be taken for one that has ended without this.
            let (token, rank) = (requests.add(Waiting::Op(respond)), proc.rank);
            requests.finalized.insert(proc);
            ToAgent::Finalized { token, rank }
        }
        Upcall::LostConnection { proc } if requests.finalized.contains(&proc) => return None,
        Upcall::LostConnection { proc } => ToAgent::LostConnection { rank: proc.rank },
        Upcall::Abort { proc, status, message, respond } => {
            let token = requests.add(Waiting::Op(respond));
            ToAgent::Abort { token, rank: proc.rank, status, message }
        }
        Upcall::Fence { procs, data, respond } => {
            ToAgent::Fence { token: requests.add(Waiting::Modex(respond)), procs, data }
        }
        Upcall::Modex { proc, respond } => ToAgent::Modex { token: requests.add(Waiting::Modex(respond)), proc },
        Upcall::Publish { proc, values, once, respond } => {
            ToAgent::Publish { token: requests.add(Waiting::Op(respond)), proc, values, once }
        }
        Upcall::Lookup { proc, keys, wait, seconds, respond } => {
            ToAgent::Lookup { token: requests.add(Waiting::Lookup(respond)), proc, keys, wait, seconds }
        }
        Upcall::Unpublish { proc, keys, respond } => {
            ToAgent::Unpublish { token: requests.add(Waiting::Op(respond)), proc, keys }
        }
        Upcall::Connect { procs, connect, respond } => {
            ToAgent::Connect { token: requests.add(Waiting::Op(respond)), procs, connect }
        }
        Upcall::Spawn { proc, command, respond } => {
            ToAgent::Spawn { token: requests.add(Waiting::Spawn(respond)), proc, command }
        }
        Upcall::Group { name, members, shared, respond } if requests.several() => {
            let (context, procs) = (requests.context(), members.clone());
            let token = requests.add(Waiting::Group(respond, members));
            ToAgent::Group { token, name, procs, context, shared: shared.unwrap_or_default() }
        }
        Upcall::Group { members, shared, respond, .. } => {
            let constructed = constructed(requests.context(), members, shared);
            respond.complete(Status::SUCCESS, Some(constructed));
            return None;
        }
        Upcall::Notified { event, far: true } if requests.several() => ToAgent::Raised(event),
        Upcall::Notified { .. } => return None,
    };
    Some(message)
}

fn is_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset)
}

/// The next message; `None` at the link's end. Nothing is lost when the future is dropped.
async fn next(reader: &mut OwnedReadHalf, frames: &mut FrameBuffer) -> Result<Option<ToPmix>, Failure> {
    loop {
        if let Some((body, _)) = frames.next_frame()? {
            return Ok(Some(ft_wire::decode(&body)?));
        }
        let mut bytes = [0; 1 << 16];
        match reader.read(&mut bytes).await {
            Ok(0) => return Ok(None),
            Ok(count) => frames.push(&bytes[..count]),
            Err(error) if is_end(&error) => return Ok(None),
            Err(error) => return Err(Failure::Link(error)),
        }
    }
}

/// Writes everything that is queued. Ends with the link.
async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<ToAgent>) {
    if writer.write_all(&Preamble::ours(Role::Pmix).to_bytes()).await.is_err() {
        return;
    }
    while let Some(message) = queue.recv().await {
        let frame = match ft_wire::encode(&message, 0) {
            Ok(frame) => frame,
            Err(error) => match too_long(&message, &error) {
                Ok(frame) => frame,
                Err(error) => {
                    complain(&error);
                    ft_pmix::leave(1)
                }
            },
        };
        if writer.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// The world cannot go on without that message, and the next world would not, either: this one does not just end, it says why.
fn too_long(message: &ToAgent, error: &FrameError) -> Result<Vec<u8>, FrameError> {
    let rank = match message {
        ToAgent::Publish { proc, .. } => Some(proc.rank),
        ToAgent::Raised(event) => Some(event.source.rank),
        ToAgent::ModexData { rank, .. } => *rank,
        ToAgent::Abort { rank, .. } => Some(*rank),
        _ => None,
    };
    ft_wire::encode(&ToAgent::TooLong { rank, error: error.to_string() }, 0)
}
