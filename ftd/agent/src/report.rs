//! What people read about a recovery: one block on the job's stderr.

use crate::costs::Words;
use crate::restart_files::RestartFiles;
use ftd_core::report::Move;
use ftd_core::{Choice, EpochId, Inventory, Micros, NodeId, Notice, Rank, Recovery, Report, Subject};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What a report becomes.
pub enum Text {
    /// How a recovery went.
    Block {
        /// The epoch that runs now.
        epoch: EpochId,
        /// Its ranks compute.
        over: bool,
        /// What people read.
        block: String,
    },
    /// One line.
    Notice(String),
    /// For the log alone.
    Silent,
}

/// What this node is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Here {
    /// There is no other.
    Alone,
    /// By this name, for there are others.
    Named(String),
}

impl Here {
    fn node(&self) -> String {
        match self {
            Here::Alone => "this node".into(),
            Here::Named(name) => name.clone(),
        }
    }

    /// In whose memory the ranks have their versions.
    fn memory(&self) -> &'static str {
        match self {
            Here::Alone => "the memory of this node",
            Here::Named(_) => "the memory of the ranks' nodes",
        }
    }
}

/// The text of a report. `files`: what the program's own restart files are, if it has any.
///
/// `words`: what a recovery cost.
pub fn text(report: &Report, files: RestartFiles, here: &Here, words: &Words) -> Text {
    match report {
        Report::RecoveryBegun { epoch, failures, .. } => {
            tracing::info!(epoch = epoch.0, %failures, "a failure is known");
            Text::Silent
        }
        Report::RecoveryAgreed { epoch, world, failures, .. } => {
            tracing::info!(epoch = epoch.0, world = world.0, %failures, "the next epoch is agreed");
            Text::Silent
        }
        Report::RecoveryDone(recovery) => {
            let block = block(recovery, files, here, words);
            Text::Block { epoch: recovery.epoch, over: recovery.is_over(), block }
        }
        Report::RecoveryDoneElsewhere(_) => Text::Silent,
        Report::Notice(notice) => match notice {
            Notice::StoreUnavailable if *here == Here::Alone => {
                Text::Notice("the store does not answer; asking again".into())
            }
            Notice::StoreUnavailable => {
                Text::Notice(format!("the store does not answer {}; asking again", here.node()))
            }
            Notice::StoreBack if *here == Here::Alone => Text::Notice("the store answers again".into()),
            Notice::StoreBack => Text::Notice(format!("the store answers {} again", here.node())),
            Notice::EndUnrecorded { away, well } => Text::Notice(unrecorded(&here.node(), *away, *well)),
            Notice::BegunWithout { absent } => Text::Notice(begun_without(absent)),
            Notice::Paused => {
                Text::Notice(format!("the ranks of {} are stopped: its observers are silent", here.node()))
            }
            Notice::Continued => Text::Notice(format!("the ranks of {} go on", here.node())),
            Notice::CauseKnown { sentence, .. } => Text::Notice(sentence.clone()),
            Notice::RestoredLate { epoch, version, took } => Text::Notice(format!(
                "  restored  version {} from {}, in {epoch}, {:.1} ms from the notice on",
                version.0,
                here.memory(),
                took.0 as f64 / 1000.0
            )),
            Notice::RefusedLate { epoch, rank, reason } => {
                Text::Notice(format!("            ft_restore failed in {rank}, in {epoch}: {reason}"))
            }
            Notice::WaitingForSlot { lost } => {
                tracing::info!(slot = lost.0, "waiting for a slot in place of a lost one");
                Text::Silent
            }
            Notice::WaitingForNode { missing, patience, lost } => Text::Notice(format!(
                "{missing} {} no slot{}: waiting up to {patience} for a node (--ft-wait)",
                if *missing == 1 { "rank has" } else { "ranks have" },
                if lost.is_empty() { String::new() } else { format!(" without {}", some_of(lost)) }
            )),
            Notice::NotVerified { unread, timeout, again, restored } => {
                Text::Notice(not_verified(&here.node(), unread, (*timeout, *again), restored.as_ref()))
            }
            Notice::DrainTimedOut(world) => {
                tracing::warn!(world = world.0, "the old output was not read in time");
                Text::Silent
            }
        },
    }
}

