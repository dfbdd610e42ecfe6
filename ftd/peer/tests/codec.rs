//! Every message comes back as it was, and no bytes make an agent panic or take memory that they did not bring.

mod any;

use ft_peer::codec::{self, CodecError, MOST_BYTES};
use ft_proto::v1;
use ftd_core::{EpochId, NodeId, PeerMessage, SlotId};
use proptest::prelude::*;
use prost::Message;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1000 } else { 5000 }))]

    #[test]
    fn every_message_comes_back(message in any::message()) {
        let bytes = any::bytes(&message);
        prop_assert_eq!(codec::decode(&bytes).unwrap(), message);
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = codec::decode(&bytes);
    }

    #[test]
    fn a_message_that_was_damaged_is_another_or_none(
        message in any::message(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = any::bytes(&message);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        // What is a message is one that can be said.
        if let Ok(message) = codec::decode(&bytes) {
            prop_assert_eq!(codec::decode(&any::bytes(&message)).unwrap(), message);
        }
    }
}

#[test]
fn what_only_claims_to_be_long_is_refused() {
    // Field 10 (an offer) of 2^40 bytes, of which three came.
    let claims = [0x52, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 1, 2, 3];
    assert!(matches!(codec::decode(&claims), Err(CodecError::Damaged(_))));
    assert!(matches!(codec::decode(&vec![0; MOST_BYTES + 1]), Err(CodecError::TooLong { .. })));
}

#[test]
fn a_message_that_is_too_long_is_not_sent_and_its_length_is_said() {
    let slots = (0..4_000_000).map(|slot| SlotId(u32::MAX - slot)).collect();
    let sentence = codec::encode(&PeerMessage::Join { epoch: EpochId(1), slots }).unwrap_err().to_string();
    assert_eq!(sentence, "the message has 20000012 bytes, and the longest that is sent has 16777216");
}

#[test]
fn a_detour_within_a_detour_is_refused_however_deep() {
    let mut message = PeerMessage::Heard { epoch: EpochId(1) };
    let mut bytes = v1::PeerMessage::decode(&*codec::encode(&message).unwrap()).unwrap();
    for depth in 1..120 {
        message = PeerMessage::Relay { origin: NodeId(1), to: NodeId(2), message: Box::new(message) };
        let relay = v1::Relay { origin: 1, to: 2, message: Some(Box::new(bytes)) };
        bytes = v1::PeerMessage { says: Some(v1::peer_message::Says::Relay(Box::new(relay))) };
        assert_eq!(codec::encode(&message).is_ok(), depth == 1, "{depth}");
        assert_eq!(codec::decode(&bytes.encode_to_vec()).is_ok(), depth == 1, "{depth}");
    }
}

#[test]
fn a_message_without_a_kind_is_none() {
    assert!(matches!(codec::decode(&[]), Err(CodecError::Missing("kind"))));
}
