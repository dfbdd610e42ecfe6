//! Steps of Slurm's: a node's first task asks for the node's part, which is started in the step's control groups. Which step it is the
//! kernel says. From then on the part and the step's front have nothing to do with this daemon but for the store.

use crate::node::Record;
use crate::parts::{self, Around};
use crate::places::{Places, Refusal, address};
use crate::{agents, home, link, scripts};
use ft_sys::peer::Peer;
use ft_wire::part::{Image, Share, Start};
use ft_wire::step::{Node, Request};
use ft_wire::{APART, is_neighbour, version};

/// The longest word of a job's name.
const WORD: usize = 32;

/// Starts the part; the job's name.
///
/// # Errors
/// One sentence.
pub async fn begin(request: Request, image: &Image, who: Peer, places: &Places) -> Result<String, Refusal> {
    let state = places.state();
    let config = state.config();
    let name = config.node().to_string();
    let refuse = |what: String| Refusal::from(format!("node {name}: {what}"));
    let Request { protocol, front, word, layout } = request;
    let apart = |whose: &str, number: u32| {
        refuse(format!("its ftd speaks protocol {}, and {whose} {number}, {APART}", version()))
    };
    if !is_neighbour(protocol) {
        return Err(apart("what srun has started there", protocol));
    }
    // The part is this daemon's, and dials the front.
    if front != 0 && !is_neighbour(front) {
        return Err(apart("the one where srun was called", front));
    }
    if word.is_empty() || word.len() > WORD || !word.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(refuse("what asks for a part of a step is none of its tasks".into()));
    }
    let (id, home, mounts) = home::of(who.pid, who.held.as_ref()).map_err(|error| refuse(error.to_string()))?;
    let job = format!("slurm-{}-{}-{word}", id.job, id.step);
    let bind = if layout.nodes > 1 { Some(address(&name, &Record::of(&config, ""))?.ip()) } else { None };
    let user = parts::name_of(who.uid).await.map_err(refuse)?;
    let share = Share { job: job.clone(), me: layout.node, slots: layout.tasks, bind };
    let (from, to, uid) = (name.clone(), name.clone(), who.uid);
    let start = Start { protocol, from, to, uid, user, window: link::window(1), share, link: 0 };
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (period, timeout) = config.heartbeat();
    let node = Node {
        step: id,
        layout,
        domain: config.label().into(),
        lease: format!("{}/nodes/{name}", config.prefix()),
        prefix: agents::keys_of(&config, &job),
        heartbeat_ms: ms(timeout),
        heartbeat_period_ms: Some(ms(period)),
        path_ms: ms(config.path_timeout()),
    };
    let around = Around { node: Box::new(node), home, mounts };
    let whose = (who.uid, start.user.clone());
    parts::start(start, image, state, Some(around)).await?;
    let (turn, env) = ((id.job, layout.node), image.env.clone());
    tokio::spawn(scripts::note(state.clone(), places.clone(), turn, whose, env));
    Ok(job)
}
