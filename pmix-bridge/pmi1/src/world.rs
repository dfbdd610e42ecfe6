//! The server's state for one world on one node.

use crate::action::send;
use crate::line::Lines;
use crate::request::{self, Request};
use crate::spawn::Spawn;
use crate::store::KeySpace;
use crate::{Action, Event, MAX_KEY, MAX_NAME, MAX_VALUE, NameAnswer, NameRequest, ProtocolError, WorldError, mapping};
use std::collections::BTreeMap;

const PROCESS_MAPPING: &str = "PMI_process_mapping";

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

/// The PMI server's state for one world on one node.
#[derive(Debug)]
pub struct World {
    name: String,
    me: u32,
    size: usize,
    mapping: String,
    local: BTreeMap<u32, Connection>,
    /// The numbers of their programs; of those that are not there it is 0.
    programs: BTreeMap<u32, u32>,
    keys: KeySpace,
    /// Somebody was told that there is no room for its key.
    full: bool,
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
            programs: BTreeMap::new(),
            keys: KeySpace::of(node_of_rank.len()),
            full: false,
        })
    }

    /// Ranks of this node are of several programs: so says MPI_APPNUM there.
    pub fn number_programs(&mut self, number: impl Fn(u32) -> u32) {
        self.programs = self.local.keys().map(|rank| (*rank, number(*rank))).collect();
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
    /// [`WorldError::BarrierNotReady`]: nothing was done. [`WorldError::Full`]: the ranks wait on.
    pub fn barrier_complete(
        &mut self,
        puts: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Vec<Action>, WorldError> {
        let missing = self.local.values().filter(|c| !c.in_barrier).count();
        if missing > 0 || self.local.is_empty() {
            return Err(WorldError::BarrierNotReady(missing));
        }
        for (key, value) in puts {
            if !self.keys.insert(key, value) {
                return Err(WorldError::Full(self.keys.most()));
            }
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

    fn line(&mut self, rank: u32, line: &str, actions: &mut Vec<Action>) -> Result<(), ProtocolError> {
        // `receive` has looked the rank up; a second look keeps this function free of a borrow of `self`.
        let Some(connection) = self.local.get_mut(&rank) else { return Ok(()) };
        if let Some(spawn) = connection.spawn.as_mut().filter(|spawn| spawn.is_inside()) {
            if let Some(refusal) = spawn.line(rank, line) {
                connection.spawn = None;
                actions.extend(refusal);
            }
            return Ok(());
        }
        let (command, request) = request::parse(line)?;
        if let Some(state) = connection.forbids(&request) {
            return Err(ProtocolError::OutOfTurn { command: command.to_string(), state });
        }
        let mut reply = |text: String| actions.push(send(rank, text));
        match request {
            Request::Init { known } => connection.initialize(rank, known, actions),
            Request::Maxes => {
                reply(format!("cmd=maxes kvsname_max={MAX_NAME} keylen_max={MAX_KEY} vallen_max={MAX_VALUE} rc=0"));
            }
            Request::Appnum => {
                let number = self.programs.get(&rank).copied().unwrap_or(0);
                reply(format!("cmd=appnum appnum={number} rc=0"));
            }
            Request::KeySpaceName => reply(format!("cmd=my_kvsname kvsname={} rc=0", self.name)),
            Request::UniverseSize => reply(format!("cmd=universe_size size={} rc=0", self.size)),
            Request::Put { key, value } => self.put(rank, key, value, actions),
            Request::Get { key } => reply(self.get(key)),
            Request::GetByIndex { index } => reply(self.get_by_index(index)),
            Request::Barrier => self.enter_barrier(rank, actions),
            Request::Finalize => connection.finalize(rank, actions),
            Request::Abort { code, message } => {
                connection.aborted = true;
                actions.push(Action::Event(Event::Aborted { rank, code, message: message.to_string() }));
            }
            Request::Name(request) => {
                connection.name = Some(request.clone());
                actions.push(Action::Event(Event::Name { rank, request }));
            }
            Request::Spawn => connection.spawn.get_or_insert_default().begin_block(),
        }
        Ok(())
    }

    /// A key that a rank of this node puts.
    fn put(&mut self, rank: u32, key: &str, value: &str, actions: &mut Vec<Action>) {
        if key.is_empty() || key.len() >= MAX_KEY || value.len() >= MAX_VALUE {
            return actions.push(send(rank, "cmd=put_result rc=-1 msg=key_or_value_too_long".to_string()));
        }
        let stored = self.keys.put(key, value);
        let result = if stored { "rc=0 msg=success" } else { "rc=-1 msg=key_space_full" };
        actions.push(send(rank, format!("cmd=put_result {result}")));
        if !stored && !std::mem::replace(&mut self.full, true) {
            actions.push(Action::Event(Event::Full { rank, most: self.keys.most() }));
        }
    }

    fn get(&self, key: &str) -> String {
        let value = if key == PROCESS_MAPPING { Some(&self.mapping) } else { self.keys.get(key) };
        match value {
            Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
            None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_string(),
        }
    }

    fn get_by_index(&self, index: usize) -> String {
        match self.keys.nth(index) {
            Some((key, value)) => format!("cmd=getbyidx_results rc=0 nextidx={} key={key} val={value}", index + 1),
            None => "cmd=getbyidx_results rc=-1 reason=no_more_keyvals".to_string(),
        }
    }

    fn enter_barrier(&mut self, rank: u32, actions: &mut Vec<Action>) {
        if let Some(connection) = self.local.get_mut(&rank) {
            connection.in_barrier = true;
        }
        let event = if self.local.values().all(|connection| connection.in_barrier) {
            Event::BarrierReady { puts: self.keys.take_fresh() }
        } else {
            Event::Entered { rank }
        };
        actions.push(Action::Event(event));
    }
}

impl Connection {
    /// In which state the rank may not ask for this, for people.
    fn forbids(&self, request: &Request<'_>) -> Option<&'static str> {
        match request {
            Request::Abort { .. } => None,
            _ if self.in_barrier => Some("from inside the barrier"),
            _ if self.name.is_some() => Some("before the answer about a name came"),
            Request::Barrier if self.finalized => Some("after finalize"),
            _ => None,
        }
    }

    fn initialize(&mut self, rank: u32, known: bool, actions: &mut Vec<Action>) {
        let rc = if known { 0 } else { -1 };
        actions.push(send(rank, format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc={rc}")));
        // MPI sessions may come and go: a second init is no error.
        self.finalized = false;
        if known && !self.initialized {
            self.initialized = true;
            actions.push(Action::Event(Event::Initialized { rank }));
        }
    }

    fn finalize(&mut self, rank: u32, actions: &mut Vec<Action>) {
        actions.push(send(rank, "cmd=finalize_ack rc=0".to_string()));
        if !self.aborted {
            self.finalized = true;
            actions.push(Action::Event(Event::Finalized { rank }));
        }
    }
}
