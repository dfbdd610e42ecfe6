//! What this node has of `ft-ship`: a process that is started when it is first wanted, and again when it has died.

use crate::outlet::Outlet;
use crate::ship_host::{self, HostId, ShipHost};
use ft_arena::AgentArena;
use ft_sys::pulse::Beat;
use ft_sys::timescale::scaled;
use ft_wire::Rank;
use ft_wire::launcher::JobSpec;
use ft_wire::ship::{Arena, Direction, Move, Target, ToShip, Window};
use ftd_core::NodeId;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// So many deaths in a row, without a move that succeeded, and it is not started again.
const MOST_DEATHS: u32 = 3;
/// A move of which nothing moves for so long has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A part of an arena.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Whose arena.
    pub rank: Rank,
    /// That arena.
    pub arena: &'a AgentArena,
    /// The place in it.
    pub place: u32,
    /// How much of that, from its beginning. (A version without a region has nothing, and a byte moves all the same.)
    pub bytes: u64,
}

/// Of another node.
#[derive(Debug, Clone, Copy)]
pub struct Far<'a> {
    /// Which.
    pub node: NodeId,
    /// Its `ft-ship`.
    pub address: &'a [u8],
    /// Its window.
    pub target: Target,
}

/// The process, and what it knows.
#[derive(Debug)]
pub struct Ship {
    program: PathBuf,
    own: IpAddr,
    /// The providers that this node's daemon names.
    fabric: Option<String>,
    /// Bytes a second; 0: no limit.
    rate: u64,
    /// The rate counts now.
    limited: bool,
    host: Option<ShipHost>,
    /// Where it is, for others; it is ready.
    address: Option<Vec<u8>>,
    /// Numbers are never used again.
    last: u64,
    arenas: BTreeMap<Rank, Arena>,
    peers: BTreeMap<NodeId, Vec<u8>>,
    deaths: u32,
    failed: Option<String>,
    beat: Beat,
    news: Outlet<ship_host::News>,
}

