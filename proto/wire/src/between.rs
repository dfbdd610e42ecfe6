//! Agent ⇄ agent of one job, about one world: what its MPI wants to know of the ranks on other nodes. The words travel as parcels of
//! ft-peer, which know nothing of their content.

use crate::ask::{Event, Process};
use crate::copies::CopyWord;
use crate::injection::Injection;
use crate::pmix::{Proc, Raised};
use crate::{FRAME_HEADER, FrameError, Rank, Role, Version, decode, encode, is_neighbour, version};
use serde::{Deserialize, Serialize};

/// What a fence is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// A PMI-1 barrier; what was put since the last one goes with it.
    Pmi,
    /// A PMIx fence.
    Pmix,
    /// `PMIx_Connect`: everybody comes to it, and nothing goes with it.
    Connect,
    /// `PMIx_Disconnect`, in the same way.
    Disconnect,
    /// `PMIx_Group_construct`; this is of the group's name.
    Group(u64),
}

/// Names a fence within its world.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// What it is of.
    pub protocol: Protocol,
    /// Whose: each run is a first rank and the one behind its last.
    pub ranks: Vec<(Rank, Rank)>,
    /// How many there were of these ranks and this protocol before it.
    pub turn: u64,
}

/// A rank that takes no more checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaver {
    /// Which.
    pub rank: Rank,
    /// Its last version.
    pub last: Option<Version>,
    /// It has called `ft_finalize`, or else has ended.
    pub finalized: bool,
}

/// What waits for an answer about published names, on its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asker {
    /// A request of `ft-pmix`, by its token.
    Pmix(u64),
    /// A rank that speaks PMI-1, which asks one thing at a time.
    Pmi(Rank),
}

/// What a rank wants with names that ranks of its world publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameRequest {
    /// Publish values.
    Publish {
        /// Who.
        proc: Proc,
        /// Names and values.
        values: Vec<(String, Vec<u8>)>,
        /// Only the first who looks them up is to find them.
        once: bool,
    },
    /// Look names up.
    LookUp {
        /// Which.
        keys: Vec<String>,
        /// Wait until all are published.
        wait: bool,
        /// For so long; 0: without an end.
        seconds: u32,
    },
    /// Withdraw names.
    Unpublish {
        /// Whose alone; without: whoever has published them.
        proc: Option<Proc>,
        /// Which; none: all.
        keys: Vec<String>,
    },
}

/// The answer to a [`NameRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameAnswer {
    /// PMIx status.
    pub status: i32,
    /// Publisher, name and value of what was looked up.
    pub found: Vec<(Proc, String, Vec<u8>)>,
}

/// What one agent says to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// All ranks of the sender's node and of those below it in the fence's tree are in.
    Up {
        /// Which.
        fence: Fence,
        /// What each node gives.
        parts: Vec<Vec<u8>>,
    },
    /// All ranks are in.
    Down {
        /// Which.
        fence: Fence,
        /// What all nodes have given.
        parts: Vec<Vec<u8>>,
    },
    /// What has this process of the receiver's node put through PMIx?
    Modex {
        /// For the answer.
        token: u64,
        /// Which.
        proc: Proc,
    },
    /// Answer to [`Modex`](Self::Modex).
    ModexData {
        /// As it was asked.
        token: u64,
        /// PMIx status.
        status: i32,
        /// The data.
        data: Vec<u8>,
    },
    /// To the node that keeps the published names of the world.
    Name {
        /// For the answer.
        asker: Asker,
        /// What is wanted.
        request: NameRequest,
    },
    /// Answer to [`Name`](Self::Name).
    Named {
        /// As it was asked.
        asker: Asker,
        /// The answer.
        answer: NameAnswer,
    },
    /// A rank has raised an event; goes on along the tree of the world's nodes.
    Event(Raised),
    /// Ranks take no more checkpoints: those of which the sender knows and the receiver may not, its neighbour in the tree of the
    /// world's nodes.
    Left {
        /// Which.
        leavers: Vec<Leaver>,
    },
    /// About a copy of a checkpoint. Nodes without ranks of the world say and hear it as well.
    Copy(CopyWord),
    /// About the store, and no world: nodes that reach it through their `ftd` ask it for others.
    Store(StoreWord),
    /// About what the job's user has asked the sender, and no world.
    User(UserWord),
}

