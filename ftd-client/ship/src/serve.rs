//! Hears the agent, lets libfabric work, and waits for both.

use crate::arenas::Arenas;
use crate::fabric::Fabric;
use crate::line::Ends;
use crate::moves::Moves;
use crate::moving::Moving;
use crate::native::{Access, Endpoint, Region, may_wait};
use crate::windows::{Wanted, Windows};
use ft_sys::channel::{Channel, ChannelError};
use ft_sys::fabric::BEST;
use ft_sys::job_time;
use ft_wire::Role;
use ft_wire::ship::{Arena, Direction, Move, Target, ToAgent, ToShip};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// The agent has so long to say who it is, and to close the link when it was told that there is no endpoint.
const GREETING: Duration = Duration::from_secs(5);

/// Where the provider has nothing to wait for: between two looks, when nothing happens for a while.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// The shortest one.
const SHORTEST_NAP: Duration = Duration::from_micros(10);

/// With so many hidden windows, or so many bytes of their addresses, this process has had its time as soon as it is idle: their
/// addresses are not used again while it lives.
const WORN_OUT: (usize, u64) = (16 << 10, 32 << 40);

/// The same goes for so many endpoints that cannot be closed.
const LEFT_OPEN: usize = 64;

/// Why it ends.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The link to the agent.
    #[error("the link to ft-agent: {0}")]
    Link(#[from] ChannelError),
    /// Somebody else is there.
    #[error("the agent is a {0:?}")]
    Stranger(Role),
    /// The agent does not keep to the order of things.
    #[error("the agent has not said first, and once, where the endpoint is to be opened")]
    Order,
    /// A window that was hidden, or a move that has failed, could still be written to: that ends with this process.
    #[error("memory cannot be kept from late writers: {0}")]
    Late(io::Error),
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(nix::errno::Errno),
}

/// Serves the agent until it closes the link, or this process has had its time.
///
/// # Errors
/// [`ServeError`].
pub fn serve(mut channel: Channel) -> Result<(), ServeError> {
    let agent = channel.exchange(Role::Ship, GREETING)?;
    if agent.role != Role::Agent {
        return Err(ServeError::Stranger(agent.role));
    }
    ended(Ship::open(&mut channel).and_then(|ship| ship.map_or(Ok(()), |mut ship| ship.serve(&mut channel))))
}

/// The link's end is what ends it in good order.
fn ended(result: Result<(), ServeError>) -> Result<(), ServeError> {
    match result {
        Err(ServeError::Link(ChannelError::Closed)) => Ok(()),
        result => result,
    }
}

struct Ship {
    /// Before the endpoint that they are bound to.
    windows: Windows,
    moves: Moves,
    arenas: Arenas,
    fabric: Fabric,
    nap: Duration,
}

/// A move as the agent wants it.
struct WantedMove {
    id: Move,
    direction: Direction,
    arena: Arena,
    offset: u64,
    bytes: u64,
    node: u32,
    target: Target,
    patience: Duration,
}

impl Ship {
    /// Waits for the first word of the agent; nothing, when there is no endpoint, which the agent has been told.
    fn open(channel: &mut Channel) -> Result<Option<Ship>, ServeError> {
        let (address, names) = loop {
            match channel.receive(None)?.0 {
                ToShip::Open { provider, address, among } => {
                    let names = among.as_deref().map(|names| names.split(',').map(str::to_string).collect());
                    let named = provider.map(|name| vec![name]).or(names);
                    break (address, named);
                }
                ToShip::Ask => channel.send(&ToAgent::Here, &[])?,
                _ => return Err(ServeError::Order),
            }
        };
        match Self::ready(names, address) {
            Ok((ship, ready)) => {
                channel.send(&ready, &[])?;
                Ok(Some(ship))
            }
            Err(reason) => {
                channel.send(&ToAgent::Failed { reason }, &[])?;
                // Its last word is read before the link is closed.
                while channel.receive::<ToShip>(Some(GREETING)).is_ok() {}
                Ok(None)
            }
        }
    }

