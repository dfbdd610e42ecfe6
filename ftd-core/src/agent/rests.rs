//! Whether the guards are asked in a step ([`Resting`](super::resting)).

use super::resting::{NEVER, is_of_the_fence};
use super::{Agent, Effect, Stage};
use crate::breach::Breach;

impl Agent {
    /// Whether the guards need not be asked in this step, in which the fence has been seen to.
    pub(super) fn may_rest(&mut self) -> bool {
        let until = self.resting.until.filter(|until| self.now < *until || self.config.breach == Breach::RestsOn);
        self.resting.rests = until.is_some() && self.out.all(is_of_the_fence) && self.is_calm();
        self.resting.rests
    }

    /// The guards were asked in a step `of_heartbeats`. If they have done nothing they may rest.
    pub(super) fn may_rest_next(&mut self, of_heartbeats: bool) {
        let rests = of_heartbeats && self.out.all(is_of_the_fence) && self.is_calm();
        self.resting.until = if rests { Some(self.next_deadline().unwrap_or(NEVER)) } else { None };
    }

    /// The ranks compute, and nothing is known, or on its way, that could be anybody's business here. What has failed may wait for
    /// more than a deadline.
    fn is_calm(&self) -> bool {
        self.run.stage == Stage::Computing
            && !self.changed
            && self.batch.is_none()
            && self.passing.waiting.is_empty()
            && self.fence.is_calm()
            && !self.standstill.paused
            && self.standstill.unleased.is_none()
            && self.store.is_idle(self.now)
            && self.rumour_deadline().is_none()
            && !self.worlds.any_stopping()
    }

    /// Whether its guards were not asked in the last step.
    pub fn rested(&self) -> bool {
        self.resting.rests
    }

    /// What the guards would have done in the last step, had they been asked: nothing, or they rest when they must not.
    pub fn slept_through(&self) -> Vec<Effect> {
        let mut agent = self.clone();
        agent.guards();
        agent.may_rest_next(false);
        agent.schedule();
        agent.out.take().split_off(self.out.len())
    }

    pub(super) fn sleeps_through(&self) -> bool {
        !self.slept_through().is_empty()
    }
}