/// The job begins, and some were not waited for any longer.
fn begun_without(absent: &[NodeId]) -> String {
    let (is, it) = if absent.len() == 1 { ("has", "it comes in") } else { ("have", "they come in") };
    format!("the job begins without {}, which {is} not answered; {it} as a spare when that changes", some_of(absent))
}

/// Nodes in a sentence, the first of many.
fn some_of(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().take(8).map(NodeId::to_string).collect();
    let others = nodes.len() - names.len();
    let more = if others == 0 { String::new() } else { format!(" and {others} others") };
    names.join(", ") + &more
}

/// The job ends on a node, and the store does not know it.
fn unrecorded(node: &str, away: Micros, well: bool) -> String {
    let end = if well {
        "the job has ended well, and that is not written down there"
    } else {
        "the job ends on that node, and others learn of it only when they miss it; a signal ends it on all"
    };
    format!("the store has not answered {node} for {away}: {end}")
}

/// What a node could not say in time of its checkpoints, and what comes of that.
fn not_verified(node: &str, unread: &Inventory, (timeout, again): (Micros, bool), restored: Option<&Choice>) -> String {
    let copies = unread.holdings.len();
    let versions: BTreeSet<u64> = unread.holdings.iter().map(|holding| holding.stamp.version.0).collect();
    let ranks: BTreeSet<Rank> = unread.holdings.iter().map(|holding| holding.owner).collect();
    let list = |numbers: &BTreeSet<u64>| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let what = format!(
        "{copies} {} of checkpoints on {node} {} not verified within {timeout} (version{} {} of {})",
        if copies == 1 { "copy" } else { "copies" },
        if copies == 1 { "was" } else { "were" },
        if versions.len() == 1 { "" } else { "s" },
        list(&versions),
        named(&Vec::from_iter(ranks)),
    );
    let them = if copies == 1 { "it" } else { "them" };
    let Some(choice) = restored else {
        if again {
            return format!("{what}: the job still waits for {them}");
        }
        return format!("{what}: ftd goes on without {them}, unless nothing could be restored then");
    };
    let found: BTreeSet<u64> = choice.values().flatten().map(|stamp| stamp.version.0).collect();
    format!("{what}: version {} is restored without {them}", list(&found))
}

/// The block. `failed`, `restored` (or `restarted`) and `took` begin its lines, so that scripts can find them.
pub fn block(recovery: &Recovery, files: RestartFiles, here: &Here, words: &Words) -> String {
    let mut out = format!("ftd: recovery, epoch {}, world {}\n", recovery.epoch.0, recovery.world.0);
    for (i, sentence) in recovery.blame.iter().enumerate() {
        let _ = writeln!(out, "ftd:   {:<9} {sentence}", if i == 0 { "failed" } else { "" });
    }
    out.push_str(&line("when", &words.when));
    for Move { ranks, from, to, beyond } in &recovery.moved {
        let beyond = if *beyond { ", beyond its slots (--ft-oversubscribe)" } else { "" };
        let _ = writeln!(out, "ftd:   moved     {} from {from} to {to}{beyond}", named(ranks));
    }
    out.push_str(&restored(recovery, files, here, words));
    out.push_str(&line("lost", &words.lost));
    let times = &recovery.times;
    let mut last = times.noticed;
    let mut parts = Vec::new();
    for (name, at) in times.steps() {
        parts.push(format!("{name} {}", milliseconds(last, at)));
        last = last.max(at);
    }
    let _ = writeln!(
        out,
        "ftd:   took      {} ms from the notice on: {}{}{}",
        milliseconds(times.noticed, times.end()),
        parts.join(", "),
        begun_anew(recovery),
        unfinished(recovery, here)
    );
    out.push_str(&line("count", &words.count));
    out
}

/// A line of the block, if there is anything to say.
fn line(name: &str, words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("ftd:   {name:<9} {words}\n") }
}

/// Why it took longer than one does.
fn begun_anew(recovery: &Recovery) -> String {
    match recovery.episodes.len() {
        0 | 1 => String::new(),
        2 => "; another failure came meanwhile, and it was begun anew".into(),
        more => format!("; {} other failures came meanwhile, and it was begun anew each time", more - 1),
    }
}

