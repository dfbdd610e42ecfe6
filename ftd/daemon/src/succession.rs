//! One connection of a link after the other: one that is lost, or in doubt, is no lost link where there may be [`Another`].

use crate::frames::{Broken, Stream};
use crate::watch::{Doubt, Watch};
use ft_wire::part::SILENT;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// After one on which the two ends have not come to agree.
const PAUSE: Duration = Duration::from_millis(250);
/// For another one there is at least so much time, also where a lost one was noticed late.
const LEAST: Duration = Duration::from_secs(1);

/// Where another connection between the same two ends comes from.
pub trait Another {
    /// Whether there may be one at all: else nothing is kept for it.
    const MAY_BE: bool;

    /// One on which both ends have spoken, some time after there was doubt; nothing, where the other end is known to be gone.
    async fn next(&mut self, doubt: &Doubt) -> Option<Box<dyn Stream>>;
}

/// There is none: with its connection the link is lost.
pub struct OnlyOne;

impl Another for OnlyOne {
    const MAY_BE: bool = false;

    async fn next(&mut self, _: &Doubt) -> Option<Box<dyn Stream>> {
        std::future::pending().await
    }
}

/// One end of a link, or who carries for it.
pub trait Side {
    /// What it knows of the other one.
    fn watch(&self) -> &Watch;

    /// What goes over one connection, until one of the two ends has nothing more to say, or it is lost. `begun`: it is not the first.
    async fn over(&self, peer: &mut Box<dyn Stream>, begun: bool) -> Result<(), Broken>;

    /// The two ends say over another connection how far they are: the rest is sent again.
    async fn agree(&self, peer: &mut Box<dyn Stream>) -> Result<(), Broken>;

    /// Whether a first connection that was closed, and not by a word, leaves the other end where it was.
    fn outlives_close(&self) -> bool;

    /// How long another connection is waited for at most where one was lost so.
    fn patience(&self, lost: &Broken) -> Duration;

    /// Nothing more comes from this end.
    fn has_ended(&self) -> bool;

    /// Another connection is of no use any more.
    fn gives_up(&self) -> bool {
        false
    }
}

/// Goes from one to the next, until one of the two ends has ended. Without a first one the next is waited for.
///
/// # Errors
/// [`Broken`]: the other end is gone.
pub async fn go<S: Side, A: Another>(first: Option<Box<dyn Stream>>, side: &S, another: &mut A) -> Result<(), Broken> {
    let watch = side.watch();
    let mut begun = first.is_none();
    let mut now = first;
    // Until when another one may come in the place of what was lost.
    let mut until = None;
    loop {
        let ended = async {
            match &mut now {
                Some(peer) => side.over(peer, begun).await,
                None => Err(Broken::Closed),
            }
        };
        let mut coming = pin!(another.next(&watch.doubt));
        let (next, lost) = tokio::select! {
            biased;
            next = &mut coming => (next, Broken::Closed),
            ended = ended => match ended {
                Err(lost) if A::MAY_BE && may_go_on(side, &lost, begun) => {
                    watch.doubt.comes_true();
                    let until = *until.get_or_insert_with(|| Instant::now() + left(side, &lost));
                    let left = until.saturating_duration_since(Instant::now());
                    (timeout(left, coming).await.unwrap_or_default(), lost)
                }
                ended => return ended,
            },
        };
        let Some(mut next) = next else {
            // Who has said its last word has been heard, or is not waited for.
            return if side.has_ended() { Ok(()) } else { Err(lost) };
        };
        // The one before is closed when both ends know that it is needed no more: to close it says that its end is gone.
        let agreed = side.agree(&mut next).await;
        (begun, now) = (true, agreed.is_ok().then_some(next));
        match agreed {
            Ok(()) => {
                until = None;
                watch.hears();
                tracing::info!("the link of a job's part goes on over another connection");
            }
            Err(_) if side.gives_up() => return Ok(()),
            Err(lost) if until.is_some_and(|until| until <= Instant::now()) => return Err(lost),
            Err(lost) => {
                tracing::debug!(%lost, "another connection of a link was lost at once");
                until.get_or_insert_with(|| Instant::now() + left(side, &lost));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether what became of a connection says nothing of the other end.
pub fn may_go_on(side: &impl Side, lost: &Broken, begun: bool) -> bool {
    match lost {
        Broken::Io(_) | Broken::Silent(_) | Broken::Idle(_) => true,
        Broken::Closed => begun || side.watch().doubt.was_there() || side.outlives_close(),
        Broken::Frame(_) | Broken::Role(_) | Broken::TooMuch => false,
    }
}

/// How long another connection is waited for.
fn left(side: &impl Side, lost: &Broken) -> Duration {
    // One that has said its last word is not asked any more.
    if side.has_ended() {
        return side.patience(lost);
    }
    SILENT.saturating_sub(side.watch().heard_ago()).clamp(LEAST, side.patience(lost))
}
