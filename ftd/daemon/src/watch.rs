//! Whether the other end of a link is there, and whether its connection does what it should.

use crate::looks::Looks;
use ft_wire::part::PULSE;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// What an end of a link does to know that the other one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It asks.
    Asks,
    /// It answers.
    Answers,
    /// It answers, and the part behind it hears that it was asked.
    Tells,
}

/// Whether the connection does what it should.
#[derive(Default)]
pub struct Doubt {
    is_there: AtomicBool,
    was_there: AtomicBool,
    /// The connection is lost.
    has_come_true: AtomicBool,
    raised: Notify,
}

impl Doubt {
    /// From now on there is doubt.
    pub fn raise(&self) {
        self.is_there.store(true, Ordering::Relaxed);
        self.was_there.store(true, Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// Waits as long as there is none.
    pub async fn raised(&self) {
        while !self.is_there.load(Ordering::Relaxed) {
            self.raised.notified().await;
        }
    }

    /// Whether there was any, ever.
    pub fn was_there(&self) -> bool {
        self.was_there.load(Ordering::Relaxed)
    }

    /// Whether the connection is lost: nothing comes on it any more.
    pub fn has_come_true(&self) -> bool {
        self.has_come_true.load(Ordering::Relaxed)
    }

    /// It is lost.
    pub fn comes_true(&self) {
        self.has_come_true.store(true, Ordering::Relaxed);
        self.raise();
    }

    fn withdraw(&self) {
        self.is_there.store(false, Ordering::Relaxed);
        self.has_come_true.store(false, Ordering::Relaxed);
    }
}

/// What an end knows of the other one.
pub struct Watch {
    /// What it does about it.
    pub pulse: Pulse,
    /// Another connection may come in the place of this one.
    pub may_go_on: bool,
    /// What is to be said before all that waits.
    pub question: Notify,
    /// See `question`.
    pub answer: Notify,
    /// Something has come since it was looked.
    heard: AtomicBool,
    last: Mutex<Instant>,
    /// Of the connection.
    pub doubt: Doubt,
}

impl Watch {
    /// From now on.
    pub fn new(pulse: Pulse, may_go_on: bool) -> Watch {
        Watch {
            pulse,
            may_go_on,
            question: Notify::new(),
            answer: Notify::new(),
            heard: AtomicBool::new(false),
            last: Mutex::new(Instant::now()),
            doubt: Doubt::default(),
        }
    }

    /// Something has come.
    pub fn hears(&self) {
        self.heard.store(true, Ordering::Relaxed);
        self.doubt.withdraw();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long ago that was.
    pub fn heard_ago(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Until one that is asked has not answered for too long. What starts the part there is not to be taken for that: the first word counts,
    /// unless it was heard before.
    pub async fn silence(&self, begun: bool) {
        if self.pulse != Pulse::Asks {
            return std::future::pending().await;
        }
        // Who may do something about it wants to know sooner.
        let often = if self.may_go_on { PULSE / 2 } else { PULSE };
        let mut looks = Looks::new(Instant::now(), often, begun);
        loop {
            tokio::time::sleep(often).await;
            // Where this process stood still itself, what has come meanwhile is heard first.
            tokio::task::yield_now().await;
            if looks.look(Instant::now(), self.heard.swap(false, Ordering::Relaxed)) {
                return;
            }
            if looks.begun() {
                self.question.notify_one();
            }
            if looks.in_vain() > 0 {
                self.doubt.raise();
            }
        }
    }
}
