//! A part's link between two daemons: bytes both ways, of which never more are under way than the other end takes at once. So a reader
//! that stands still leaves nothing in TCP's buffers, and what TCP cannot deliver in its time means that the network or the node is gone.
//! TCP answers for a process that stands still: so one end asks the other one whether it is there.

use crate::frames::{self, Broken, Stream};
use crate::looks::Looks;
use ft_wire::part::{Carried, MAX_SAID, PULSE, SILENT};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Notify, Semaphore};

/// Bytes that may be under way on all links of a job together, in each direction …
const OF_JOB: usize = 16 << 20;
/// … and on one of them.
const OF_LINK: (usize, usize) = (16 << 10, 1 << 20);
/// Sent at once.
const PIECE: usize = 64 << 10;
/// Who has said its last word waits so long for the other end to have taken it.
const LINGER: Duration = Duration::from_secs(60);

/// How many bytes may be under way on each of so many links of a job.
pub fn window(links: usize) -> u32 {
    let (least, most) = OF_LINK;
    u32::try_from((OF_JOB / links.max(1)).clamp(least, most)).unwrap_or(u32::MAX)
}

/// What an end of a link does to know that the other one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It asks.
    Asks,
    /// It answers.
    Answers,
}

/// What is to be said of it, before all that waits.
#[derive(Default)]
struct Owed {
    question: Notify,
    answer: Notify,
    /// Something has come since it was looked.
    heard: AtomicBool,
}

/// Carries between `peer`, another daemon that does the same, and `own`, whose words they are, until one of the two has ended. What came
/// from there before is passed on, also when what is to go there has nobody to take it any more.
///
/// # Errors
/// [`Broken`]: the other daemon is gone, or does not keep to this.
pub async fn carry(peer: impl Stream, own: impl Stream, window: u32, pulse: Pulse) -> Result<(), Broken> {
    // A window that another end names is no reason to take more.
    let window = (window as usize).clamp(OF_LINK.0, OF_LINK.1);
    let (mut from_peer, mut to_peer) = tokio::io::split(peer);
    let (mut from_own, mut to_own) = tokio::io::split(own);
    let (credit, held, owed) = (Semaphore::new(window), AtomicUsize::new(0), Owed::default());
    let (came, to_pass) = unbounded_channel();
    let (words, said) = channel(1);
    let passing = pass(&mut to_own, to_pass, &held, words.clone(), window);
    tokio::pin!(passing);
    let hearing = hear(&mut from_peer, came, (&held, &owed), &credit, window);
    let saying = async { tokio::join!(read(&mut from_own, words, &credit, window), tell(&mut to_peer, said, &owed)).1 };
    let ended = {
        tokio::pin!(hearing, saying);
        tokio::select! {
            heard = &mut hearing => heard,
            told = &mut saying => {
                // Nobody is left here who would hear more; but who closes with something unread takes back what was sent last.
                if told.is_ok() {
                    let _ = tokio::time::timeout(LINGER, &mut hearing).await;
                }
                return told;
            }
            // It ends with what it takes from `hearing`.
            () = &mut passing => Ok(()),
            () = silence(pulse, &owed) => Err(Broken::Silent(SILENT)),
        }
    };
    drop((from_peer, to_peer));
    // One that reads no more while it writes is not waited for.
    let mut rest = tokio::io::sink();
    tokio::select! {
        () = passing => {}
        _ = tokio::io::copy(&mut from_own, &mut rest) => {}
    }
    ended
}

/// What comes from the other daemon, until that says that nothing more does.
async fn hear(
    from: &mut (impl AsyncRead + Unpin),
    came: UnboundedSender<Vec<u8>>,
    (held, owed): (&AtomicUsize, &Owed),
    credit: &Semaphore,
    window: usize,
) -> Result<(), Broken> {
    loop {
        let word = frames::receive(from, MAX_SAID).await?;
        owed.heard.store(true, Ordering::Relaxed);
        match word {
            Carried::Ask => owed.answer.notify_one(),
            Carried::Here => {}
            Carried::Bytes(bytes) => {
                if held.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > window {
                    return Err(Broken::TooMuch);
                }
                // Who takes it lives as long as this.
                let _ = came.send(bytes);
            }
            Carried::Taken(count) => {
                credit.add_permits((count as usize).min(window.saturating_sub(credit.available_permits())));
            }
            Carried::End => return Ok(()),
        }
    }
}

/// Passes on what came, and says how much of it was. For one who takes nothing any more it is dropped: what that one has said is on its
/// way all the same.
async fn pass(
    to: &mut (impl AsyncWrite + Unpin),
    mut came: UnboundedReceiver<Vec<u8>>,
    held: &AtomicUsize,
    words: Sender<Carried>,
    window: usize,
) {
    let (mut listens, mut passed) = (true, 0);
    while let Some(bytes) = came.recv().await {
        listens = listens && to.write_all(&bytes).await.is_ok() && to.flush().await.is_ok();
        held.fetch_sub(bytes.len(), Ordering::Relaxed);
        passed += bytes.len();
        if passed >= window / 4 {
            // Nobody wants to know who is gone.
            let _ = words.send(Carried::Taken(std::mem::take(&mut passed) as u32)).await;
        }
    }
}

/// What is said here, as far as it may be under way.
async fn read(from: &mut (impl AsyncRead + Unpin), words: Sender<Carried>, credit: &Semaphore, window: usize) {
    let mut bytes = vec![0; PIECE.min(window / 4)];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let Ok(room) = credit.acquire_many(count as u32).await else { return };
        room.forget();
        if words.send(Carried::Bytes(bytes[..count].to_vec())).await.is_err() {
            return;
        }
    }
    let _ = words.send(Carried::End).await;
}