    fn ready(named: Option<Vec<String>>, address: IpAddr) -> Result<(Ship, ToAgent), String> {
        let fabric = match &named {
            Some(names) => Fabric::open(names.iter().map(String::as_str), address),
            None => Fabric::open(BEST, address),
        };
        let fabric = fabric.map_err(|error| error.to_string())?;
        let ready = ToAgent::Ready {
            provider: fabric.domain.info().provider(),
            address: fabric.listener.name().map_err(|error| error.to_string())?,
            not: fabric.not.clone().filter(|_| named.is_some()),
        };
        let moves = Moves::new(job_time::now());
        let (windows, arenas, nap) = (Windows::default(), Arenas::default(), SHORTEST_NAP);
        Ok((Ship { windows, moves, arenas, fabric, nap }, ready))
    }

    fn serve(&mut self, channel: &mut Channel) -> Result<(), ServeError> {
        let mut say = Vec::new();
        while !self.is_worn_out() {
            let mut busy = false;
            while let Some((message, fds)) = channel.try_receive()? {
                self.hear(message, fds, &mut say)?;
                busy = true;
            }
            busy |= self.work(&mut say)?;
            self.arenas.turn();
            for message in say.drain(..) {
                channel.send(&message, &[])?;
            }
            self.wait(channel, busy)?;
        }
        ft_sys::log::say(format_args!("ft-ship: has kept so much that cannot be closed; another one takes its place"));
        Ok(())
    }

    fn is_worn_out(&self) -> bool {
        let ((maps, bytes), idle) =
            (self.fabric.domain.retired(), !self.windows.are_open() && !self.moves.are_under_way());
        let times = if idle { 1 } else { 2 };
        let left_open = self.fabric.domain.left_open();
        maps > times * WORN_OUT.0 || bytes > times as u64 * WORN_OUT.1 || left_open > times * LEFT_OPEN
    }

    fn work(&mut self, say: &mut Vec<ToAgent>) -> Result<bool, ServeError> {
        if self.windows.are_open() {
            // Nothing of its own moves from there: what fails is another node's, which hears of it.
            let _ = self.fabric.listener.poll(&mut Vec::new());
        }
        self.moves.work(job_time::now(), &self.fabric, say).map_err(ServeError::Late)
    }

    fn hear(&mut self, message: ToShip, fds: Vec<OwnedFd>, say: &mut Vec<ToAgent>) -> Result<(), ServeError> {
        let fabric = &self.fabric;
        match message {
            ToShip::Open { .. } => return Err(ServeError::Order),
            ToShip::Ask => say.push(ToAgent::Here),
            ToShip::Map { arena, bytes } => {
                fds.into_iter().take(1).for_each(|fd| self.arenas.insert(arena, fd, bytes));
            }
            ToShip::Unmap { arena } => {
                self.windows.hide_all_of(arena).map_err(ServeError::Late)?;
                self.moves.unmapped(arena, fabric, say).map_err(ServeError::Late)?;
                self.arenas.remove(arena);
            }
            ToShip::Expose { window, arena, offset, bytes, writable } => {
                let wanted = Wanted { window, arena, offset, bytes, writable };
                say.push(match self.windows.expose(wanted, &mut self.arenas, fabric) {
                    Ok(target) => ToAgent::Exposed { window, target },
                    Err(error) => ToAgent::NotExposed { window, reason: error.to_string() },
                });
            }
            ToShip::Hide { window } => {
                self.windows.hide(window).map_err(ServeError::Late)?;
                say.push(ToAgent::Hidden { window });
            }
            ToShip::Finish { window } => {
                self.windows.finish(window, &mut self.arenas);
                say.push(ToAgent::Hidden { window });
            }
            ToShip::Peer { node, address } => {
                self.moves.peer(node, address, fabric, say).map_err(ServeError::Late)?;
            }
            ToShip::Gone { node } => self.moves.gone(node, fabric, say).map_err(ServeError::Late)?,
            ToShip::Cancel { id } => self.moves.cancel(id, fabric, say).map_err(ServeError::Late)?,
            ToShip::Rate { bytes } => self.moves.limit(bytes, job_time::now()),
            ToShip::Move { id, direction, arena, offset, bytes, node, target, patience_ms } => {
                let patience = Duration::from_millis(patience_ms);
                let wanted = WantedMove { id, direction, arena, offset, bytes, node, target, patience };
                match self.moving(wanted) {
                    Ok(Some(moving)) => self.moves.add(moving),
                    Ok(None) => say.push(ToAgent::Moved { id }),
                    Err(reason) => say.push(ToAgent::NotMoved { id, reason }),
                }
            }
        }
        Ok(())
    }