/// What one agent asks another for the job's user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserWord {
    /// Is asked.
    Ask {
        /// For the answer.
        token: u64,
        /// What.
        question: UserQuestion,
    },
    /// Answer to [`Ask`](Self::Ask).
    Answer {
        /// As it was asked.
        token: u64,
        /// The answer.
        answer: UserAnswer,
    },
}

/// What the job's user wants of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserQuestion {
    /// Its ranks' processes. Answered by [`UserAnswer::Processes`].
    Processes,
    /// What has happened there that other nodes do not see. Answered by [`UserAnswer::Events`].
    Events {
        /// From this one on, by the number that the last answer gave.
        from: u64,
    },
    /// Which of its processes have died in the failure that it has noticed last. Answered by [`UserAnswer::Dead`].
    Dead,
    /// One of its ranks is to die. Answered by [`UserAnswer::Noted`].
    Inject {
        /// Which.
        injection: Injection,
        /// Which user has asked.
        uid: u32,
    },
}

/// Answer to a [`UserQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserAnswer {
    /// All of them.
    Processes {
        /// Of the newest world there.
        processes: Vec<Process>,
        /// Bytes of memory there that hold copies of other nodes' checkpoints.
        copies: u64,
        /// Deaths that are to come about there.
        injections: Vec<Injection>,
    },
    /// Oldest first.
    Events {
        /// Those that are remembered.
        events: Vec<Event>,
        /// The number of the next one.
        next: u64,
    },
    /// Ranks, and the numbers of their processes.
    Dead(Vec<(Rank, i32)>),
    /// It will be done, and what is to be known of that; or why not.
    Noted(Result<String, String>),
}

/// What one agent asks another to ask the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreWord {
    /// Is to be asked.
    Ask {
        /// For the answer.
        token: u64,
        /// How long it may take, in milliseconds.
        within_ms: u64,
        /// A frame with the question, as the daemon is asked it.
        question: Vec<u8>,
    },
    /// Answer to [`Ask`](Self::Ask).
    Answer {
        /// As it was asked.
        token: u64,
        /// A frame with the answer.
        answer: Vec<u8>,
    },
}

impl Word {
    /// The word as bytes, which begin with the number that this side speaks.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, FrameError> {
        let mut frame = encode(self, 0)?;
        frame.splice(..FRAME_HEADER, version().to_le_bytes());
        Ok(frame)
    }

    /// The word from bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Word, FrameError> {
        let Some((theirs, body)) = bytes.split_first_chunk() else {
            return Err(FrameError::Malformed("it is too short".into()));
        };
        match u32::from_le_bytes(*theirs) {
            theirs if is_neighbour(theirs) => decode(body),
            theirs => Err(FrameError::Version { theirs, ours: version(), role: Role::Agent }),
        }
    }
}

/// Keys and values as bytes, for a fence of PMI-1.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn puts_to_bytes(puts: &[(String, String)]) -> Result<Vec<u8>, FrameError> {
    let mut frame = encode(&puts, 0)?;
    frame.drain(..FRAME_HEADER);
    Ok(frame)
}

/// … and back.
///
/// # Errors
/// When they are none.
pub fn puts_from_bytes(bytes: &[u8]) -> Result<Vec<(String, String)>, FrameError> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_BODY;

    #[test]
    fn words_come_back_and_longer_ones_than_fit_are_refused() {
        let fence = Fence { protocol: Protocol::Pmi, ranks: vec![(0, 4)], turn: 7 };
        let up = Word::Up { fence: fence.clone(), parts: vec![b"a".to_vec(), Vec::new()] };
        assert_eq!(Word::from_bytes(&up.to_bytes().unwrap()).unwrap(), up);
        let long = Word::Down { fence, parts: vec![vec![0; MAX_BODY]] };
        assert!(matches!(long.to_bytes(), Err(FrameError::TooLong { .. })));
        assert!(Word::from_bytes(b"\xff\xff").is_err());
        let mut others = up.to_bytes().unwrap();
        others[0] += 1;
        assert_eq!(Word::from_bytes(&others).unwrap(), up, "a neighbour's");
        others[0] += 1;
        assert!(matches!(Word::from_bytes(&others), Err(FrameError::Version { .. })));
    }
}
