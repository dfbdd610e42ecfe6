//! One step of an agent: what it is told is noted, then the guards act, in their order.

use super::event::{Effect, Event};
use super::{Agent, Stage};
use crate::breach::Breach;
use crate::ids::Micros;
use crate::message::PeerMessage;

impl Agent {
    /// Takes one event at the time `now` and returns what is to be done, in order.
    pub fn step(&mut self, now: Micros, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        if self.run.stage == Stage::Over {
            return Vec::new();
        }
        if event == Event::Timer {
            self.out.woken();
        }
        // What has become due counts before the event: a node that slept must stop itself before it believes anybody.
        self.guard_fence();
        // Who was silent was so until now, whatever is known of it next.
        self.worlds.linger(&self.slots.silent_worlds(), self.now);
        // Most messages are heartbeats and what belongs to them.
        self.changed |= !matches!(
            event,
            Event::Timer
                | Event::DueAsked { .. }
                | Event::Message {
                    message: PeerMessage::Heartbeat { .. }
                        | PeerMessage::Acknowledge { .. }
                        | PeerMessage::Heard { .. }
                        | PeerMessage::Received { .. }
                        | PeerMessage::Accuse { .. }
                        | PeerMessage::StoreMissed { .. },
                    ..
                }
        );
        let of_heartbeats = self.resting.hears(&event);
        self.take(event);
        self.guard_fence();
        if self.may_rest() {
            self.schedule();
            debug_assert!(self.config.breach != Breach::Nothing || !self.sleeps_through(), "the guards rest: {self:?}");
            return self.out.take();
        }
        self.guards();
        self.may_rest_next(of_heartbeats);
        self.schedule();
        self.out.take()
    }

    /// Whatever follows from what is known now.
    pub(super) fn guards(&mut self) {
        self.guard_passing();
        self.guard_survey();
        self.speak();
        self.guard_holds();
        self.guard_incomplete();
        self.guard_leaving();
        self.guard_last_block();
        self.guard_stage();
        self.guard_gather();
        self.guard_absent();
        self.guard_ask_around();
        self.guard_join();
        self.guard_agreement();
        self.guard_stage();
        self.guard_due();
        self.guard_reports();
        self.guard_survey();
        self.speak();
        self.guard_tree();
        self.guard_rumour();
        self.guard_store();
    }

    /// Asks to be woken at the next moment at which a guard may act by time alone.
    pub(super) fn schedule(&mut self) {
        if self.run.stage == Stage::Over {
            return;
        }
        let of_fence = self.fence.deadlines().filter(|at| *at > self.now).min();
        let of_guards = self.resting.until().or_else(|| self.next_deadline());
        if let Some(at) = of_fence.into_iter().chain(of_guards).min() {
            self.out.wake_at(at);
        }
    }

    /// When a guard may act by time alone next.
    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.deadlines().into_iter().filter(|at| *at > self.now).min()
    }

    /// When guards may act by time alone; the fence has its own.
    fn deadlines(&self) -> Vec<Micros> {
        let policy = &self.config.policy;
        let mut at: Vec<Micros> = self.tree.deadline().into_iter().collect();
        let since = self.run.since;
        at.extend(self.gather_deadlines());
        match self.run.stage {
            Stage::Emptying => at.push(since.max(self.slots.silent_at).after(policy.slot_timeout)),
            Stage::Draining => at.push(since.after(policy.drain_timeout)),
            _ => {}
        }
        at.extend(self.worlds.deadlines(policy.stop_timeout));
        at.extend(self.run.inventory_asked.map(|since| since.after(policy.inventory_timeout)));
        at.extend(self.batch_deadlines());
        if self.holds.waits() {
            at.push(self.holds.uncertain_since().after(policy.stop_timeout));
        }
        at.extend(self.end.last_words.map(|(_, until)| until));
        at.extend(self.leave_deadline());
        at.extend(self.passing_deadlines());
        at.extend(self.store.deadline());
        at.extend(self.rumour_deadline());
        at.extend(self.storeless_deadline());
        at.extend(self.missed_deadlines());
        at.extend(self.clean_end_deadline());
        at.extend(self.unrecorded_deadline());
        at.extend(self.last_block_deadline());
        at.extend(self.cause_deadline());
        at.extend(self.blind_deadlines());
        at.extend(self.join_deadline());
        at.extend(self.copies_deadline());
        at.extend(self.short_deadlines());
        at.extend(self.run.yields_until);
        if let (Some(progress), Stage::Computing, false) =
            (&self.telling.progress, self.run.stage, self.telling.stopped)
        {
            at.push(progress.last_sign.after(self.report_patience()));
        }
        at
    }
}
