//! An agent that has nothing to do but its heartbeats does nothing else: its guards rest.
//!
//! What guards do follows from what the agent knows and from the time, and they look at the time for no other reason than a
//! deadline (`Agent::next_deadline`). So after a step that was for a heartbeat alone, and in which they have done nothing, they would do nothing
//! in the next one either: until the first deadline of theirs, or until something else happens than heartbeats. What heartbeats
//! change is the fence's, and that is seen to in each step. Of it guards look at nothing but accusations, and at whether all observers have
//! acknowledged this node once: both are as they were, or nobody rests.
//!
//! The simulation, and every step with debug assertions, asks the guards all the same (`Agent::slept_through`).

use super::event::{Effect, Event};
use crate::ids::Micros;
use crate::message::PeerMessage;

/// No guard has a deadline.
pub(super) const NEVER: Micros = Micros(u64::MAX);

/// Whether the guards rest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Resting {
    /// They have done nothing when they were asked last, and do nothing before this time.
    pub(super) until: Option<Micros>,
    /// They were not asked in this step.
    pub(super) rests: bool,
}

/// Whether this is about heartbeats, and nothing else.
fn is_of_heartbeats(event: &Event) -> bool {
    match event {
        Event::Timer => true,
        Event::Message { message, .. } => is_heartbeat(message),
        _ => false,
    }
}

fn is_heartbeat(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Heartbeat { .. } | PeerMessage::Acknowledge { .. } | PeerMessage::Heard { .. })
}

/// Whether this says no more than that the agent is there.
pub(super) fn is_of_the_fence(effect: &Effect) -> bool {
    match effect {
        Effect::WakeAt(_) => true,
        Effect::Send { message, .. } => is_heartbeat(message),
        _ => false,
    }
}

impl Resting {
    /// Something happens. Whether it is about heartbeats; if not, nobody rests.
    pub(super) fn hears(&mut self, event: &Event) -> bool {
        let of_heartbeats = is_of_heartbeats(event);
        self.rests = false;
        self.until.take_if(|_| !of_heartbeats);
        of_heartbeats
    }

    /// Until when no guard looks at the time; nothing where it is not known that they have nothing to do.
    pub(super) fn until(&self) -> Option<Micros> {
        self.until
    }
}
