//! A job whose launcher is served by this process: what the launcher says goes to its links, what comes over them to it, and nodes that are
//! lost are looked for. The launcher holds the links' ends and knows all of the job; when this process dies it goes on with another one.

use crate::carrier::{Line, carrier};
use crate::comebacks::{Comebacks, Found};
use crate::config::Config;
use crate::frames::{self, Broken, Stream};
use crate::kept::{Kept, Link};
use crate::resume::Dials;
use crate::said::{Said, ToLauncher, said};
use ft_wire::part::{FromJobs, MAX_SAID, MOST_NODES, SILENT, ToJobs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::ReadHalf;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;

/// What a launcher says is taken as fast as it can be passed on: so many words lie between.
const LIE: usize = 16;
/// So many links are dialled at a time.
const AT_A_TIME: usize = 64;
/// The launcher is gone: the parts hear that within this time.
const LAST: Duration = Duration::from_secs(6);
/// Whether a launcher whose connection is closed is gone, or served by another process, is looked at for so long, as parts wait …
const KNOWN: Duration = SILENT;
/// … one that cannot be seen has another one soon …
const UNSEEN: Duration = Duration::from_secs(2);
/// … and so often.
const LOOKS: Duration = Duration::from_millis(10);

/// See the module.
pub struct Served {
    config: Arc<Config>,
    kept: Kept,
    comebacks: Option<Comebacks>,
    /// By number of the node. None: nothing goes there any more.
    lines: Vec<Option<Line>>,
    carriers: JoinSet<()>,
    said: Said,
    /// For links that are dialled at a time.
    room: Arc<Semaphore>,
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    GoesOn,
    /// Another process serves the launcher.
    Left,
    /// It wants nothing any more.
    Ends,
    /// Its connection is closed.
    Closed,
}

impl Served {
    /// A job of which this is kept.
    pub fn new(config: Arc<Config>, kept: Kept, comebacks: Option<Comebacks>) -> (Served, ToLauncher) {
        let (said, to_launcher) = said(kept.links.len(), kept.any.window);
        let (lines, carriers) = (Vec::new(), JoinSet::new());
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        (Served { config, kept, comebacks, lines, carriers, said, room }, to_launcher)
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.kept.any.share.job
    }

    /// The link to the part on the next node, over that connection, on which so many bytes have come, or, where there is none, over another one.
    pub fn carry(&mut self, first: Option<(Box<dyn Stream>, u64)>) {
        let node = self.lines.len();
        let (Some(Link { number, way }), Some(host)) = (self.kept.links.get(node), self.kept.hosts.get(node)) else {
            return;
        };
        let name = host.name.clone();
        let (way, config, room) = (way.clone(), self.config.clone(), self.room.clone());
        let dials = Dials { link: *number, node: name.clone(), way, config, room };
        let (stream, came) = first.unzip();
        let (carrier, line) = carrier(node as u32, self.kept.any.window, came, self.said.clone());
        self.lines.push(Some(line));
        self.carriers.spawn(carrier.run(stream, dials, name));
    }

    /// The part on the next node has ended.
    pub fn skip(&mut self) {
        self.lines.push(None);
    }

    /// A node's part is lost. Its link is not carried any more: nobody has more parts looked for than are lost.
    fn loses(&mut self, node: u32) {
        if self.lines.get_mut(node as usize).and_then(Option::take).is_some() {
            self.look_for(node);
        }
    }

    /// A node is looked for.
    pub fn look_for(&mut self, node: u32) {
        if let (Some(comebacks), Some(host)) = (&mut self.comebacks, self.kept.hosts.get(node as usize)) {
            comebacks.look_for(host.clone());
        }
    }

    /// Until the launcher is gone, or has nothing more to hear. The parts' links end with this, unless another process carries them.
    pub async fn run(mut self, stream: UnixStream, to_launcher: ToLauncher) {
        let (from, to) = tokio::io::split(stream);
        let (heard, mut words) = channel(LIE);
        let mut sides = JoinSet::new();
        sides.spawn(listen(from, heard));
        sides.spawn(to_launcher.tell(to));
        let next = loop {
            let next = tokio::select! {
                word = words.recv() => word.map_or(Next::Closed, |word| self.hear(word)),
                found = next_found(&mut self.comebacks) => {
                    self.take_in(found);
                    Next::GoesOn
                }
            };
            if next != Next::GoesOn {
                break next;
            }
        };
        sides.shutdown().await;
        let ends = match next {
            Next::Closed => self.launcher_is_gone().await,
            Next::Ends => self.kept.is_own(&self.config),
            Next::Left | Next::GoesOn => false,
        };
        if !ends {
            return self.carriers.shutdown().await;
        }
        self.kept.remove(&self.config);
        self.lines.clear();
        let all = async { while self.carriers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST, all).await;
    }

    /// Whether a launcher that has closed its connection has ended. One that lives has another process that serves it, or will: this one, which
    /// may have stood still, ends nothing, and neither do parts that are soon spoken to.
    async fn launcher_is_gone(&self) -> bool {
        let began = Instant::now();
        while self.kept.is_own(&self.config) {
            match self.kept.launcher_is_gone() {
                Some(true) => return true,
                Some(false) if began.elapsed() >= KNOWN => return false,
                None if began.elapsed() >= UNSEEN => return true,
                Some(false) | None => tokio::time::sleep(LOOKS).await,
            }
        }
        false
    }

    /// The launcher says something over a node's link. What is too much ends that.
    fn over(&mut self, node: u32, say: impl FnOnce(&Line) -> Result<(), Broken>) {
        let Some(Some(line)) = self.lines.get(node as usize) else { return };
        if let Err(error) = say(line) {
            tracing::warn!(job = self.job(), node, "the link to a part is not carried any more: {error}");
            self.lines[node as usize] = None;
            let why = format!("the link to the part of the job there broke ({error}): what ran there is ended");
            let _ = self.said.say(FromJobs::Lost { node, why });
        }
    }

    fn hear(&mut self, word: ToJobs) -> Next {
        match word {
            ToJobs::Carry { node, word } => self.over(node, |line| line.say(word)),
            ToJobs::Mark { node, turn, mark } => self.over(node, |line| line.mark(turn, mark)),
            ToJobs::Lost(node) => self.loses(node),
            ToJobs::Ends => self.comebacks.iter_mut().for_each(Comebacks::end),
            ToJobs::Ask => self.said.here(),
            ToJobs::Leave => return Next::Left,
            ToJobs::Launch(_)
            | ToJobs::Resume(_)
            | ToJobs::Step(_)
            | ToJobs::Node(_)
            | ToJobs::Jobs
            | ToJobs::Agent(_) => return Next::Ends,
        }
        Next::GoesOn
    }

    /// A node comes in: the launcher tells all others before it tells this one that it may start.
    fn take_in(&mut self, found: Found) {
        let Found { host, part, mut node } = found;
        let Some(cluster) = self.kept.cluster.as_mut().filter(|cluster| cluster.nodes.len() < MOST_NODES) else {
            return;
        };
        let me = cluster.nodes.len() as u32;
        node.first_slot = cluster.late_slot(me);
        cluster.nodes.push(node.clone());
        let name = host.name.clone();
        self.kept.hosts.push(host);
        self.kept.links.push(Link { number: part.link, way: part.way });
        // One that has stood still may not know yet that another one serves the launcher.
        if self.kept.is_own(&self.config) {
            note(&self.kept, &self.config);
        }
        // Before anything that comes over its link.
        let _ = self.said.say(FromJobs::Joined { node: me, name, came: part.came, of: Some(Box::new(node)) });
        self.carry(Some((part.stream, part.came)));
    }
}

/// Writes down what the next process needs. Without it the job runs on, as long as this one does.
pub fn note(kept: &Kept, config: &Config) {
    if let Err(error) = kept.write(config) {
        let job = &kept.any.share.job;
        let beside = config.socket();
        tracing::warn!(job, beside = %beside.display(), %error, "what is kept of a job cannot be written there: it ends with this process");
    }
}

async fn next_found(comebacks: &mut Option<Comebacks>) -> Found {
    match comebacks {
        Some(comebacks) => comebacks.next().await,
        None => std::future::pending().await,
    }
}

async fn listen(mut from: ReadHalf<UnixStream>, heard: Sender<ToJobs>) {
    while let Ok(word) = frames::receive(&mut from, MAX_SAID).await {
        if heard.send(word).await.is_err() {
            return;
        }
    }
}