    /// The move, if there is something to move.
    fn moving(&mut self, wanted: WantedMove) -> Result<Option<Moving>, String> {
        let WantedMove { id, direction, arena, offset, bytes, node, target, patience } = wanted;
        if self.moves.has(id) {
            return Err(format!("move {id} is under way already"));
        }
        if !self.moves.knows(node) {
            return Err(format!("nobody has said where node {node} is"));
        }
        if bytes > target.bytes {
            return Err(format!("the window of node {node} has {} bytes, and {bytes} are to be moved", target.bytes));
        }
        if bytes == 0 {
            return Ok(None);
        }
        let slice = match direction {
            Direction::Put => self.arenas.shared(arena, offset, bytes),
            Direction::Get => self.arenas.fresh(arena, offset, bytes),
        };
        let slice = slice.map_err(|error| error.to_string())?;
        let domain = &self.fabric.domain;
        let region = Region::is_needed_for_own(domain)
            .then(|| Region::register(domain, self.fabric.listener.host(), slice.clone(), Access::Own).map(Rc::new))
            .transpose()
            .map_err(|error| format!("arena {arena}: {error}"))?;
        let ends = Ends { direction, slice, region, target };
        Ok(Some(Moving::new(id, node, arena, ends, patience, job_time::now())))
    }

    /// Waits until there is something to do.
    fn wait(&mut self, channel: &Channel, busy: bool) -> Result<(), ServeError> {
        if !self.moves.are_under_way() && !self.windows.are_open() {
            return sleep(&[channel.as_fd()], job_time::piece(Duration::MAX));
        }
        let listener = self.windows.are_open().then_some(&self.fabric.listener);
        let endpoints: Vec<&Endpoint> = listener.into_iter().chain(self.moves.endpoints()).collect();
        let now = job_time::now();
        let left = self.moves.next_look().map_or(job_time::LOOK, |then| then.saturating_duration_since(now));
        let left = job_time::piece(left);
        let fds: Option<Vec<_>> = endpoints.iter().map(|endpoint| endpoint.wait_fd()).collect();
        match fds {
            Some(mut fds) => {
                if busy || !may_wait(&endpoints) {
                    return Ok(());
                }
                fds.push(channel.as_fd());
                sleep(&fds, left)
            }
            None => {
                self.nap = if busy { SHORTEST_NAP } else { LONGEST_NAP.min(2 * self.nap) };
                if busy { Ok(()) } else { sleep(&[channel.as_fd()], left.min(self.nap)) }
            }
        }
    }
}

/// Waits for one of them, or until the time is over.
fn sleep(fds: &[std::os::fd::BorrowedFd<'_>], time: Duration) -> Result<(), ServeError> {
    let mut fds: Vec<PollFd> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let result = match time {
        Duration::MAX => poll(&mut fds, PollTimeout::NONE),
        time => ppoll(&mut fds, Some(TimeSpec::from_duration(time)), None),
    };
    match result {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(ServeError::Poll(errno)),
    }
}
