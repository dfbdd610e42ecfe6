//! What leaves in one datagram: a node's heartbeat, and its answer to a heartbeat of the node to which that goes. Each datagram costs its sender as
//! much as all that was thought before it, and who gets it is woken once.

use ftd_core::{Effect, NodeId, PeerMessage};

/// A heartbeat and an answer for the same node, taken out of what is to be done in one step; nothing where there are none. Beside records, which
/// leave before heartbeats of their epoch, all is said as it comes.
pub fn take_out(effects: &mut Vec<Effect>) -> Option<(NodeId, PeerMessage, PeerMessage)> {
    let is_small = |effect: &Effect| match effect {
        Effect::Send { message, .. } => is_heartbeat(message) || is_answer(message),
        Effect::WakeAt(_) => true,
        _ => false,
    };
    let sends = |effect: &Effect, what: fn(&PeerMessage) -> bool| match effect {
        Effect::Send { to, message } if what(message) => Some(*to),
        _ => None,
    };
    if !effects.iter().all(is_small) {
        return None;
    }
    let (first, second, to) = effects.iter().enumerate().find_map(|(first, effect)| {
        let to = sends(effect, is_answer)?;
        Some((first, effects.iter().position(|effect| sends(effect, is_heartbeat) == Some(to))?, to))
    })?;
    let (answer, heartbeat) = (message(effects[first].clone())?, message(effects[second].clone())?);
    effects.remove(first.max(second));
    effects.remove(first.min(second));
    Some((to, heartbeat, answer))
}

fn message(effect: Effect) -> Option<PeerMessage> {
    match effect {
        Effect::Send { message, .. } => Some(message),
        _ => None,
    }
}

fn is_heartbeat(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Heartbeat { .. })
}

fn is_answer(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Acknowledge { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::fence::Beat;
    use ftd_core::{EpochId, Micros};

    const EPOCH: EpochId = EpochId(2);

    fn send(to: u32, message: PeerMessage) -> Effect {
        Effect::Send { to: NodeId(to), message }
    }

    fn heartbeat() -> PeerMessage {
        PeerMessage::Heartbeat { beat: Beat::default(), epoch: EPOCH, unheard: false }
    }

    fn answer() -> PeerMessage {
        PeerMessage::Acknowledge { beat: Beat::default(), epoch: EPOCH, still: false }
    }

    #[test]
    fn an_answer_leaves_with_the_heartbeat_for_the_same_node() {
        let rest = [send(1, heartbeat()), Effect::WakeAt(Micros(9))];
        for both in [[send(2, answer()), send(2, heartbeat())], [send(2, heartbeat()), send(2, answer())]] {
            let mut effects = [&both[..1], &rest[..1], &both[1..], &rest[1..]].concat();
            assert_eq!(take_out(&mut effects), Some((NodeId(2), heartbeat(), answer())));
            assert_eq!(effects, rest);
        }
    }

    #[test]
    fn so_it_is_with_each_of_several_nodes() {
        let all = [send(1, answer()), send(2, heartbeat()), send(2, answer()), send(3, heartbeat()), send(3, answer())];
        let mut effects = all.to_vec();
        let mut taken = || take_out(&mut effects).map(|(to, ..)| to);
        assert_eq!([taken(), taken(), taken()], [Some(NodeId(2)), Some(NodeId(3)), None]);
        assert_eq!(effects, all[..1]);
    }

    #[test]
    fn alone_and_beside_other_things_all_is_said_as_it_comes() {
        let record = send(2, PeerMessage::AskForRecord { epoch: EPOCH });
        for all in [
            vec![send(1, answer()), send(2, heartbeat())],
            vec![send(1, heartbeat())],
            vec![record, send(2, answer()), send(2, heartbeat())],
            vec![send(2, answer()), Effect::ReadStore, send(2, heartbeat())],
        ] {
            let mut effects = all.clone();
            assert_eq!(take_out(&mut effects), None);
            assert_eq!(effects, all);
        }
    }
}