/// What had not come about when the block was written.
fn unfinished(recovery: &Recovery, here: &Here) -> String {
    // Of the ranks of other nodes this one does not know how far each is.
    let of_node = match here {
        Here::Alone => String::new(),
        Here::Named(name) => format!(", of those on {name}"),
    };
    if recovery.complete || recovery.stuck {
        String::new()
    } else if !recovery.before_init.is_empty() {
        format!("; not seen past MPI_Init{of_node}: {}", named(&recovery.before_init))
    } else if recovery.taken && !recovery.without_state.is_empty() {
        format!("; without their state{of_node}: {}", named(&recovery.without_state))
    } else {
        String::new()
    }
}

fn named(ranks: &[Rank]) -> String {
    crate::versions::named(&ranks.iter().map(|rank| rank.0).collect::<Vec<_>>())
}

/// What the ranks went on from, as far as ftd can know it: which of its own files a program reads it does not tell.
fn restored(recovery: &Recovery, files: RestartFiles, here: &Here, words: &Words) -> String {
    if recovery.stuck {
        return "ftd:   restored  nothing: the ranks cannot be started again\n".into();
    }
    let Some(choice) = &recovery.restored else {
        return match recovery.asked {
            true => "ftd:   restored  nothing: what there is to restore was not known yet\n".into(),
            false => "ftd:   restored  nothing was asked for yet\n".into(),
        };
    };
    let mut out = String::new();
    for (group, stamp) in choice {
        let group = if choice.len() > 1 { format!("group {}: ", group.0) } else { String::new() };
        let _ = match stamp {
            Some(stamp) if recovery.taken => {
                let (version, memory) = (stamp.version.0, here.memory());
                let mut moved: Vec<Rank> = recovery.moved.iter().flat_map(|each| each.ranks.iter().copied()).collect();
                moved.sort_unstable();
                let copies = match moved.as_slice() {
                    [] => String::new(),
                    moved => format!(", that of {} from partners' copies", named(moved)),
                };
                writeln!(out, "ftd:   restored  {group}version {version} from {memory}{copies}")
            }
            Some(stamp) if recovery.refused.is_empty() => {
                let version = stamp.version.0;
                let yet = if recovery.waited { " so far" } else { "" };
                let why = match recovery.asked {
                    true => format!("version {version} was asked for (ft_restore), and no rank has it back"),
                    false => format!("no rank has asked for version {version} (ft_restore)"),
                };
                writeln!(out, "ftd:   restored  {group}nothing{yet}: {why}")
            }
            Some(stamp) => writeln!(out, "ftd:   restored  {group}nothing of version {}", stamp.version.0),
            None if matches!(files, RestartFiles::SetAside(_)) => {
                writeln!(out, "ftd:   restarted {group}from the beginning: {files}")
            }
            None if files.is_empty() => {
                // Which files of its own a program reads is not known: it need not begin from the beginning.
                let none = if words.checkpointed {
                    "no complete one of the API is left"
                } else {
                    "there was no complete one of the API"
                };
                let of_nodes = of_nodes(recovery, here);
                let files = "there is no file in $FT_CHECKPOINT_DIR";
                writeln!(out, "ftd:   restarted {group}without a checkpoint: {none}, and {files}{of_nodes}")
            }
            None => {
                let of_nodes = of_nodes(recovery, here);
                writeln!(out, "ftd:   restarted {group}without a checkpoint of the API, with {files}{of_nodes}")
            }
        };
    }
    out.push_str(&refused(&recovery.refused));
    out
}

