//! The ranks' questions whether a checkpoint is due.

use crate::due::{Asked, Due};
use crate::ids::{Micros, Process};
use std::collections::BTreeMap;

/// What belongs to one epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Questions {
    /// Of each process: how many it has asked, and how many checkpoints it has taken.
    pub(super) of: BTreeMap<Process, (u64, u64)>,
    /// What is known here, and what of it everybody has been told: as much as somebody waits for.
    pub(super) asked: Asked,
    pub told: Asked,
    /// Those that wait for an answer, with the number of their question.
    pub(super) waiting: BTreeMap<Process, u64>,
    /// The root's own.
    pub(super) due: Due,
}

impl Questions {
    /// A process asks: the number of its question. `cost`: of the checkpoint that it took since it asked last.
    pub(super) fn ask(&mut self, process: Process, cost: Option<Micros>) -> u64 {
        let (questions, taken) = self.of.entry(process).or_default();
        *taken += u64::from(cost.is_some());
        *questions += 1;
        let news = Asked { questions: *questions, taken: *taken, cost: cost.unwrap_or_default() };
        self.asked = self.asked.and(news);
        *questions - 1
    }
}
