//! The PMI-1.1 wire protocol, server side, for the MPICH family (MPICH, Intel MPI, MVAPICH). Pure: no I/O, no clock.
//!
//! One [`World`] per incarnation of `MPI_COMM_WORLD` and node. The caller owns the sockets: it feeds what a rank sent
//! ([`World::receive`]) and does what comes back, in order: bytes to send, and events. A barrier that every local rank has
//! entered is only reported; the caller ends it ([`World::barrier_complete`]) when all nodes are in, so several nodes,
//! or whoever wants to hold ranks inside `MPI_Init`, need no other door. The same holds for published names.
//!
//! ```
//! use ft_pmi1::{Action, Event, World};
//! let mut world = World::new("job-1", vec![0, 0], 0)?;
//! world.receive(0, b"cmd=barrier_in\n")?;
//! let actions = world.receive(1, b"cmd=barrier_in\n")?;
//! assert_eq!(actions, [Action::Event(Event::BarrierReady { puts: vec![] })]);
//! assert_eq!(world.barrier_complete([])?.len(), 2); // one "barrier_out" for each
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod line;
mod mapping;
mod names;

use line::{Fields, Lines};
pub use names::{NameAnswer, NameRequest, Names};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Longest accepted line in bytes. The clients' own limit is 1024 (PMI of MPICH 3) to 4096.
pub const MAX_LINE: usize = 1 << 16;
/// Longest accepted key; announced to clients.
pub const MAX_KEY: usize = 64;
/// Longest accepted value; announced to clients.
pub const MAX_VALUE: usize = 4096;
/// Longest accepted key space name; announced to clients.
pub const MAX_NAME: usize = 256;
/// Most bytes that all keys and values of a world may take, however large it is.
pub const MAX_STORE: usize = 256 << 20;
/// What a world of no ranks might take of that; the rest is for its ranks, which put a few keys each.
const STORE_BASE: usize = 8 << 20;
/// See [`STORE_BASE`].
const STORE_PER_RANK: usize = 64 << 10;
/// What a key costs besides its bytes, which are there twice.
const KEY_COST: usize = 128;

/// What Intel MPI needs so that waiting ranks give the processor away, as they do below its own launcher when a node has
/// more ranks than processors. A value that the user has set goes before it. MPICH does not know it.
pub const OVERSUBSCRIBED: (&str, &str) = ("I_MPI_THREAD_YIELD", "2");

/// What keeps MPICH 5 from guessing, which it refuses where it finds the words of PMIx beside those of PMI-1. A value that the user
/// has set goes before it.
pub const VERSION: (&str, &str) = ("MPIR_CVAR_PMI_VERSION", "1");

const PROCESS_MAPPING: &str = "PMI_process_mapping";

/// What a caller has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes to this rank.
    Send {
        /// The rank.
        rank: u32,
        /// Whole lines.
        bytes: Vec<u8>,
    },
    /// Something happened.
    Event(Event),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A rank said its first word (it is inside the native `MPI_Init`).
    Initialized {
        /// The rank.
        rank: u32,
    },
    /// A rank entered the barrier, and others of this node are still missing.
    Entered {
        /// The rank.
        rank: u32,
    },
    /// Every local rank is inside the barrier: call [`World::barrier_complete`] when the other nodes are, too.
    BarrierReady {
        /// Keys and values put on this node since the last barrier; the other nodes need them.
        puts: Vec<(String, String)>,
    },
    /// A rank called `PMI_Abort`. It gets no answer. MPICH 4 and Intel MPI exit by themselves then; MPICH 5 *returns* from
    /// `MPI_Abort` and computes on until it is killed, so the caller must stop the rank at once. What the rank still says
    /// is answered, and makes no [`Event::Finalized`].
    Aborted {
        /// The rank.
        rank: u32,
        /// Exit code that it passed.
        code: i32,
        /// Message that it passed; empty when there is none.
        message: String,
    },
    /// A rank called `PMI_Finalize`; it was answered.
    Finalized {
        /// The rank.
        rank: u32,
    },
    /// A rank publishes, looks up or withdraws a name; it waits for [`World::answer_name`].
    Name {
        /// The rank.
        rank: u32,
        /// What it wants.
        request: NameRequest,
    },
    /// `MPI_Comm_spawn` was refused; the rank was told.
    SpawnRefused {
        /// The rank.
        rank: u32,
        /// The program it wanted to start.
        command: String,
    },
    /// The key space is full; the rank was told, as is every rank that puts a key from now on.
    Full {
        /// The rank that came first.
        rank: u32,
        /// The limit in bytes.
        most: usize,
    },
    /// The rank broke the protocol. Nothing more is read from it; its connection is to be closed.
    Broken {
        /// The rank.
        rank: u32,
        /// What was wrong.
        error: ProtocolError,
    },
}