/// Each node has files of its own: on which one they were counted, and whose are gone.
fn of_nodes(recovery: &Recovery, here: &Here) -> String {
    let Here::Named(name) = here else { return String::new() };
    let failures = recovery.episodes.iter().flat_map(|episode| episode.failures.failures());
    let lost = failures.filter_map(|failure| match failure.subject {
        Subject::Node(node) if failure.cause.takes_node() => Some(node),
        _ => None,
    });
    let lost: BTreeSet<NodeId> = lost.collect();
    let of_lost: Vec<String> = lost.iter().map(|node| format!("what {node} had there is lost with it")).collect();
    [format!(" on {name}"), of_lost.join(", ")]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// The restores that failed: which rank's, and why. Of many one is enough; the others are named.
fn refused(refused: &[(Rank, String)]) -> String {
    let Some((rank, reason)) = refused.first() else { return String::new() };
    let others: Vec<Rank> = refused.iter().skip(1).map(|(rank, _)| *rank).collect();
    let others = if others.is_empty() { String::new() } else { format!(" (and in {})", named(&others)) };
    format!("ftd:             ft_restore failed in {rank}{others}: {reason}\n")
}

fn milliseconds(from: Micros, to: Micros) -> String {
    format!("{:.1}", to.0.saturating_sub(from.0) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::inventory::Stamp;
    use ftd_core::placement::Placement;
    use ftd_core::report::Episode;
    use ftd_core::{Cause, Failure, FailureSet, GroupId, Version, WorldId};

    fn said(stamp: Option<Stamp>, taken: bool, files: RestartFiles) -> String {
        said_of(stamp, taken, files, false)
    }

    fn nothing() -> Recovery {
        Recovery {
            epoch: EpochId(2),
            world: WorldId(2),
            episodes: Vec::new(),
            blame: Vec::new(),
            restored: None,
            moved: Vec::new(),
            times: ftd_core::report::PhaseTimes::default(),
            stuck: false,
            waited: false,
            asked: false,
            taken: false,
            refused: Vec::new(),
            before_init: Vec::new(),
            without_state: Vec::new(),
            complete: false,
        }
    }

    fn said_of(stamp: Option<Stamp>, taken: bool, files: RestartFiles, stuck: bool) -> String {
        let recovery = Recovery { restored: Some([(GroupId(0), stamp)].into()), stuck, taken, ..nothing() };
        block(&recovery, files, &Here::Alone, &Words::default()).lines().nth(1).unwrap_or_default().to_string()
    }

    #[test]
    fn the_block_says_what_is_known_of_the_state() {
        let stamp = Some(Stamp { version: Version(7), epoch: EpochId(1) });
        assert_eq!(
            said(stamp, true, RestartFiles::Found(0)),
            "ftd:   restored  version 7 from the memory of this node"
        );
        assert!(
            said(stamp, false, RestartFiles::Found(0))
                .ends_with("nothing: no rank has asked for version 7 (ft_restore)")
        );
        assert!(said(None, false, RestartFiles::Found(0)).ends_with(
            "restarted without a checkpoint: there was no complete one of the API, and there is no file in $FT_CHECKPOINT_DIR"
        ));
        let recovery = Recovery { restored: Some([(GroupId(0), None)].into()), ..nothing() };
        let words = Words { checkpointed: true, ..Words::default() };
        assert!(restored(&recovery, RestartFiles::Found(0), &Here::Alone, &words).ends_with(
            "restarted without a checkpoint: no complete one of the API is left, and there is no file in $FT_CHECKPOINT_DIR\n"
        ));
        assert!(
            said_of(None, false, RestartFiles::Found(0), true).ends_with("nothing: the ranks cannot be started again")
        );
        let lost = said(None, false, RestartFiles::SetAside(2));
        assert_eq!(
            lost,
            "ftd:   restarted from the beginning: 2 files of the program's were set aside and none is left (they lie in $FT_CHECKPOINT_DIR.aside)"
        );
        let own = said(None, false, RestartFiles::Found(1));
        assert!(own.ends_with("without a checkpoint of the API, with 1 file in $FT_CHECKPOINT_DIR"), "{own}");
    }

    #[test]
    fn the_block_says_whose_state_was_a_copy() {
        let stamp = Some(Stamp { version: Version(7), epoch: EpochId(1) });
        let one = |rank, to, beyond| Move { ranks: vec![Rank(rank)], from: NodeId(1), to: NodeId(to), beyond };
        let moved = vec![one(3, 0, false), one(2, 2, true)];
        let recovery = Recovery { moved, taken: true, restored: Some([(GroupId(0), stamp)].into()), ..nothing() };
        assert_eq!(
            restored(&recovery, RestartFiles::Found(0), &Here::Named("node0".into()), &Words::default()),
            "ftd:   restored  version 7 from the memory of the ranks' nodes, that of ranks 2-3 from partners' copies\n"
        );
        let said = block(&recovery, RestartFiles::Found(0), &Here::Named("node0".into()), &Words::default());
        let lines = "\nftd:   moved     rank 3 from node 1 to node 0\nftd:   moved     rank 2 from node 1 to node 2, beyond its slots (--ft-oversubscribe)\nftd:   restored";
        assert!(said.contains(lines), "{said}");
    }

    #[test]
    fn the_block_says_whose_files_are_counted_and_whose_are_lost() {
        let mut failures = FailureSet::new();
        let (subject, node) = (Subject::Node(NodeId(1)), NodeId(1));
        failures.insert(Failure { subject, node, cause: Cause::NodeSilent });
        let (epoch, placement) = (EpochId(2), Placement::default());
        let episodes = vec![Episode { epoch, failures, placement }];
        let recovery = Recovery { restored: Some([(GroupId(0), None)].into()), episodes, ..nothing() };
        let said = |files| restored(&recovery, files, &Here::Named("b".into()), &Words::default());
        assert!(
            said(RestartFiles::Found(0))
                .ends_with("there is no file in $FT_CHECKPOINT_DIR on b; what node 1 had there is lost with it\n")
        );
        assert!(
            said(RestartFiles::Found(2))
                .ends_with("with 2 files in $FT_CHECKPOINT_DIR on b; what node 1 had there is lost with it\n")
        );
    }

    #[test]
    fn the_block_says_what_it_cost_and_why_it_took_long() {
        let words = Words { when: "now".into(), lost: "much".into(), count: "failure 1".into(), ..Words::default() };
        let said = |recovery: &Recovery| block(recovery, RestartFiles::Found(0), &Here::Alone, &words);
        let lines = said(&nothing());
        let names: Vec<&str> = lines.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(names, ["when", "restored", "lost", "took", "count"]);
        let episode = |epoch: u64| {
            let (failures, placement) = (FailureSet::new(), Placement::default());
            Episode { epoch: EpochId(epoch), failures, placement }
        };
        let of = |number: u64| Recovery { episodes: (2..2 + number).map(episode).collect(), ..nothing() };
        assert!(!said(&of(1)).contains("anew"));
        assert!(
            said(&of(2)).contains("ms from the notice on: ; another failure came meanwhile, and it was begun anew\n")
        );
        assert!(said(&of(4)).contains("3 other failures came meanwhile, and it was begun anew each time\n"));
    }

    #[test]
    fn the_block_names_what_failed_and_what_has_not_come_about() {
        let (one, two) = (Rank(1), Rank(2));
        let said = refused(&[(one, "the sizes differ".into()), (two, "the sizes differ".into())]);
        assert_eq!(said, "ftd:             ft_restore failed in rank 1 (and in rank 2): the sizes differ\n");
        let mut recovery = Recovery { without_state: vec![one], ..nothing() };
        assert_eq!(unfinished(&recovery, &Here::Alone), "", "the line before says that no rank has asked");
        recovery.taken = true;
        assert_eq!(unfinished(&recovery, &Here::Alone), "; without their state: rank 1");
        recovery.before_init = vec![one, two];
        assert_eq!(unfinished(&recovery, &Here::Alone), "; not seen past MPI_Init: ranks 1-2");
        let of_node = unfinished(&recovery, &Here::Named("node0".into()));
        assert_eq!(of_node, "; not seen past MPI_Init, of those on node0: ranks 1-2");
        assert!(
            restored(&recovery, RestartFiles::Found(0), &Here::Alone, &Words::default())
                .ends_with("nothing was asked for yet\n")
        );
        recovery.asked = true;
        assert!(
            restored(&recovery, RestartFiles::Found(0), &Here::Alone, &Words::default())
                .ends_with("was not known yet\n")
        );
        let stamp = Some(Stamp { version: Version(7), epoch: EpochId(1) });
        (recovery.restored, recovery.taken, recovery.waited) = (Some([(GroupId(0), stamp)].into()), false, true);
        let said = restored(&recovery, RestartFiles::Found(0), &Here::Alone, &Words::default());
        assert!(
            said.ends_with("nothing so far: version 7 was asked for (ft_restore), and no rank has it back\n"),
            "{said}"
        );
    }
}
