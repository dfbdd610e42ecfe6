//! What lies here for a launcher that has not read it yet: no more than honest ends have under way.

use crate::frames::{self, Broken};
use ft_wire::part::{Carried, FromJobs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a word takes besides its bytes.
const WORD: usize = 64;
/// Words are short where parts say little at a time: so many times the windows of all links may lie here.
const TIMES: usize = 8;
/// … and this besides.
const MORE: usize = 4 << 20;

/// Who tells the launcher something.
#[derive(Clone)]
pub struct Said {
    to: UnboundedSender<FromJobs>,
    lies: Arc<Lies>,
}

/// What lies here.
struct Lies {
    cost: AtomicUsize,
    most: usize,
    /// An answer to a question is among it.
    here: AtomicBool,
}

/// Where it goes from here.
pub struct ToLauncher {
    said: UnboundedReceiver<FromJobs>,
    lies: Arc<Lies>,
}

fn cost(word: &FromJobs) -> usize {
    let bytes = if let FromJobs::Carried { word: Carried::Bytes(bytes), .. } = word { bytes.len() } else { 0 };
    WORD + bytes
}

/// Both, of a job with so many links with windows of so many bytes.
pub fn said(links: usize, window: u32) -> (Said, ToLauncher) {
    let (to, said) = unbounded_channel();
    let most = (window as usize).saturating_mul(links).saturating_mul(TIMES).saturating_add(MORE);
    let lies = Arc::new(Lies { cost: AtomicUsize::new(0), most, here: AtomicBool::new(false) });
    (Said { to, lies: lies.clone() }, ToLauncher { said, lies })
}

impl Said {
    /// One word more. Who is gone is told nothing.
    ///
    /// # Errors
    /// [`Broken::TooMuch`]: the launcher lets others say more than it takes.
    pub fn say(&self, word: FromJobs) -> Result<(), Broken> {
        let lies = self.lies.cost.fetch_add(cost(&word), Ordering::Relaxed);
        let _ = self.to.send(word);
        if lies <= self.lies.most || self.to.is_closed() { Ok(()) } else { Err(Broken::TooMuch) }
    }

    /// This process is here, once for all questions that are not answered yet.
    pub fn here(&self) {
        if !self.lies.here.swap(true, Ordering::Relaxed) {
            let _ = self.say(FromJobs::Here);
        }
    }
}

impl ToLauncher {
    /// The next word.
    pub async fn next(&mut self) -> Option<FromJobs> {
        let word = self.said.recv().await?;
        self.lies.cost.fetch_sub(cost(&word), Ordering::Relaxed);
        if word == FromJobs::Here {
            self.lies.here.store(false, Ordering::Relaxed);
        }
        Some(word)
    }

    /// Tells it, until it is gone.
    pub async fn tell(mut self, mut to: impl AsyncWrite + Unpin) {
        while let Some(word) = self.next().await {
            if frames::send(&mut to, &word).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_that_reads_nothing_is_told_no_more_than_may_lie_here() {
        let (said, mut to_launcher) = said(2, 16 << 10);
        (0..1_000_000).for_each(|_| said.here());
        assert_eq!(to_launcher.said.len(), 1);
        let word = || FromJobs::Carried { node: 0, word: Carried::Bytes(vec![0; 1000]) };
        let most = (0..100_000).take_while(|_| said.say(word()).is_ok()).count();
        assert!((2 * 16..5000).contains(&most), "{most} times 1000 bytes");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { while to_launcher.said.len() > 100 && to_launcher.next().await.is_some() {} });
        assert!(said.say(word()).is_ok(), "it has read");
    }
}
