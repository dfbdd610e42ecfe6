//! One link of a job between its launcher, which holds the link's near end, and the part's node: words both ways, over one connection after
//! the other. Nothing that must not be lost is here alone: what is under way with this process when it dies the two ends send again. As long as
//! it lives it has seen what both have said, and goes on over another connection without the launcher, which may be stopped.

use crate::frames::{self, Broken, Stream, within};
use crate::said::Said;
use crate::succession::{self, Another, Side};
use crate::watch::{Pulse, Watch};
use ft_wire::part::{Carried, FromJobs, MAX_SAID, Mark, SILENT};
use ft_wire::unpassed::Unpassed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// On another connection the two ends soon say how far they are.
const AGREE: Duration = Duration::from_secs(5);
/// Where a connection was closed so soon another one is there, or the other end is gone.
const CLOSED: Duration = Duration::from_secs(5);
/// The other end has taken the last word within this time.
const LAST: Duration = Duration::from_secs(5);
/// What a word of the launcher's takes that lies here, besides its bytes …
const WORD: usize = 64;
/// … of which there are so many times the window, for words are short where the launcher says little at a time …
const TIMES: usize = 8;
/// … and this besides, for those without bytes.
const MORE: usize = 256 << 10;
/// In so many pieces may lie here what the part has not passed on.
const PIECES: usize = 65_536;

/// What the launcher gives.
enum Given {
    Word(Carried),
    Mark(u32, Mark),
}

/// Where what the launcher says goes.
pub struct Line {
    given: UnboundedSender<Given>,
    /// What lies here takes so much.
    lies: Arc<AtomicUsize>,
    most: usize,
}

impl Given {
    fn cost(&self) -> usize {
        WORD + if let Given::Word(Carried::Bytes(bytes)) = self { bytes.len() } else { 0 }
    }
}

impl Line {
    /// The launcher says this over the link.
    ///
    /// # Errors
    /// [`Broken::TooMuch`]: more than may be under way.
    pub fn say(&self, word: Carried) -> Result<(), Broken> {
        if word == Carried::Bytes(Vec::new()) {
            return Err(Broken::TooMuch);
        }
        self.give(Given::Word(word))
    }

    /// The launcher's end is so far.
    ///
    /// # Errors
    /// As above.
    pub fn mark(&self, turn: u32, mark: Mark) -> Result<(), Broken> {
        self.give(Given::Mark(turn, mark))
    }

    fn give(&self, given: Given) -> Result<(), Broken> {
        let lies = self.lies.fetch_add(given.cost(), Ordering::Relaxed);
        // One that is lost takes nothing any more.
        let _ = self.given.send(given);
        if lies <= self.most || self.given.is_closed() { Ok(()) } else { Err(Broken::TooMuch) }
    }
}

/// See the module.
pub struct Carrier {
    node: u32,
    resumes: bool,
    to: Said,
    from: Mutex<UnboundedReceiver<Given>>,
    lies: Arc<AtomicUsize>,
    watch: Watch,
    turn: AtomicU32,
    /// Where the link is, unless only the launcher knows.
    at: std::sync::Mutex<Option<At>>,
    /// The part has said its last word.
    ended: AtomicBool,
    /// The launcher has.
    left: AtomicBool,
}

/// What has gone over a link, in bytes since its beginning.
struct At {
    /// From the part.
    came: u64,
    /// From the launcher.
    sent: Unpassed,
}

/// The carrier of a node's link, with a window of so many bytes, and where what the launcher says goes. `resumes`: another process carried it
/// until now; else so many bytes have come from the part.
pub fn carrier(node: u32, window: u32, came: Option<u64>, to: Said) -> (Carrier, Line) {
    let (given, from) = unbounded_channel();
    let lies = Arc::new(AtomicUsize::new(0));
    let line = Line { given, lies: lies.clone(), most: (window as usize).saturating_mul(TIMES).saturating_add(MORE) };
    let watch = Watch::new(Pulse::Asks, true);
    let at = came.map(|came| At { came, sent: Unpassed::default() });
    let (from, turn, resumes, at) = (Mutex::new(from), AtomicU32::new(0), at.is_none(), at.into());
    let (ended, left) = (AtomicBool::new(false), AtomicBool::new(false));
    (Carrier { node, resumes, to, from, lies, watch, turn, at, ended, left }, line)
}

