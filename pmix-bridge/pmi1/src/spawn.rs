//! `MPI_Comm_spawn`, which is refused: its command is several blocks of lines, one block per program.

use crate::action::send;
use crate::request::shorten;
use crate::{Action, Event};

/// A spawn command under way.
#[derive(Debug, Default)]
pub(crate) struct Spawn {
    inside: bool,
    total: usize,
    blocks: usize,
    command: String,
}

impl Spawn {
    /// A block begins.
    pub(crate) fn begin_block(&mut self) {
        self.inside = true;
        self.total = self.total.max(1);
    }

    /// Whether the next line belongs to a block.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside
    }

    /// One line inside a block. The answer follows the last block; then the command is over.
    pub(crate) fn line(&mut self, rank: u32, line: &str) -> Option<[Action; 2]> {
        // Arguments hold blanks and equal signs, so the first equal sign alone divides the line.
        match line.split_once('=') {
            Some(("totspawns", total)) => self.total = total.trim().parse().unwrap_or(1),
            Some(("execname", command)) if self.command.is_empty() => self.command = shorten(command),
            _ => {}
        }
        if line.trim() != "endcmd" {
            return None;
        }
        self.inside = false;
        self.blocks += 1;
        let why = "spawn_is_not_supported_by_this_job";
        (self.blocks >= self.total).then(|| {
            let command = std::mem::take(&mut self.command);
            let refusal = send(rank, format!("cmd=spawn_result rc=-1 msg={why} errmsg={why}"));
            [refusal, Action::Event(Event::SpawnRefused { rank, command })]
        })
    }
}
