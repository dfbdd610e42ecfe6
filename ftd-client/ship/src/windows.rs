//! What other nodes may write to and read from.

use crate::arenas::{ArenaError, Arenas};
use crate::fabric::Fabric;
use crate::native::{Access, FabricError, Region};
use ft_wire::ship::{Arena, Target, Window};
use std::collections::HashMap;
use std::io;

/// Why there is no window.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// There is one of that name.
    #[error("window {0} is open already")]
    Double(Window),
    /// Its memory is not there.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The provider does not take the memory: often for want of memory that may be locked (`ulimit -l`).
    #[error("window {window} of {bytes} bytes: {error}")]
    Fabric {
        /// Which.
        window: Window,
        /// How long.
        bytes: u64,
        /// What it said.
        error: FabricError,
    },
}

/// The open windows.
#[derive(Debug, Default)]
pub struct Windows {
    open: HashMap<Window, Open>,
}

#[derive(Debug)]
struct Open {
    arena: Arena,
    /// Where in the arena it begins.
    offset: u64,
    region: Region,
}

/// What a window is to be.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Its name.
    pub window: Window,
    /// In which arena.
    pub arena: Arena,
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Others may write.
    pub writable: bool,
}

impl Windows {
    /// Whether there is any.
    pub fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Opens one.
    ///
    /// # Errors
    /// [`WindowError`].
    pub fn expose(&mut self, wanted: Wanted, arenas: &mut Arenas, fabric: &Fabric) -> Result<Target, WindowError> {
        let Wanted { window, arena, offset, bytes, writable } = wanted;
        if self.open.contains_key(&window) {
            return Err(WindowError::Double(window));
        }
        let slice = arenas.fresh(arena, offset, bytes)?;
        let access = if writable { Access::Write } else { Access::Read };
        let region = Region::register(&fabric.domain, fabric.listener.host(), slice, access)
            .map_err(|error| WindowError::Fabric { window, bytes, error })?;
        let (base, key) = region.target();
        self.open.insert(window, Open { arena, offset, region });
        Ok(Target { base, key, bytes })
    }

    /// Closes one. One that is not open is closed.
    ///
    /// # Errors
    /// Its file cannot be kept from late writers but by the end of this process.
    pub fn hide(&mut self, window: Window) -> io::Result<()> {
        self.open.remove(&window).map_or(Ok(()), |open| open.region.hide())
    }

    /// Closes one to which all has been written: nobody is late.
    pub fn finish(&mut self, window: Window, arenas: &mut Arenas) {
        let Some(Open { arena, offset, region }) = self.open.remove(&window) else { return };
        if let Some(map) = region.finish() {
            arenas.finished(arena, offset, map);
        }
    }

    /// Closes all of an arena.
    ///
    /// # Errors
    /// As [`hide`](Self::hide).
    pub fn hide_all_of(&mut self, arena: Arena) -> io::Result<()> {
        let of_it: Vec<Window> =
            self.open.iter().filter(|(_, open)| open.arena == arena).map(|(window, _)| *window).collect();
        of_it.into_iter().try_for_each(|window| self.hide(window))
    }
}
