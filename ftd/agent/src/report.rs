//! What people read about a recovery: one block on the job's stderr.

use ftd_core::{Micros, Notice, Recovery, Report};
use std::fmt::Write;

/// What a report becomes.
pub enum Text {
    /// A recovery is over: the block.
    Block(String),
    /// One line.
    Notice(String),
    /// For the log alone.
    Silent,
}

/// The text of a report.
pub fn text(report: &Report) -> Text {
    match report {
        Report::RecoveryBegun { epoch, failures, .. } => {
            tracing::info!(epoch = epoch.0, %failures, "a failure is known");
            Text::Silent
        }
        Report::RecoveryAgreed { epoch, world, failures, .. } => {
            tracing::info!(epoch = epoch.0, world = world.0, %failures, "the next epoch is agreed");
            Text::Silent
        }
        Report::RecoveryDone(recovery) => Text::Block(block(recovery)),
        Report::Notice(notice) => match notice {
            Notice::StoreUnavailable => Text::Notice("the store does not answer; asking again".into()),
            Notice::StoreBack => Text::Notice("the store answers again".into()),
            Notice::Paused => Text::Notice("the ranks of this node are stopped: its observers are silent".into()),
            Notice::Continued => Text::Notice("the ranks of this node go on".into()),
            Notice::CauseKnown { sentence, .. } => Text::Notice(sentence.clone()),
            Notice::WaitingForSlot { lost } => {
                tracing::info!(slot = lost.0, "waiting for a slot in place of a lost one");
                Text::Silent
            }
            Notice::DrainTimedOut(world) => {
                tracing::warn!(world = world.0, "the old output was not read in time");
                Text::Silent
            }
        },
    }
}

/// The block. `failed`, `restored` (or `restarted`) and `took` begin its lines, so that scripts can find them.
fn block(recovery: &Recovery) -> String {
    let mut out = format!("ftd: recovery, epoch {}, world {}\n", recovery.epoch.0, recovery.world.0);
    for (i, sentence) in recovery.blame.iter().enumerate() {
        let _ = writeln!(out, "ftd:   {:<9} {sentence}", if i == 0 { "failed" } else { "" });
    }
    match &recovery.restored {
        None => out.push_str("ftd:   restored  nothing was asked for yet\n"),
        Some(choice) if choice.len() <= 1 => match choice.values().next().copied().flatten() {
            Some(stamp) => {
                let _ = writeln!(out, "ftd:   restored  version {} from the memory of this node", stamp.version.0);
            }
            None => out.push_str("ftd:   restarted from the beginning: no complete checkpoint\n"),
        },
        Some(choice) => {
            for (group, stamp) in choice {
                let _ = match stamp {
                    Some(stamp) => writeln!(out, "ftd:   restored  group {}: version {}", group.0, stamp.version.0),
                    None => {
                        writeln!(out, "ftd:   restarted group {} from the beginning: no complete checkpoint", group.0)
                    }
                };
            }
        }
    }
    let times = &recovery.times;
    let steps = [
        ("agreed", times.agreed),
        ("old ranks gone", times.emptied),
        ("released", times.released),
        ("past MPI_Init", times.initialized),
        ("state restored", times.restored),
    ];
    let mut last = times.noticed;
    let mut parts = Vec::new();
    for (name, at) in steps {
        if let Some(at) = at {
            parts.push(format!("{name} {}", milliseconds(last, at)));
            last = last.max(at);
        }
    }
    let _ = writeln!(
        out,
        "ftd:   took      {} ms from the notice on: {}{}",
        milliseconds(times.noticed, last),
        parts.join(", "),
        if recovery.complete { "" } else { "; not all ranks were seen past MPI_Init or ft_restore" }
    );
    out
}

fn milliseconds(from: Micros, to: Micros) -> String {
    format!("{:.1}", to.0.saturating_sub(from.0) as f64 / 1000.0)
}
