//! A part's link between two daemons: bytes both ways, of which never more are under way than the other end takes at once. So a reader
//! that stands still leaves nothing in TCP's buffers, and what TCP cannot deliver in its time means that the network or the node is gone.
//! TCP answers for a process that stands still: so one end asks the other one whether it is there.
//!
//! A connection that is lost, or in doubt, is no lost link where there may be [`Another`]: over that one what did not arrive is sent again.

use crate::frames::{self, Broken, Stream, within};
use crate::looks::Looks;
use crate::unpassed::Unpassed;
use ft_wire::part::{Carried, MAX_SAID, Mark, PULSE, SILENT};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

/// Bytes that may be under way on all links of a job together, in each direction …
const OF_JOB: usize = 16 << 20;
/// … and on one of them.
const OF_LINK: (usize, usize) = (16 << 10, 1 << 20);
/// Sent at once.
const PIECE: usize = 64 << 10;
/// Who has said its last word waits so long for the other end to have taken it.
const LINGER: Duration = Duration::from_secs(60);
/// On another connection the two ends soon say how far they are.
const SOON: Duration = Duration::from_secs(5);
/// For another one there is at least so much time, also where a lost one was noticed late.
const LEAST: Duration = Duration::from_secs(1);
/// After one on which the two ends have not come to agree.
const PAUSE: Duration = Duration::from_millis(250);

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

/// Where another connection between the same two ends comes from.
pub trait Another {
    /// Whether there may be one at all: else nothing is kept for it.
    const MAY_BE: bool;

    /// One on which both ends have spoken, some time after there was doubt; nothing, where the other end is known to be gone.
    async fn next(&mut self, doubt: &Doubt) -> Option<Box<dyn Stream>>;
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

    /// Whether the connection is lost: nothing comes on it any more.
    pub fn has_come_true(&self) -> bool {
        self.has_come_true.load(Ordering::Relaxed)
    }

    fn comes_true(&self) {
        self.has_come_true.store(true, Ordering::Relaxed);
        self.raise();
    }

    fn withdraw(&self) {
        self.is_there.store(false, Ordering::Relaxed);
        self.has_come_true.store(false, Ordering::Relaxed);
    }
}

/// There is none: with its connection the link is lost.
pub struct OnlyOne;

impl Another for OnlyOne {
    const MAY_BE: bool = false;

    async fn next(&mut self, _: &Doubt) -> Option<Box<dyn Stream>> {
        std::future::pending().await
    }
}

/// What there is of a link besides its connection.
struct Line {
    window: usize,
    /// So much more may be under way from here.
    credit: Semaphore,
    /// So much has come and not been passed on.
    held: AtomicUsize,
    /// So much has come in all.
    came: AtomicU64,
    /// What was sent from here, if it may have to be sent again.
    sent: Option<Mutex<Unpassed>>,
    pulse: Pulse,
    /// What is to be said before all that waits.
    question: Notify,
    /// See `question`.
    answer: Notify,
    /// Something has come since it was looked.
    heard: AtomicBool,
    last: Mutex<Instant>,
    doubt: Doubt,
}

/// Carries between `peer`, another daemon that does the same, and `own`, whose words they are, until one of the two has ended. What came
/// from there before is passed on, also when what is to go there has nobody to take it any more.
///
/// # Errors
/// [`Broken`]: the other daemon is gone, or does not keep to this.
pub async fn carry<A: Another>(
    peer: Box<dyn Stream>,
    own: impl Stream,
    window: u32,
    pulse: Pulse,
    another: &mut A,
) -> Result<(), Broken> {
    let line = Line::new::<A>(window, pulse);
    let (mut from_own, mut to_own) = tokio::io::split(own);
    let (came, to_pass) = unbounded_channel();
    let (words, mut said) = channel(1);
    let mut passing = pin!(pass(&mut to_own, to_pass, &line, words.clone()));
    let ended = {
        let own_side = async {
            read(&mut from_own, words, &line).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = connections(peer, &came, &mut said, &line, another) => ended,
            () = own_side => Ok(()),
            // It ends with what it takes from `came`.
            () = &mut passing => Ok(()),
        }
    };
    // Nobody is told any more what is passed on.
    drop((came, said));
    // One that reads no more while it writes is not waited for.
    let mut rest = tokio::io::sink();
    tokio::select! {
        () = passing => {}
        _ = tokio::io::copy(&mut from_own, &mut rest) => {}
    }
    ended
}

