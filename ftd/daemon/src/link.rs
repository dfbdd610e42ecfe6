//! A part's link between two daemons: bytes both ways, of which never more are under way than the other end takes at once. So a reader
//! that stands still leaves nothing in TCP's buffers, and what TCP cannot deliver in its time means that the network or the node is gone.
//! TCP answers for a process that stands still: so one end asks the other one whether it is there.
//!
//! A connection that is lost, or in doubt, is no lost link where there may be [`Another`]: over that one what did not arrive is sent again.
//! Of a job's links the near ends are `ftrun`'s own ([`ft_wire::link_end`]), and [`crate::carrier`] is between.

use crate::frames::{self, Broken, Stream, within};
use crate::succession::{self, Another, Side};
use crate::watch::{Pulse, Watch};
use ft_wire::FRAME_HEADER;
use ft_wire::part::{Carried, MAX_SAID, Mark, Order, SILENT, ToPart};
use ft_wire::unpassed::Unpassed;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
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

/// How many bytes may be under way on each of so many links of a job.
pub fn window(links: usize) -> u32 {
    let (least, most) = OF_LINK;
    u32::try_from((OF_JOB / links.max(1)).clamp(least, most)).unwrap_or(u32::MAX)
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
    /// What the part is to hear in between waits to be passed on.
    tells: AtomicBool,
    watch: Watch,
}

/// What is passed on.
enum Passed {
    Bytes(Vec<u8>),
    /// The other end has asked.
    Pulse,
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
    let (words, said) = channel(1);
    let end = End { line: &line, came: &came, said: said.into() };
    let mut passing = pin!(pass(&mut to_own, to_pass, &line, words.clone()));
    let ended = {
        let own_side = async {
            read(&mut from_own, words, &line).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = succession::go(Some(peer), &end, another) => ended,
            () = own_side => Ok(()),
            // It ends with what it takes from `came`.
            () = &mut passing => Ok(()),
        }
    };
    // Nobody is told any more what is passed on.
    drop(end);
    drop(came);
    // One that reads no more while it writes is not waited for.
    let mut rest = tokio::io::sink();
    tokio::select! {
        () = passing => {}
        _ = tokio::io::copy(&mut from_own, &mut rest) => {}
    }
    ended
}

/// An end whose words are its own.
struct End<'a> {
    line: &'a Line,
    came: &'a UnboundedSender<Passed>,
    said: tokio::sync::Mutex<Receiver<Carried>>,
}

impl Side for End<'_> {
    fn watch(&self) -> &Watch {
        &self.line.watch
    }

    async fn over(&self, peer: &mut Box<dyn Stream>, begun: bool) -> Result<(), Broken> {
        let (line, came) = (self.line, self.came);
        let mut said = self.said.lock().await;
        let (mut from_peer, mut to_peer) = tokio::io::split(peer);
        let mut hearing = pin!(hear(&mut from_peer, came, line));
        let told = tokio::select! {
            heard = &mut hearing => return heard,
            told = tell(&mut to_peer, &mut said, line) => told,
            () = line.watch.silence(begun) => return Err(Broken::Silent(SILENT)),
        };
        told?;
        // Nobody is left here who would hear more; but who closes with something unread takes back what was sent last.
        let may_go_on = line.sent.is_some();
        let silent = async { if may_go_on { line.watch.silence(true).await } else { std::future::pending().await } };
        let rest = async {
            while let Some(word) = said.recv().await {
                line.notes(&word);
            }
            std::future::pending::<()>().await;
        };
        // Where the launcher itself takes the last words it may have others to read first.
        let taken = async { if may_go_on { Ok(hearing.await) } else { timeout(LINGER, &mut hearing).await } };
        tokio::select! {
            heard = taken => match heard {
                // It is not the other end that has closed it, perhaps.
                Ok(Err(lost)) if may_go_on && succession::may_go_on(self, &lost, begun) => Err(lost),
                _ => Ok(()),
            },
            () = silent => Err(Broken::Silent(SILENT)),
            () = rest => Ok(()),
        }
    }

    async fn agree(&self, peer: &mut Box<dyn Stream>) -> Result<(), Broken> {
        let line = self.line;
        let came = line.came.load(Ordering::Relaxed);
        let passed = line.sent().map_or(0, |sent| sent.taken());
        let said = within(SOON, async {
            frames::send(peer, &Mark { came, passed }).await?;
            frames::receive(peer, MAX_SAID).await
        });
        let theirs: Mark = said.await?;
        let more = line.sent().map_or(Some(0), |mut sent| sent.go_back_to(theirs));
        line.passed_on(more.ok_or(Broken::TooMuch)?);
        Ok(())
    }

    /// Who began the link says so when it ends it. It goes on only where a launcher has taken it over, which then has said something.
    fn outlives_close(&self) -> bool {
        self.line.came.load(Ordering::Relaxed) > 0
    }

    fn patience(&self, _: &Broken) -> Duration {
        SILENT
    }

    fn has_ended(&self) -> bool {
        self.line.sent().is_some_and(|sent| sent.has_ended())
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
            tells: AtomicBool::new(false),
            watch: Watch::new(pulse, A::MAY_BE),
        }
    }

    fn sent(&self) -> Option<MutexGuard<'_, Unpassed>> {
        self.sent.as_ref().map(|sent| sent.lock().unwrap_or_else(PoisonError::into_inner))
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
}

