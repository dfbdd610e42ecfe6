//! An endpoint to one other node, for one move at a time: what becomes of that is nobody else's trouble, and to close the endpoint
//! takes all of its pieces back.

use crate::native::{Completion, Destination, Domain, Endpoint, FabricError, Piece, Region, SLOTS, Slice};
use crate::plan::Part;
use ft_wire::ship::{Direction, Target};
use std::rc::Rc;

/// What a move moves between.
#[derive(Debug)]
pub struct Ends {
    /// Which way.
    pub direction: Direction,
    /// This node's memory.
    pub slice: Slice,
    /// Its registration, where one is needed.
    pub region: Option<Rc<Region>>,
    /// The other node's window.
    pub target: Target,
}

/// See the module.
#[derive(Debug)]
pub struct Line {
    endpoint: Endpoint,
    to: Destination,
    /// What is under way, by the endpoint's numbers.
    parts: [Option<Part>; SLOTS],
    completions: Vec<Completion>,
}

impl Line {
    /// Opens one. The other node is not reached yet.
    ///
    /// # Errors
    /// As libfabric.
    pub fn open(domain: &Rc<Domain>, address: &[u8]) -> Result<Line, FabricError> {
        let mut endpoint = Endpoint::open(domain)?;
        let to = endpoint.know(address)?;
        Ok(Line { endpoint, to, parts: [None; SLOTS], completions: Vec::new() })
    }

    /// What is waited for.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Starts a part; whether the provider has taken it.
    ///
    /// # Errors
    /// As libfabric.
    pub fn start(&mut self, part: Part, ends: &Ends) -> Result<bool, FabricError> {
        let beyond = FabricError { call: "window", code: libc::EFAULT };
        let address = ends.target.base.checked_add(part.offset).ok_or(beyond)?;
        let piece = Piece {
            direction: ends.direction,
            slice: ends.slice.part(part.offset, part.bytes).ok_or(beyond)?,
            region: ends.region.as_ref(),
            to: self.to,
            address,
            key: ends.target.key,
        };
        let Some(slot) = self.endpoint.start(piece)? else { return Ok(false) };
        self.parts[slot] = Some(part);
        Ok(true)
    }

    /// Lets libfabric work and takes in what has arrived.
    ///
    /// # Errors
    /// Of the first part that has failed; the line is of no more use.
    pub fn poll(&mut self, mut arrived: impl FnMut(Part)) -> Result<(), FabricError> {
        let mut result = Ok(());
        // After a failure all others come back as well.
        while self.take_in(&mut arrived, &mut result)? && result.is_err() {}
        result
    }

    /// Whether something has come back.
    fn take_in(
        &mut self,
        arrived: &mut impl FnMut(Part),
        result: &mut Result<(), FabricError>,
    ) -> Result<bool, FabricError> {
        self.endpoint.poll(&mut self.completions)?;
        let some = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            let part = self.parts[completion.slot].take();
            match completion.result {
                Ok(()) => part.into_iter().for_each(&mut *arrived),
                Err(error) => *result = result.and(Err(error)),
            }
        }
        Ok(some)
    }
}