/// Until one that is asked has not answered for too long. What starts the part there is not to be taken for that: the first word counts.
async fn silence(pulse: Pulse, owed: &Owed) {
    if pulse == Pulse::Answers {
        return std::future::pending().await;
    }
    let mut looks = Looks::new(Instant::now());
    loop {
        tokio::time::sleep(PULSE).await;
        if looks.look(Instant::now(), owed.heard.swap(false, Ordering::Relaxed)) {
            return;
        }
        if looks.begun() {
            owed.question.notify_one();
        }
    }
}

/// Sends all that is to be said to the other daemon.
async fn tell(to: &mut (impl AsyncWrite + Unpin), mut said: Receiver<Carried>, owed: &Owed) -> Result<(), Broken> {
    loop {
        let word = tokio::select! {
            biased;
            () = owed.answer.notified() => Carried::Here,
            () = owed.question.notified() => Carried::Ask,
            word = said.recv() => match word {
                Some(word) => word,
                None => break,
            },
        };
        frames::send(to, &word).await?;
        if word == Carried::End {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Poll};
    use tokio::io::{DuplexStream, ReadBuf, duplex};
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(10);
    const WINDOW: u32 = 64 << 10;
    const ANSWERS: Pulse = Pulse::Answers;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    /// How much was written, and whether nothing of it waits for room.
    struct Watched(DuplexStream, Arc<AtomicUsize>, Arc<AtomicBool>);

    impl AsyncRead for Watched {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, into)
        }
    }

    impl AsyncWrite for Watched {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let written = Pin::new(&mut self.0).poll_write(cx, bytes);
            self.2.store(matches!(written, Poll::Ready(Ok(count)) if count == bytes.len()), Ordering::Relaxed);
            if let Poll::Ready(Ok(count)) = written {
                self.1.fetch_add(count, Ordering::Relaxed);
            }
            written
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    #[test]
    fn a_reader_that_stands_still_leaves_nothing_in_the_connection() {
        run(async {
            let (near, far) = duplex(1 << 10);
            let (mut launcher, near_end) = duplex(1 << 10);
            let (mut part, far_end) = duplex(1 << 10);
            let (sent, whole) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
            let near = tokio::spawn(carry(near, near_end, WINDOW, ANSWERS));
            let far = tokio::spawn(carry(Watched(far, sent.clone(), whole.clone()), far_end, WINDOW, ANSWERS));
            let said: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
            let expected = said.clone();
            let writer = tokio::spawn(async move { part.write_all(&said).await.map(|()| part) });
            let all_taken = async {
                while sent.load(Ordering::Relaxed) < WINDOW as usize || !whole.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(SOON, all_taken).await.expect("nobody reads, and the connection stands full");
            assert!(!writer.is_finished());
            let mut heard = vec![0; expected.len()];
            timeout(SOON, launcher.read_exact(&mut heard)).await.unwrap().unwrap();
            assert!(heard == expected);
            drop(writer.await.unwrap().unwrap());
            assert_eq!(launcher.read(&mut heard).await.unwrap(), 0);
            assert!(near.await.unwrap().is_ok() && far.await.unwrap().is_ok());
        });
    }

    #[test]
    fn an_order_for_one_that_has_ended_takes_none_of_its_last_words() {
        run(async {
            let (near, far) = duplex(1 << 10);
            let (mut launcher, near_end) = duplex(1 << 20);
            let (mut part, far_end) = tokio::net::UnixStream::pair().unwrap();
            part.write_all(&vec![7; 100_000]).await.unwrap();
            drop(part);
            launcher.write_all(&[1; 10_000]).await.unwrap();
            let near = tokio::spawn(carry(near, near_end, WINDOW, ANSWERS));
            let far = tokio::spawn(carry(far, far_end, WINDOW, ANSWERS));
            let mut heard = Vec::new();
            timeout(SOON, launcher.read_to_end(&mut heard)).await.unwrap().unwrap();
            assert_eq!(heard, vec![7; 100_000]);
            assert!(near.await.unwrap().is_ok() && far.await.unwrap().is_ok());
        });
    }

    #[test]
    fn what_goes_beyond_the_window_ends_it_and_so_does_a_peer_that_is_gone() {
        run(async {
            let (near, mut far) = duplex(1 << 20);
            let (mut launcher, near_end) = duplex(1 << 10);
            let near = tokio::spawn(carry(near, near_end, WINDOW, ANSWERS));
            for _ in 0..3 {
                frames::send(&mut far, &Carried::Bytes(vec![0; 32 << 10])).await.unwrap();
            }
            let mut heard = Vec::new();
            timeout(SOON, launcher.read_to_end(&mut heard)).await.unwrap().unwrap();
            assert_eq!(heard.len(), 64 << 10, "what came in order is passed on");
            assert!(matches!(near.await.unwrap(), Err(Broken::TooMuch)));
            let (near, far) = duplex(1 << 20);
            let (mut launcher, near_end) = duplex(1 << 10);
            let near = tokio::spawn(carry(near, near_end, WINDOW, ANSWERS));
            drop(far);
            assert_eq!(timeout(SOON, launcher.read(&mut heard)).await.unwrap().unwrap(), 0);
            assert!(matches!(near.await.unwrap(), Err(Broken::Closed)));
        });
    }
}