impl Carrier {
    /// Carries until the part on the node of that name has said its last word, or the launcher is gone, or the part's end of the link. Without a
    /// first connection another one is looked for.
    pub async fn run(self, first: Option<Box<dyn Stream>>, mut another: impl Another, name: String) {
        if first.is_none() {
            self.watch.doubt.comes_true();
        }
        let ended = succession::go(first, &self, &mut another).await;
        // What a part has said before its end is the launcher's, and what became of the link after that is nothing to it.
        if let Err(error) = ended
            && !self.has_ended()
        {
            tracing::info!(node = name, %error, "the link to the part of a job there broke");
            let why = format!("the link to the part of the job there broke ({error}): what ran there is ended");
            let _ = self.to.say(FromJobs::Lost { node: self.node, why });
        }
    }

    fn at(&self) -> MutexGuard<'_, Option<At>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This goes to the other end.
    fn notes(&self, word: &Carried) -> Result<(), Broken> {
        match &mut *self.at() {
            Some(at) => {
                at.sent.note(word);
                if at.sent.pieces() > PIECES { Err(Broken::TooMuch) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    async fn hear(&self, from: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<(), Broken> {
        loop {
            let word = frames::receive(from, MAX_SAID).await?;
            self.watch.hears();
            match word {
                Carried::Ask => self.watch.answer.notify_one(),
                Carried::Here => {}
                word => {
                    match (&word, &mut *self.at()) {
                        (Carried::Bytes(bytes), Some(at)) => at.came += bytes.len() as u64,
                        (Carried::Taken(count), Some(at)) => at.sent.passed_on(u64::from(*count)),
                        _ => {}
                    }
                    let last = word == Carried::End;
                    self.to.say(FromJobs::Carried { node: self.node, word })?;
                    if last {
                        self.ended.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Until the launcher is gone.
    async fn say(&self, to: &mut (impl tokio::io::AsyncWrite + Unpin)) -> Result<(), Broken> {
        let mut from = self.from.lock().await;
        let again = self.at().as_mut().map(|at| at.sent.again()).unwrap_or_default();
        for word in again {
            let last = word == Carried::End;
            frames::send(to, &word).await?;
            if last {
                return Ok(to.shutdown().await?);
            }
        }
        loop {
            let word = tokio::select! {
                biased;
                () = self.watch.answer.notified() => Carried::Here,
                () = self.watch.question.notified() => Carried::Ask,
                given = from.recv() => match given {
                    Some(given) => {
                        self.lies.fetch_sub(given.cost(), Ordering::Relaxed);
                        match given {
                            Given::Word(word) => word,
                            // Of a question that nobody asks any more.
                            Given::Mark(..) => continue,
                        }
                    }
                    None => Carried::End,
                },
            };
            // Before it is sent: what becomes of it is not known before the other end says it.
            self.notes(&word)?;
            if word == Carried::End {
                self.left.store(true, Ordering::Relaxed);
            }
            frames::send(to, &word).await?;
            if word == Carried::End {
                return Ok(to.shutdown().await?);
            }
        }
    }

    /// How far this end is, as far as this process knows: else the launcher says it, and sends again what is missing.
    async fn mark(&self) -> Result<Mark, Broken> {
        if let Some(at) = &*self.at() {
            return Ok(Mark { came: at.came, passed: at.sent.taken() });
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) + 1;
        self.to.say(FromJobs::Another { node: self.node, turn })?;
        let mut from = self.from.lock().await;
        while let Some(given) = from.recv().await {
            self.lies.fetch_sub(given.cost(), Ordering::Relaxed);
            match given {
                Given::Mark(of, mark) if of == turn => return Ok(mark),
                Given::Word(Carried::End) => break,
                Given::Mark(..) | Given::Word(_) => {}
            }
        }
        // Nobody knows how far this end is, so the part does not hear of it, and ends when it hears of nobody.
        self.left.store(true, Ordering::Relaxed);
        Err(Broken::Closed)
    }
}

impl Side for Carrier {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    async fn over(&self, peer: &mut Box<dyn Stream>, _: bool) -> Result<(), Broken> {
        let (mut from, mut to) = tokio::io::split(peer);
        let mut hearing = std::pin::pin!(self.hear(&mut from));
        let mut saying = std::pin::pin!(self.say(&mut to));
        // Who is not asked owes no answer, and the part may not have heard for a while that anybody is there.
        self.watch.question.notify_one();
        let silent = async {
            // A part has said that it is ready, or the ends have agreed.
            self.watch.silence(true).await;
            Err(Broken::Silent(SILENT))
        };
        tokio::select! {
            heard = &mut hearing => {
                heard?;
                // The launcher has not taken all yet: until it has, its last words may have to be asked for again.
                saying.await
            }
            said = &mut saying => {
                said?;
                // Who closes with something unread takes back what was sent last.
                let _ = tokio::time::timeout(LAST, hearing).await;
                Ok(())
            }
            silent = silent => silent,
        }
    }

    async fn agree(&self, peer: &mut Box<dyn Stream>) -> Result<(), Broken> {
        let ours = within(AGREE, self.mark()).await?;
        let said = within(AGREE, async {
            frames::send(peer, &ours).await?;
            frames::receive(peer, MAX_SAID).await
        });
        let theirs: Mark = said.await?;
        let mut at = self.at();
        match &mut *at {
            Some(at) => {
                let more = at.sent.go_back_to(theirs).ok_or(Broken::TooMuch)?;
                // That it was said was lost with its connection.
                match u32::try_from(more).unwrap_or(u32::MAX) {
                    0 => Ok(()),
                    more => self.to.say(FromJobs::Carried { node: self.node, word: Carried::Taken(more) }),
                }
            }
            None => {
                *at = Some(At { came: ours.came, sent: Unpassed::from(theirs, ours) });
                self.to.say(FromJobs::Agreed { node: self.node, mark: theirs })
            }
        }
    }

    /// The part's end closes the first one when it ends, and not before.
    fn outlives_close(&self) -> bool {
        false
    }

    fn patience(&self, lost: &Broken) -> Duration {
        if matches!(lost, Broken::Closed) && !self.resumes { CLOSED } else { SILENT }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.left.load(Ordering::Relaxed)
    }

    fn gives_up(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::said::said;
    use crate::watch::Doubt;
    use tokio::io::{DuplexStream, duplex};
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(10);
    const WINDOW: u32 = 16 << 10;

    /// Connections that a test makes.
    struct Made(UnboundedReceiver<DuplexStream>);

    impl Another for Made {
        const MAY_BE: bool = true;

        async fn next(&mut self, doubt: &Doubt) -> Option<Box<dyn Stream>> {
            doubt.raised().await;
            self.0.recv().await.map(|stream| Box::new(stream) as Box<dyn Stream>)
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { timeout(3 * SOON, test).await.unwrap() });
    }

    async fn heard(far: &mut DuplexStream) -> Carried {
        loop {
            match timeout(SOON, frames::receive(far, MAX_SAID)).await.unwrap().unwrap() {
                Carried::Ask => frames::send(far, &Carried::Here).await.unwrap(),
                word => return word,
            }
        }
    }

    fn bytes(byte: u8) -> Carried {
        Carried::Bytes(vec![byte; 1000])
    }

    fn mark(came: u64, passed: u64) -> Mark {
        Mark { came, passed }
    }

    #[test]
    fn over_another_connection_goes_what_was_lost_with_the_one_before() {
        run(async {
            let (to, mut launcher) = said(4, WINDOW);
            let (made, connections) = unbounded_channel();
            let (carrier, line) = carrier(3, WINDOW, None, to);
            let carries = tokio::spawn(carrier.run(None, Made(connections), "node3".into()));
            let (near, mut far) = duplex(64 << 10);
            // What was said before the ends have agreed the launcher says again.
            line.say(bytes(0)).unwrap();
            made.send(near).unwrap();
            assert_eq!(launcher.next().await, Some(FromJobs::Another { node: 3, turn: 1 }));
            // The answer to another question, and what was said before this one.
            line.mark(8, mark(1, 1)).unwrap();
            line.say(bytes(1)).unwrap();
            line.mark(1, mark(7, 0)).unwrap();
            assert_eq!(frames::receive::<Mark>(&mut far, MAX_SAID).await.unwrap(), mark(7, 0));
            frames::send(&mut far, &mark(5, 2)).await.unwrap();
            assert_eq!(launcher.next().await, Some(FromJobs::Agreed { node: 3, mark: mark(5, 2) }));
            line.say(bytes(2)).unwrap();
            assert_eq!(heard(&mut far).await, bytes(2));
            frames::send(&mut far, &bytes(3)).await.unwrap();
            assert_eq!(launcher.next().await, Some(FromJobs::Carried { node: 3, word: bytes(3) }));
            // From now on this process knows how far both are.
            let (near, mut next) = duplex(64 << 10);
            drop(far);
            line.say(bytes(4)).unwrap();
            made.send(near).unwrap();
            assert_eq!(frames::receive::<Mark>(&mut next, MAX_SAID).await.unwrap(), mark(1007, 0));
            frames::send(&mut next, &mark(605, 105)).await.unwrap();
            assert_eq!(launcher.next().await, Some(FromJobs::Carried { node: 3, word: Carried::Taken(103) }));
            assert_eq!(heard(&mut next).await, Carried::Bytes(vec![2; 400]));
            assert_eq!(heard(&mut next).await, bytes(4));
            // The launcher is gone.
            drop(line);
            assert_eq!(heard(&mut next).await, Carried::End);
            drop(next);
            carries.await.unwrap();
        });
    }

    #[test]
    fn a_part_that_has_said_its_last_word_is_there_until_the_launcher_has_taken_it() {
        run(async {
            let (to, mut launcher) = said(4, WINDOW);
            let (near, mut far) = duplex(64 << 10);
            let (_made, connections) = unbounded_channel();
            let (carrier, line) = carrier(0, WINDOW, Some(7), to);
            let carries = tokio::spawn(carrier.run(Some(Box::new(near)), Made(connections), "node0".into()));
            for word in [bytes(1), Carried::End] {
                frames::send(&mut far, &word).await.unwrap();
                assert_eq!(launcher.next().await, Some(FromJobs::Carried { node: 0, word }));
            }
            assert!(timeout(Duration::from_millis(200), heard(&mut far)).await.is_err());
            line.say(Carried::End).unwrap();
            assert_eq!(heard(&mut far).await, Carried::End);
            carries.await.unwrap();
        });
    }

    #[test]
    fn a_launcher_that_says_more_than_it_may_is_stopped() {
        run(async {
            let (to, _launcher) = said(1, WINDOW);
            let (carrier, line) = carrier(0, WINDOW, Some(0), to);
            let (near, _far) = duplex(1 << 10);
            let (_made, connections) = unbounded_channel();
            let carries = tokio::spawn(carrier.run(Some(Box::new(near)), Made(connections), "node0".into()));
            assert!(line.say(Carried::Bytes(Vec::new())).is_err());
            let most = (0..10_000).take_while(|_| line.say(bytes(0)).is_ok()).count();
            assert!((16..=500).contains(&most), "{most} times 1000 bytes");
            assert!(line.mark(0, mark(0, 0)).is_err());
            carries.abort();
            let _ = carries.await;
            // What is lost takes nothing any more.
            assert!((0..10_000).all(|_| line.say(bytes(0)).is_ok()));
        });
    }
}