/// How a rank broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No newline within the limit.
    #[error("a PMI line is longer than {MAX_LINE} bytes")]
    LineTooLong,
    /// The line holds bytes that are no text.
    #[error("a PMI line is not text")]
    NotText,
    /// The line holds no command, or one that PMI-1.1 does not have.
    #[error("unknown PMI command in {0:?}")]
    UnknownCommand(String),
    /// A command without one of its fields, or with one that does not parse.
    #[error("PMI command {command:?} without a valid {field:?}")]
    Field {
        /// The command.
        command: String,
        /// The field.
        field: &'static str,
    },
    /// A command at a moment when the rank may not send it.
    #[error("PMI command {command:?} {state}")]
    OutOfTurn {
        /// The command.
        command: String,
        /// The rank's state, for people.
        state: &'static str,
    },
}

/// Misuse by the caller, not by a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// A world needs ranks.
    #[error("a PMI world of no ranks")]
    Empty,
    /// Clients cut longer names.
    #[error("PMI key space name {0:?} is empty, longer than {MAX_NAME} bytes, or has blanks")]
    BadName(String),
    /// Clients would cut the text that maps ranks to nodes, and ranks would believe wrong things.
    #[error("the placement of {ranks} ranks takes {bytes} bytes as PMI_process_mapping, and clients read {MAX_VALUE}")]
    MappingTooLong {
        /// Number of ranks.
        ranks: usize,
        /// Length of the text.
        bytes: usize,
    },
    /// The rank does not live on this node.
    #[error("rank {0} is not a rank of this node")]
    NotLocal(u32),
    /// Not every local rank is in.
    #[error("the PMI barrier was ended while {0} of this node's ranks had not entered it")]
    BarrierNotReady(usize),
    /// The rank waits for no name.
    #[error("rank {0} waits for no answer about a name")]
    NoRequest(u32),
}

#[derive(Debug, Default)]
struct Connection {
    lines: Lines,
    initialized: bool,
    finalized: bool,
    aborted: bool,
    broken: bool,
    in_barrier: bool,
    name: Option<NameRequest>,
    spawn: Option<Spawn>,
}

/// A spawn command under way: several blocks of lines, one block per program.
#[derive(Debug, Default)]
struct Spawn {
    inside: bool,
    total: usize,
    blocks: usize,
    command: String,
}

/// The PMI server's state for one world on one node.
#[derive(Debug)]
pub struct World {
    name: String,
    me: u32,
    size: usize,
    mapping: String,
    local: BTreeMap<u32, Connection>,
    store: HashMap<String, String>,
    /// Keys in the order in which they came, for `getbyidx`.
    order: Vec<String>,
    bytes: usize,
    full: bool,
    /// Keys put since the last barrier, in their order.
    fresh: Vec<String>,
    is_fresh: HashSet<String>,
}

