//! What nodes hold of checkpoints, and which questions are answered.

use super::{CodecError, parts};
use ft_proto::v1;
use ftd_core::due::Granted;
use ftd_core::holdings::{Copies, Held, Holdings};
use ftd_core::ranks::RankSet;
use ftd_core::{GroupId, Stamp};

pub fn holdings_out(holdings: &Holdings) -> v1::Holdings {
    let groups = holdings.groups().map(|(group, held)| v1::Held {
        group: group.0,
        somewhere: held.somewhere.iter().copied().map(parts::stamp_out).collect(),
        elsewhere: held.elsewhere.iter().copied().map(parts::stamp_out).collect(),
    });
    v1::Holdings { groups: groups.collect() }
}

pub fn holdings_in(holdings: v1::Holdings) -> Holdings {
    let group = |held: v1::Held| {
        let somewhere = held.somewhere.into_iter().map(parts::stamp_in).collect();
        let elsewhere = held.elsewhere.into_iter().map(parts::stamp_in).collect();
        (GroupId(held.group), Held { somewhere, elsewhere })
    };
    holdings.groups.into_iter().map(group).collect()
}

pub fn copies_out(copies: &Copies) -> Vec<v1::Copies> {
    let of_version = |(stamp, ranks): (&Stamp, &RankSet)| v1::Copies {
        stamp: Some(parts::stamp_out(*stamp)),
        ranks: Some(parts::ranks_out(ranks)),
    };
    copies.iter().map(of_version).collect()
}

pub fn copies_in(copies: Vec<v1::Copies>) -> Result<Copies, CodecError> {
    let of_version = |copies: v1::Copies| {
        let stamp = copies.stamp.map(parts::stamp_in).ok_or(CodecError::Missing("version"))?;
        Ok((stamp, parts::ranks_in(&copies.ranks.unwrap_or_default())?))
    };
    copies.into_iter().map(of_version).collect()
}

pub fn granted_out(granted: &Granted) -> v1::Granted {
    v1::Granted { until: granted.until, yes: granted.yes().collect() }
}

pub fn granted_in(granted: v1::Granted) -> Result<Granted, CodecError> {
    Granted::of(granted.until, granted.yes).ok_or(CodecError::Missing("answers"))
}