impl Ship {
    /// None yet.
    pub fn new(spec: &JobSpec, news: Outlet<ship_host::News>) -> Ship {
        let own = spec.cluster.as_ref().and_then(|cluster| cluster.own());
        Ship {
            program: spec.ft_ship.clone(),
            own: own.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |node| node.address),
            fabric: spec.fabric.clone(),
            rate: spec.copy_rate,
            limited: true,
            host: None,
            address: None,
            last: 0,
            arenas: BTreeMap::new(),
            peers: BTreeMap::new(),
            deaths: 0,
            failed: None,
            beat: Beat::new(Instant::now()),
            news,
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// It is wanted: there is one now.
    ///
    /// # Errors
    /// Why there is none, and will be none.
    pub fn wake(&mut self) -> Result<(), String> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone());
        }
        if self.host.is_some() {
            return Ok(());
        }
        let id = self.next();
        match ShipHost::start(id, &self.program, self.news.clone()) {
            Ok(host) => {
                let open = ToShip::Open { provider: None, address: self.own, among: self.fabric.clone() };
                host.send(open, Vec::new());
                self.host = Some(host);
                self.say_rate();
                Ok(())
            }
            Err(reason) => Err(self.failed.insert(reason).clone()),
        }
    }

    /// Whether its rate counts from now on.
    pub fn limit(&mut self, limited: bool) {
        if std::mem::replace(&mut self.limited, limited) != limited {
            self.say_rate();
        }
    }

    fn say_rate(&self) {
        if self.rate > 0 {
            self.say(ToShip::Rate { bytes: if self.limited { self.rate } else { 0 } });
        }
    }

    /// Whether news of this process are of the one that is wanted; it has answered with that.
    pub fn is(&mut self, host: HostId) -> bool {
        let known = self.host.as_mut().filter(|known| known.id == host);
        known.map(ShipHost::answered).is_some()
    }

    /// It can do what it is asked.
    pub fn ready(&mut self, address: Vec<u8>) {
        self.address = Some(address);
    }

    /// Where it is, once it is ready.
    pub fn address(&self) -> Option<&[u8]> {
        self.address.as_deref()
    }

    /// Its moves succeed.
    pub fn succeeds(&mut self) {
        self.deaths = 0;
    }

    /// It finds no provider.
    pub fn finds_none(&mut self, reason: String) {
        match &self.fabric {
            Some(named) => self.fail(format!("{reason}; the node's ftd.toml has jobs.fabric = \"{named}\"")),
            None => self.fail(reason),
        }
    }

    /// It is not to be had on this node.
    pub fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
    }

    /// The process is gone, with its windows and moves.
    pub fn left(&mut self, reason: &str) {
        tracing::warn!(reason, "ft-ship is gone");
        (self.host, self.address) = (None, None);
        self.arenas.clear();
        self.peers.clear();
        self.deaths += 1;
        if self.deaths >= MOST_DEATHS {
            self.fail(format!("ft-ship died {MOST_DEATHS} times in a row"));
        }
    }

    fn say(&self, message: ToShip) {
        if let Some(host) = &self.host {
            host.send(message, Vec::new());
        }
    }

    /// What the arena is called, which is mapped if it was not.
    fn arena(&mut self, rank: Rank, arena: &AgentArena) -> Result<Arena, String> {
        self.wake()?;
        if let Some(known) = self.arenas.get(&rank) {
            return Ok(*known);
        }
        let fd = arena.descriptor().map_err(|error| error.to_string())?;
        let id = self.next();
        if let Some(host) = &self.host {
            host.send(ToShip::Map { arena: id, bytes: arena.file_bytes() }, vec![fd]);
        }
        self.arenas.insert(rank, id);
        Ok(id)
    }

    /// Lets another node at a part of an arena.
    ///
    /// # Errors
    /// When there is no `ft-ship`, or no descriptor.
    pub fn expose(&mut self, part: Part<'_>, writable: bool) -> Result<Window, String> {
        let arena = self.arena(part.rank, part.arena)?;
        let (window, offset) = (self.next(), part.arena.offset(part.place));
        self.say(ToShip::Expose { window, arena, offset, bytes: part.bytes.max(1), writable });
        Ok(window)
    }

    /// Lets nobody at it any more.
    pub fn hide(&mut self, window: Window) {
        self.say(ToShip::Hide { window });
    }

    /// The same, where all of its bytes have arrived.
    pub fn finish(&mut self, window: Window) {
        self.say(ToShip::Finish { window });
    }

    /// Moves a part of an arena into another node's window, or from there.
    ///
    /// # Errors
    /// When there is no `ft-ship`, or no descriptor.
    pub fn move_part(&mut self, direction: Direction, part: Part<'_>, far: Far<'_>) -> Result<Move, String> {
        let arena = self.arena(part.rank, part.arena)?;
        if self.peers.get(&far.node).is_none_or(|known| known != far.address) {
            self.peers.insert(far.node, far.address.to_vec());
            self.say(ToShip::Peer { node: far.node.0, address: far.address.to_vec() });
        }
        let id = self.next();
        self.say(ToShip::Move {
            id,
            direction,
            arena,
            offset: part.arena.offset(part.place),
            bytes: part.bytes.max(1),
            node: far.node.0,
            target: far.target,
            patience_ms: u64::try_from(scaled(PATIENCE).as_millis()).unwrap_or(u64::MAX),
        });
        Ok(id)
    }

    /// That is not needed any more; it is answered all the same.
    pub fn cancel(&mut self, id: Move) {
        self.say(ToShip::Cancel { id });
    }

    /// That node is out of the job.
    pub fn gone(&mut self, node: NodeId) {
        if self.peers.remove(&node).is_some() {
            self.say(ToShip::Gone { node: node.0 });
        }
    }

    /// It is to be asked whether it is there. Returns what people are to be told.
    pub fn ask(&mut self) -> Option<String> {
        let now = Instant::now();
        let in_time = self.beat.beat(now);
        self.host.as_mut().and_then(|host| host.ask(in_time, now))
    }

    /// Ends the process, which does not do what it was asked: its end is heard as any other.
    pub fn end(&mut self) {
        if let Some(host) = &mut self.host {
            host.end();
        }
    }

    /// Ends it for good.
    pub fn kill(&mut self) -> Option<JoinHandle<()>> {
        self.failed.get_or_insert("the job is over".into());
        self.host.take().map(ShipHost::kill)
    }
}