impl World {
    /// A world whose rank `r` lives on node `node_of_rank[r]`, as seen from node `me`.
    ///
    /// The name must be new on every node of the world, whatever job or user had it before: MPICH 5 derives the name of
    /// its shared memory from it ([`World::shared_memory_files`]), and ranks that find an older world's file hang.
    ///
    /// # Errors
    /// A name or a placement that clients cannot read.
    pub fn new(name: &str, node_of_rank: Vec<u32>, me: u32) -> Result<Self, WorldError> {
        if node_of_rank.is_empty() {
            return Err(WorldError::Empty);
        }
        if name.is_empty() || name.len() >= MAX_NAME || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(WorldError::BadName(name.to_string()));
        }
        let mapping = mapping::process_mapping(&node_of_rank);
        if mapping.len() >= MAX_VALUE {
            return Err(WorldError::MappingTooLong { ranks: node_of_rank.len(), bytes: mapping.len() });
        }
        let local = node_of_rank.iter().zip(0..).filter(|(node, _)| **node == me);
        let local = local.map(|(_, rank)| (rank, Connection::default())).collect();
        Ok(World {
            name: name.to_string(),
            me,
            size: node_of_rank.len(),
            mapping,
            local,
            store: HashMap::new(),
            order: Vec::new(),
            bytes: 0,
            full: false,
            fresh: Vec::new(),
            is_fresh: HashSet::new(),
        })
    }

    /// Environment of a rank of this world, apart from `PMI_FD`; for a rank of another node, empty.
    pub fn environment(&self, rank: u32) -> Vec<(String, String)> {
        let Some(local) = self.local.keys().position(|local| *local == rank) else { return Vec::new() };
        // The last two are for programs that look (to choose a GPU, for example); MPICH's launcher sets them.
        [
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", self.size.to_string()),
            ("PMI_SPAWNED", "0".to_string()),
            ("MPI_LOCALRANKID", local.to_string()),
            ("MPI_LOCALNRANKS", self.local.len().to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .to_vec()
    }

    /// The files that MPICH 5 makes on this node. Their names hold no more than 32 bits of the world's name: one that is
    /// there before the first rank starts is another world's, and asks for another name.
    pub fn shared_memory_files(&self) -> [String; 2] {
        // FNV-1a, as in MPICH's `HASH_FNV`.
        let hash = self.name.bytes().fold(2_166_136_261_u32, |h, byte| (h ^ u32::from(byte)).wrapping_mul(16_777_619));
        ["shm", "vci"].map(|kind| format!("/dev/shm/mpich_{kind}_{hash:x}_{}", self.me))
    }

    /// Takes bytes that `rank` sent, cut anywhere.
    ///
    /// # Errors
    /// [`WorldError::NotLocal`]. What a rank does wrong is an [`Event::Broken`].
    pub fn receive(&mut self, rank: u32, bytes: &[u8]) -> Result<Vec<Action>, WorldError> {
        let mut actions = Vec::new();
        let connection = self.local.get_mut(&rank).ok_or(WorldError::NotLocal(rank))?;
        if connection.broken {
            return Ok(actions);
        }
        let lines = connection.lines.push(bytes);
        for line in lines {
            let result = line.and_then(|line| self.line(rank, &line, &mut actions));
            if let Err(error) = result {
                if let Some(connection) = self.local.get_mut(&rank) {
                    connection.broken = true;
                }
                actions.push(Action::Event(Event::Broken { rank, error }));
                break;
            }
        }
        Ok(actions)
    }

    /// Ends the barrier that [`Event::BarrierReady`] reported. `puts` are the keys and values of the other nodes.
    ///
    /// # Errors
    /// [`WorldError::BarrierNotReady`]: nothing was done.
    pub fn barrier_complete(
        &mut self,
        puts: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Vec<Action>, WorldError> {
        let missing = self.local.values().filter(|c| !c.in_barrier).count();
        if missing > 0 || self.local.is_empty() {
            return Err(WorldError::BarrierNotReady(missing));
        }
        for (key, value) in puts {
            self.insert(key, value);
        }
        Ok(self
            .local
            .iter_mut()
            .map(|(rank, connection)| {
                connection.in_barrier = false;
                send(*rank, "cmd=barrier_out rc=0".to_string())
            })
            .collect())
    }

    /// Answers an [`Event::Name`].
    ///
    /// # Errors
    /// [`WorldError::NotLocal`] or [`WorldError::NoRequest`]: nothing was done.
    pub fn answer_name(&mut self, rank: u32, answer: NameAnswer) -> Result<Vec<Action>, WorldError> {
        let connection = self.local.get_mut(&rank).ok_or(WorldError::NotLocal(rank))?;
        let request = connection.name.take().ok_or(WorldError::NoRequest(rank))?;
        Ok(vec![send(rank, request.reply(&answer))])
    }

    /// Whether `rank` has said its first word and not finalized: its death or disconnection now is no clean end.
    pub fn is_active(&self, rank: u32) -> bool {
        self.local.get(&rank).is_some_and(|c| c.initialized && !c.finalized)
    }

    fn insert(&mut self, key: String, value: String) -> bool {
        let old = self.store.get(&key).map_or(0, |old| cost(&key, old));
        let bytes = self.bytes - old + cost(&key, &value);
        if bytes > self.most() {
            return false;
        }
        self.bytes = bytes;
        if self.store.insert(key.clone(), value).is_none() {
            self.order.push(key);
        }
        true
    }

    /// Most bytes that keys and values may take here.
    fn most(&self) -> usize {
        MAX_STORE.min(STORE_BASE + STORE_PER_RANK * self.size)
    }

    /// A key that a rank of this node puts.
    fn put(&mut self, rank: u32, key: &str, value: &str, actions: &mut Vec<Action>) {
        let stored = self.insert(key.to_string(), value.to_string());
        if stored && self.is_fresh.insert(key.to_string()) {
            self.fresh.push(key.to_string());
        }
        let result = if stored { "rc=0 msg=success" } else { "rc=-1 msg=key_space_full" };
        actions.push(send(rank, format!("cmd=put_result {result}")));
        if !stored && !std::mem::replace(&mut self.full, true) {
            actions.push(Action::Event(Event::Full { rank, most: self.most() }));
        }
    }

    fn line(&mut self, rank: u32, line: &str, actions: &mut Vec<Action>) -> Result<(), ProtocolError> {
        // `receive` has looked the rank up; a second look keeps this function free of a borrow of `self`.
        let Some(connection) = self.local.get_mut(&rank) else { return Ok(()) };
        if connection.spawn.as_ref().is_some_and(|spawn| spawn.inside) {
            spawn_line(connection, rank, line, actions);
            return Ok(());
        }
        let fields = Fields::parse(line);
        let Some(command) = fields.command() else {
            return Err(ProtocolError::UnknownCommand(shorten(line)));
        };
        let out_of_turn = |state| Err(ProtocolError::OutOfTurn { command: command.to_string(), state });
        if connection.in_barrier && command != "abort" {
            return out_of_turn("from inside the barrier");
        }
        if connection.name.is_some() && command != "abort" {
            return out_of_turn("before the answer about a name came");
        }
        let field = |name: &'static str| {
            fields.get(name).ok_or(ProtocolError::Field { command: command.to_string(), field: name })
        };
        let bounded = |name: &'static str, most: usize| {
            let value = field(name)?;
            if value.is_empty() || value.len() >= most {
                return Err(ProtocolError::Field { command: command.to_string(), field: name });
            }
            Ok(value)
        };
        let mut reply = |text: String| actions.push(send(rank, text));
        match command {
            "init" => {
                let rc = if fields.get("pmi_version") == Some("1") { 0 } else { -1 };
                reply(format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc={rc}"));
                // MPI sessions may come and go: a second init is no error.
                connection.finalized = false;
                if rc == 0 && !connection.initialized {
                    connection.initialized = true;
                    actions.push(Action::Event(Event::Initialized { rank }));
                }
            }
            "get_maxes" => {
                reply(format!("cmd=maxes kvsname_max={MAX_NAME} keylen_max={MAX_KEY} vallen_max={MAX_VALUE} rc=0"));
            }
            "get_appnum" => reply("cmd=appnum appnum=0 rc=0".to_string()),
            "get_my_kvsname" => reply(format!("cmd=my_kvsname kvsname={} rc=0", self.name)),
            "get_universe_size" => reply(format!("cmd=universe_size size={} rc=0", self.size)),
            "put" => {
                let (key, value) = (field("key")?, field("value")?);
                if key.is_empty() || key.len() >= MAX_KEY || value.len() >= MAX_VALUE {
                    reply("cmd=put_result rc=-1 msg=key_or_value_too_long".to_string());
                } else {
                    self.put(rank, key, value, actions);
                }
            }
            "get" => {
                let key = field("key")?;
                let value = if key == PROCESS_MAPPING { Some(&self.mapping) } else { self.store.get(key) };
                reply(match value {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                    None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_string(),
                });
            }
            "getbyidx" => {
                let index: Option<usize> = field("idx")?.parse().ok();
                let index = index.ok_or(ProtocolError::Field { command: command.to_string(), field: "idx" })?;
                let entry = self.order.get(index).and_then(|key| Some((key, self.store.get(key)?)));
                reply(match entry {
                    Some((key, value)) => {
                        format!("cmd=getbyidx_results rc=0 nextidx={} key={key} val={value}", index + 1)
                    }
                    None => "cmd=getbyidx_results rc=-1 reason=no_more_keyvals".to_string(),
                });
            }
            "barrier_in" => {
                if connection.finalized {
                    return out_of_turn("after finalize");
                }
                connection.in_barrier = true;
                if self.local.values().all(|c| c.in_barrier) {
                    self.is_fresh.clear();
                    let keys = std::mem::take(&mut self.fresh).into_iter();
                    let puts = keys.filter_map(|key| self.store.get(&key).cloned().map(|value| (key, value))).collect();
                    actions.push(Action::Event(Event::BarrierReady { puts }));
                } else {
                    actions.push(Action::Event(Event::Entered { rank }));
                }
            }
            "finalize" => {
                reply("cmd=finalize_ack rc=0".to_string());
                if !connection.aborted {
                    connection.finalized = true;
                    actions.push(Action::Event(Event::Finalized { rank }));
                }
            }
            "abort" => {
                let code = fields.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                let message = fields.get("message").unwrap_or_default().to_string();
                connection.aborted = true;
                actions.push(Action::Event(Event::Aborted { rank, code, message }));
            }
            "publish_name" | "lookup_name" | "unpublish_name" => {
                let service = bounded("service", MAX_VALUE)?.to_string();
                let request = match command {
                    "publish_name" => NameRequest::Publish { service, port: bounded("port", MAX_VALUE)?.to_string() },
                    "lookup_name" => NameRequest::Lookup { service },
                    _ => NameRequest::Unpublish { service },
                };
                connection.name = Some(request.clone());
                actions.push(Action::Event(Event::Name { rank, request }));
            }
            "spawn" => {
                let spawn = connection.spawn.get_or_insert_default();
                spawn.inside = true;
                spawn.total = spawn.total.max(1);
            }
            _ => return Err(ProtocolError::UnknownCommand(shorten(line))),
        }
        Ok(())
    }
}

/// One line inside a spawn command's block. The answer follows the last block.
fn spawn_line(connection: &mut Connection, rank: u32, line: &str, actions: &mut Vec<Action>) {
    let Some(spawn) = connection.spawn.as_mut() else { return };
    // Arguments hold blanks and equal signs, so the first equal sign alone divides the line.
    match line.split_once('=') {
        Some(("totspawns", total)) => spawn.total = total.trim().parse().unwrap_or(1),
        Some(("execname", command)) if spawn.command.is_empty() => spawn.command = shorten(command),
        _ => {}
    }
    if line.trim() == "endcmd" {
        spawn.inside = false;
        spawn.blocks += 1;
        if spawn.blocks >= spawn.total {
            let command = std::mem::take(&mut spawn.command);
            connection.spawn = None;
            actions.push(send(rank, "cmd=spawn_result rc=-1 msg=spawn_is_not_supported_by_this_job errmsg=spawn_is_not_supported_by_this_job".to_string()));
            actions.push(Action::Event(Event::SpawnRefused { rank, command }));
        }
    }
}

/// What a key and its value take, with what holds them.
fn cost(key: &str, value: &str) -> usize {
    2 * key.len() + value.len() + KEY_COST
}

fn send(rank: u32, mut text: String) -> Action {
    text.push('\n');
    Action::Send { rank, bytes: text.into_bytes() }
}

/// A line as it may stand in a message for people.
fn shorten(line: &str) -> String {
    line.chars().take(120).collect()
}