/// One connection after the other.
async fn connections<A: Another>(
    first: Box<dyn Stream>,
    came: &UnboundedSender<Vec<u8>>,
    said: &mut Receiver<Carried>,
    line: &Line,
    another: &mut A,
) -> Result<(), Broken> {
    let (mut now, mut begun) = (Some(first), false);
    // Until when another one may come in the place of what was lost.
    let mut until = None;
    loop {
        let ended = async {
            match &mut now {
                Some(peer) => connection(peer, came, said, line, begun).await,
                None => Err(Broken::Silent(SILENT)),
            }
        };
        let mut coming = pin!(another.next(&line.doubt));
        let (next, lost) = tokio::select! {
            biased;
            next = &mut coming => (next, Broken::Closed),
            ended = ended => match ended {
                Err(lost) if A::MAY_BE && line.may_go_on(&lost, begun) => {
                    line.doubt.comes_true();
                    let until = *until.get_or_insert_with(|| Instant::now() + line.left(&lost));
                    let left = until.saturating_duration_since(Instant::now());
                    (timeout(left, coming).await.unwrap_or_default(), lost)
                }
                ended => return ended,
            },
        };
        let Some(mut next) = next else {
            // Who has said its last word has been heard, or is not waited for.
            return if line.has_ended() { Ok(()) } else { Err(lost) };
        };
        // The one before is closed when both ends know that it is needed no more: to close it says that its end is gone.
        let agreed = line.agree(&mut next).await;
        (begun, now) = (true, agreed.is_ok().then_some(next));
        match agreed {
            Ok(()) => until = None,
            Err(lost) if until.is_some_and(|until| until <= Instant::now()) => return Err(lost),
            Err(lost) => {
                tracing::debug!(%lost, "another connection of a link was lost at once");
                until.get_or_insert_with(|| Instant::now() + line.left(&lost));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// What goes over one connection, until one of the two ends has nothing more to say, or it is lost.
async fn connection(
    peer: &mut Box<dyn Stream>,
    came: &UnboundedSender<Vec<u8>>,
    said: &mut Receiver<Carried>,
    line: &Line,
    begun: bool,
) -> Result<(), Broken> {
    let (mut from_peer, mut to_peer) = tokio::io::split(peer);
    let mut hearing = pin!(hear(&mut from_peer, came, line));
    let told = tokio::select! {
        heard = &mut hearing => return heard,
        told = tell(&mut to_peer, said, line) => told,
        () = silence(line, begun) => return Err(Broken::Silent(SILENT)),
    };
    told?;
    // Nobody is left here who would hear more; but who closes with something unread takes back what was sent last.
    let silent = async { if line.sent.is_some() { silence(line, true).await } else { std::future::pending().await } };
    let rest = async {
        while let Some(word) = said.recv().await {
            line.notes(&word);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        heard = timeout(LINGER, &mut hearing) => match heard {
            // It is not the other end that has closed it, perhaps.
            Ok(Err(lost)) if line.sent.is_some() && line.may_go_on(&lost, begun) => Err(lost),
            _ => Ok(()),
        },
        () = silent => Err(Broken::Silent(SILENT)),
        () = rest => Ok(()),
    }
}

impl Line {
    fn new<A: Another>(window: u32, pulse: Pulse) -> Line {
        // A window that another end names is no reason to take more.
        let window = (window as usize).clamp(OF_LINK.0, OF_LINK.1);
        Line {
            window,
            credit: Semaphore::new(window),
            held: AtomicUsize::new(0),
            came: AtomicU64::new(0),
            sent: A::MAY_BE.then(Mutex::default),
            pulse,
            question: Notify::new(),
            answer: Notify::new(),
            heard: AtomicBool::new(false),
            last: Mutex::new(Instant::now()),
            doubt: Doubt::default(),
        }
    }

    fn sent(&self) -> Option<MutexGuard<'_, Unpassed>> {
        self.sent.as_ref().map(|sent| sent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn hears(&self) {
        self.heard.store(true, Ordering::Relaxed);
        self.doubt.withdraw();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether what became of a connection says nothing of the other end. It closes the first one when it ends, and not before; unless another
    /// one is under way.
    fn may_go_on(&self, lost: &Broken, begun: bool) -> bool {
        match lost {
            Broken::Io(_) | Broken::Silent(_) | Broken::Idle(_) => true,
            Broken::Closed => begun || self.doubt.was_there.load(Ordering::Relaxed),
            Broken::Frame(_) | Broken::Role(_) | Broken::TooMuch => false,
        }
    }

    /// How long another connection is waited for.
    fn left(&self, lost: &Broken) -> Duration {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if matches!(lost, Broken::Closed) { SOON } else { SILENT };
        SILENT.saturating_sub(last.elapsed()).clamp(LEAST, most)
    }

    fn has_ended(&self) -> bool {
        self.sent().is_some_and(|sent| sent.has_ended())
    }

    fn notes(&self, word: &Carried) {
        if let Some(mut sent) = self.sent() {
            sent.note(word);
        }
    }

    /// The other end has passed on so much more.
    fn passed_on(&self, bytes: u64) {
        let most = self.window.saturating_sub(self.credit.available_permits());
        self.credit.add_permits(usize::try_from(bytes).unwrap_or(most).min(most));
    }

    /// The two ends say how far they are: the rest is sent again.
    async fn agree(&self, peer: &mut Box<dyn Stream>) -> Result<(), Broken> {
        let came = self.came.load(Ordering::Relaxed);
        let passed = self.sent().map_or(0, |sent| sent.taken());
        let said = within(SOON, async {
            frames::send(peer, &Mark { came, passed }).await?;
            frames::receive(peer, MAX_SAID).await
        });
        let theirs: Mark = said.await?;
        let more = self.sent().map_or(Some(0), |mut sent| sent.go_back_to(theirs));
        self.passed_on(more.ok_or(Broken::TooMuch)?);
        self.hears();
        tracing::info!("the link of a job's part goes on over another connection");
        Ok(())
    }
}

/// What comes from the other daemon, until that says that nothing more does.
async fn hear(from: &mut (impl AsyncRead + Unpin), came: &UnboundedSender<Vec<u8>>, line: &Line) -> Result<(), Broken> {
    loop {
        let word = frames::receive(from, MAX_SAID).await?;
        line.hears();
        match word {
            Carried::Ask => line.answer.notify_one(),
            Carried::Here => {}
            Carried::Bytes(bytes) => {
                if line.held.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > line.window {
                    return Err(Broken::TooMuch);
                }
                line.came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // Who takes it lives as long as this.
                let _ = came.send(bytes);
            }
            Carried::Taken(count) => {
                if let Some(mut sent) = line.sent() {
                    sent.passed_on(u64::from(count));
                }
                line.passed_on(u64::from(count));
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
    line: &Line,
    words: Sender<Carried>,
) {
    let (mut listens, mut passed) = (true, 0);
    while let Some(bytes) = came.recv().await {
        listens = listens && to.write_all(&bytes).await.is_ok() && to.flush().await.is_ok();
        line.held.fetch_sub(bytes.len(), Ordering::Relaxed);
        passed += bytes.len();
        if passed >= line.window / 4 {
            // Nobody wants to know who is gone.
            let _ = words.send(Carried::Taken(std::mem::take(&mut passed) as u32)).await;
        }
    }
}

/// What is said here, as far as it may be under way.
async fn read(from: &mut (impl AsyncRead + Unpin), words: Sender<Carried>, line: &Line) {
    let mut bytes = vec![0; PIECE.min(line.window / 4)];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let Ok(room) = line.credit.acquire_many(count as u32).await else { return };
        room.forget();
        if words.send(Carried::Bytes(bytes[..count].to_vec())).await.is_err() {
            return;
        }
    }
    let _ = words.send(Carried::End).await;
}

/// Until one that is asked has not answered for too long. What starts the part there is not to be taken for that: the first word counts,
/// unless it was heard before.
async fn silence(line: &Line, begun: bool) {
    if line.pulse == Pulse::Answers {
        return std::future::pending().await;
    }
    // Who may do something about it wants to know sooner.
    let often = if line.sent.is_some() { PULSE / 2 } else { PULSE };
    let mut looks = Looks::new(Instant::now(), often, begun);
    loop {
        tokio::time::sleep(often).await;
        // Where this process stood still itself, what has come meanwhile is heard first.
        tokio::task::yield_now().await;
        if looks.look(Instant::now(), line.heard.swap(false, Ordering::Relaxed)) {
            return;
        }
        if looks.begun() {
            line.question.notify_one();
        }
        if looks.in_vain() > 0 {
            line.doubt.raise();
        }
    }
}

/// Sends all that is to be said to the other daemon; at first what was sent before and did not arrive.
async fn tell(to: &mut (impl AsyncWrite + Unpin), said: &mut Receiver<Carried>, line: &Line) -> Result<(), Broken> {
    let again = line.sent().map(|mut sent| sent.again()).unwrap_or_default();
    for word in again {
        let last = word == Carried::End;
        frames::send(to, &word).await?;
        if last {
            return Ok(());
        }
    }
    loop {
        let word = tokio::select! {
            biased;
            () = line.answer.notified() => Carried::Here,
            () = line.question.notified() => Carried::Ask,
            word = said.recv() => match word {
                Some(word) => word,
                None => break,
            },
        };
        // Before it is sent: what becomes of it is not known before the other end says it.
        line.notes(&word);
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

    async fn carry(peer: impl Stream + 'static, own: impl Stream, window: u32, pulse: Pulse) -> Result<(), Broken> {
        super::carry(Box::new(peer), own, window, pulse, &mut OnlyOne).await
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

    /// Connections that a test makes; the first one at once.
    struct Made(UnboundedReceiver<DuplexStream>);

    impl Another for Made {
        const MAY_BE: bool = true;

        async fn next(&mut self, _: &Doubt) -> Option<Box<dyn Stream>> {
            match self.0.recv().await {
                Some(stream) => Some(Box::new(stream)),
                None => std::future::pending().await,
            }
        }
    }

    /// Another connection between the two, of which one of them knows a while before the other.
    async fn connect([first, second]: [&UnboundedSender<DuplexStream>; 2]) {
        let (one, other) = duplex(4 << 10);
        first.send(one).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        second.send(other).unwrap();
    }

    #[test]
    fn what_was_under_way_on_lost_connections_arrives_once() {
        run(async {
            let ((near_to, near_made), (far_to, far_made)) = (unbounded_channel(), unbounded_channel());
            let (first_near, first_far) = duplex(4 << 10);
            let ((mut launcher, near_end), (mut part, far_end)) = (duplex(1 << 10), duplex(1 << 10));
            let over = |first: DuplexStream, own: DuplexStream, made, pulse| {
                tokio::spawn(async move { super::carry(Box::new(first), own, WINDOW, pulse, &mut Made(made)).await })
            };
            let near = over(first_near, near_end, near_made, Pulse::Asks);
            let far = over(first_far, far_end, far_made, ANSWERS);
            let said = |salt: u32| (0..700_000u32).map(move |n| (n * 7 + salt) as u8).collect::<Vec<u8>>();
            let (orders, words) = (said(1), said(2));
            let there = tokio::spawn(async move {
                let mut heard = Vec::new();
                let (mut from, mut to) = tokio::io::split(&mut part);
                let taken = async {
                    heard.resize(700_000, 0);
                    from.read_exact(&mut heard).await.unwrap();
                };
                let told = async { to.write_all(&words).await.unwrap() };
                tokio::join!(taken, told);
                heard
            });
            let here = async {
                let mut heard = Vec::new();
                let (mut from, mut to) = tokio::io::split(&mut launcher);
                let taken = async {
                    // Whatever is under way on the one before is lost with it.
                    for turn in 0..70 {
                        let mut piece = vec![0; 10_000];
                        from.read_exact(&mut piece).await.unwrap();
                        heard.extend(piece);
                        match turn % 18 {
                            4 => connect([&far_to, &near_to]).await,
                            13 => connect([&near_to, &far_to]).await,
                            _ => {}
                        }
                    }
                };
                let told = async { to.write_all(&orders).await.unwrap() };
                tokio::join!(taken, told);
                heard
            };
            let heard = timeout(6 * SOON, here).await.unwrap();
            assert!(heard == said(2));
            assert!(timeout(SOON, there).await.unwrap().unwrap() == said(1), "the part has ended with its last word");
            // Its end is heard on whichever connection.
            assert_eq!(timeout(SOON, launcher.read(&mut [0])).await.unwrap().unwrap(), 0);
            let ended = (near.await.unwrap(), far.await.unwrap());
            assert!(matches!(ended, (Ok(()), Ok(()))), "{ended:?}");
        });
    }
}
