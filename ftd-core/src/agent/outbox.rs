//! What an agent wants done, and when it wants to be woken.

use super::event::Effect;
use crate::ids::Micros;

/// What an agent wants done.
#[derive(Debug, Clone, Default)]
pub(super) struct Outbox {
    effects: Vec<Effect>,
    /// When it asked to be woken.
    wake: Option<Micros>,
}

impl Outbox {
    pub fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Whether all of it is like that.
    pub fn all(&self, like: impl FnMut(&Effect) -> bool) -> bool {
        self.effects.iter().all(like)
    }

    /// How much there is.
    pub fn len(&self) -> usize {
        self.effects.len()
    }

    /// All of it, in order.
    pub fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// It was woken.
    pub fn woken(&mut self) {
        self.wake = None;
    }

    /// It is to be woken at this time.
    pub fn wake_at(&mut self, at: Micros) {
        if self.wake != Some(at) {
            self.wake = Some(at);
            self.effects.push(Effect::WakeAt(at));
        }
    }
}
