//! When a node's next heartbeat leaves: a period after the one before at the latest, and sooner when another node's comes.
//!
//! An agent that does nothing but its heartbeats costs what it is woken. One that sends its own in the wake in which another's comes, and
//! whose observer answers and sends in one as well, is woken less often: nodes that hear each other beat together. One of them, the first,
//! has them sent by its timer; the others follow, and their timers never ring. So that these do not ring in the same moment, the first one's
//! period is a little shorter once somebody follows it. What nobody's rhythm changes is that no heartbeat is late: observers and leases go by
//! when it was sent and came, and know nothing of all this.

use crate::ids::Micros;

/// The first one's period is shorter by this part of it: more than timers and a network are late by.
const AHEAD: u64 = 20;

/// So much of its period, in eighths, a node has behind it before it follows: when it has followed before, nearly all, or among many nodes
/// it would beat more often than it must; else half, and of two one is always near enough.
const NEAR: [u64; 2] = [4, 7];

/// Who beats so soon after this node, in eighths of a period, beats with it.
const TOGETHER: u64 = 2;

/// Who is late by more than so much of its period, in eighths, is kept from running.
const LATE: u64 = 1;

const EIGHTHS: u64 = 8;

/// When the next heartbeat leaves.
#[derive(Debug, Clone, Default)]
pub(super) struct Rhythm {
    last: Micros,
    next: Micros,
    /// The next one leaves because another's has come; the last one did.
    follows: bool,
    followed: bool,
    /// Others follow this node.
    leads: bool,
    /// The last one left later than it was due, by more than timers are late.
    late: bool,
}

impl Rhythm {
    /// One is to leave now, whatever came before.
    pub(super) fn at_once(&mut self, now: Micros) {
        (self.next, self.follows) = (now, false);
    }

    pub(super) fn due(&self) -> Micros {
        self.next
    }

    /// Whether the last one left when it was due.
    pub(super) fn is_punctual(&self) -> bool {
        !self.late
    }

    /// It leaves.
    pub(super) fn beats(&mut self, period: Micros, now: Micros) {
        self.late = now.since(self.next).0.saturating_mul(EIGHTHS) > LATE.saturating_mul(period.0);
        let ahead = if self.leads && !self.follows { period.0 / AHEAD } else { 0 };
        self.followed = std::mem::take(&mut self.follows);
        self.leads &= !self.followed;
        (self.last, self.next) = (now, now.after(Micros(period.0 - ahead)));
    }

    /// A heartbeat that counts came. `behind`: its sender comes behind this node where both of them could be first.
    pub(super) fn hears(&mut self, behind: bool, period: Micros, now: Micros) {
        let since = now.since(self.last).0.saturating_mul(EIGHTHS);
        if since >= NEAR[usize::from(self.followed)].saturating_mul(period.0) {
            self.follows |= now < self.next;
            self.next = self.next.min(now);
        } else if since <= TOGETHER.saturating_mul(period.0) && !self.followed {
            self.leads = behind;
        }
    }
}