/// What comes from the other daemon, until that says that nothing more does.
async fn hear(from: &mut (impl AsyncRead + Unpin), came: &UnboundedSender<Passed>, line: &Line) -> Result<(), Broken> {
    loop {
        let word = frames::receive(from, MAX_SAID).await?;
        line.watch.hears();
        match word {
            Carried::Ask => {
                line.watch.answer.notify_one();
                if line.watch.pulse == Pulse::Tells && !line.tells.swap(true, Ordering::Relaxed) {
                    let _ = came.send(Passed::Pulse);
                }
            }
            Carried::Here => {}
            Carried::Bytes(bytes) => {
                if line.held.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > line.window {
                    return Err(Broken::TooMuch);
                }
                line.came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // Who takes it lives as long as this.
                let _ = came.send(Passed::Bytes(bytes));
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
    mut came: UnboundedReceiver<Passed>,
    line: &Line,
    words: Sender<Carried>,
) {
    let (mut listens, mut passed, mut orders, mut owed) = (true, 0, Orders::default(), false);
    let pulse = ft_wire::encode(&ToPart::Order(Order::Pulse), 0).unwrap_or_default();
    while let Some(next) = came.recv().await {
        match next {
            Passed::Pulse => {
                line.tells.store(false, Ordering::Relaxed);
                owed = true;
            }
            Passed::Bytes(bytes) => {
                listens = listens && to.write_all(&bytes).await.is_ok() && to.flush().await.is_ok();
                orders.went(&bytes);
                line.held.fetch_sub(bytes.len(), Ordering::Relaxed);
                passed += bytes.len();
            }
        }
        if owed && orders.may_come() {
            owed = false;
            listens = listens && to.write_all(&pulse).await.is_ok() && to.flush().await.is_ok();
        }
        if passed >= line.window / 4 {
            // Nobody wants to know who is gone.
            let _ = words.send(Carried::Taken(std::mem::take(&mut passed) as u32)).await;
        }
    }
}

/// Where among frames for a part one more may come: between two of them, and not before the first one, which says that it may start.
#[derive(Debug, Default)]
struct Orders {
    header: Vec<u8>,
    left: usize,
    begun: bool,
}

impl Orders {
    fn went(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let piece = if self.left > 0 { self.left } else { FRAME_HEADER - self.header.len() }.min(bytes.len());
            let (now, rest) = bytes.split_at(piece);
            bytes = rest;
            if self.left > 0 {
                self.left -= piece;
            } else {
                self.header.extend_from_slice(now);
                if let [a, b, c, d, ..] = self.header[..]
                    && self.header.len() == FRAME_HEADER
                {
                    self.left = u32::from_le_bytes([a, b, c, d]) as usize;
                    self.header.clear();
                }
            }
        }
        self.begun |= self.left == 0 && self.header.is_empty();
    }

    fn may_come(&self) -> bool {
        self.begun && self.left == 0 && self.header.is_empty()
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
            () = line.watch.answer.notified() => Carried::Here,
            () = line.watch.question.notified() => Carried::Ask,
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
    use crate::succession::OnlyOne;
    use crate::watch::Doubt;
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

    #[test]
    fn a_part_hears_between_two_frames_that_those_before_it_are_there() {
        run(async {
            let (mut near, far) = duplex(1 << 20);
            let (mut part, far_end) = duplex(1 << 20);
            let far = tokio::spawn(carry(far, far_end, WINDOW, Pulse::Tells));
            let pulse = ToPart::Order(Order::Pulse);
            let framed = |word: ToPart| ft_wire::encode(&word, 0).unwrap();
            let (go, input) = (framed(ToPart::Go { cluster: None }), framed(ToPart::Order(Order::Input(vec![7; 100]))));
            let say = async |near: &mut DuplexStream, piece: &[u8]| {
                frames::send(near, &Carried::Bytes(piece.to_vec())).await.unwrap();
            };
            let next = async |part: &mut DuplexStream| {
                timeout(SOON, frames::receive::<ToPart>(part, MAX_SAID)).await.unwrap().unwrap()
            };
            // It has not begun.
            frames::send(&mut near, &Carried::Ask).await.unwrap();
            say(&mut near, &go).await;
            assert_eq!([next(&mut part).await, next(&mut part).await], [ToPart::Go { cluster: None }, pulse.clone()]);
            frames::send(&mut near, &Carried::Ask).await.unwrap();
            assert_eq!(next(&mut part).await, pulse);
            for piece in [&input[..5], &input[5..50]] {
                say(&mut near, piece).await;
                frames::send(&mut near, &Carried::Ask).await.unwrap();
            }
            say(&mut near, &input[50..]).await;
            assert_eq!(next(&mut part).await, ToPart::Order(Order::Input(vec![7; 100])));
            assert_eq!(next(&mut part).await, pulse);
            drop((near, part));
            let _ = far.await.unwrap();
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
