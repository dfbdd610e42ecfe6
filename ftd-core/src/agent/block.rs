//! What is said of a recovery's failures; the last one, before the job's end.

use crate::ids::Micros;
use crate::plan::sentences;
use crate::policy::Policy;
use crate::report::{Episode, Recovery};

/// A block that waits.
#[derive(Debug, Clone)]
pub(super) struct LastBlock {
    pub(super) recovery: Recovery,
    pub(super) since: Micros,
}

/// One sentence for each that failed, and each end that is not blamed. What happened again while the job recovered from it is
/// said once, and how often.
pub(super) fn blame(episodes: &[Episode], policy: &Policy) -> Vec<String> {
    let mut lines: Vec<(String, u32)> = Vec::new();
    for sentence in episodes.iter().flat_map(|episode| sentences(&episode.placement, &episode.failures, policy)) {
        match lines.iter_mut().find(|(known, _)| *known == sentence) {
            Some((_, times)) => *times += 1,
            None => lines.push((sentence, 1)),
        }
    }
    let line = |(sentence, times)| if times == 1 { sentence } else { format!("{sentence} ({times} times)") };
    lines.into_iter().map(line).collect()
}
