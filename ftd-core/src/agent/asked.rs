//! The ranks' questions whether a checkpoint is due, and the answers that all agents have in common ([`due`](crate::due)).

use super::{Agent, Effect, Stage};
use crate::breach::Breach;
use crate::due::{Asked, Clock, Granted};
use crate::ids::{Micros, Process};

impl Agent {
    pub(super) fn take_due_asked(&mut self, process: Process, cost: Option<Micros>) {
        if self.run.stage != Stage::Computing
            || !self.run.locals.contains_key(&process)
            || self.worlds.ended(process.world)
        {
            return;
        }
        let question = self.run.questions.ask(process, cost);
        if self.config.breach == Breach::DueAlone {
            let mut granted = self.tree.decree().due.clone();
            self.grant_due(self.run.questions.asked, &mut granted);
            let yes = granted.answer(question).unwrap_or_default();
            return self.emit(Effect::AnswerDue { process, yes });
        }
        if let Some(yes) = self.tree.decree().due.answer(question) {
            return self.emit(Effect::AnswerDue { process, yes });
        }
        self.run.questions.waiting.insert(process, question);
        self.run.questions.told = self.run.questions.asked;
        self.changed = true;
    }

    /// The root grants answers to everybody.
    pub(super) fn grant_due(&mut self, asked: Asked, granted: &mut Granted) {
        let failures = self.epoch().0.saturating_sub(1);
        let clock = Clock { now: self.now, job: self.now.since(self.began.unwrap_or(self.now)), failures };
        self.run.questions.due.grant(asked, granted, clock);
    }

    /// Answers those whose questions have an answer now.
    pub(super) fn guard_due(&mut self) {
        if self.run.questions.waiting.is_empty() {
            return;
        }
        for (process, question) in std::mem::take(&mut self.run.questions.waiting) {
            match self.tree.decree().due.answer(question) {
                Some(yes) => self.emit(Effect::AnswerDue { process, yes }),
                None => drop(self.run.questions.waiting.insert(process, question)),
            }
        }
    }
}
