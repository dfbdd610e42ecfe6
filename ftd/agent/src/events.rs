//! What has happened in the job, for those who ask: some of it is remembered, and all is told to who follows it.

use crate::link::{ConnectionId, Link};
use ft_wire::ask::{Event, FromAgent, Kind};
use ft_wire::history::History;
use ft_wire::launcher::ToLauncher;
use ft_wire::{Epoch, Version, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::AbortHandle;

/// All of it.
#[derive(Debug, Default)]
pub struct Events(RefCell<Known>);

#[derive(Debug, Default)]
struct Known {
    epoch: Epoch,
    world: World,
    past: History,
    /// It remembers them for the agent that would come after this one.
    launcher: Option<Link>,
    followers: BTreeMap<ConnectionId, Link>,
    /// Who asks other nodes for them.
    asking: BTreeMap<ConnectionId, AbortHandle>,
}

impl Events {
    /// None but those of the agents before this one.
    pub fn after(past: History, launcher: Link) -> Events {
        Events(RefCell::new(Known { past, launcher: Some(launcher), ..Known::default() }))
    }

    /// What happens from now on happens in this epoch.
    pub fn begin(&self, epoch: Epoch, world: World) {
        let mut known = self.0.borrow_mut();
        (known.epoch, known.world) = (epoch, world);
    }

    /// Something has happened.
    pub fn happened(&self, kind: Kind, text: &str) {
        self.add(kind, text, None, None);
    }

    /// A version is complete: that happens too often to be remembered.
    pub fn completed(&self, version: Version) {
        self.add(Kind::Complete, "", Some(version), None);
    }

    /// The job is over here.
    pub fn ended(&self, status: i32, reason: &str) {
        self.add(Kind::Ended, reason, None, Some(status));
    }

    fn add(&self, kind: Kind, text: &str, version: Option<Version>, status: Option<i32>) {
        let mut known = self.0.borrow_mut();
        let remembered = kind != Kind::Complete;
        if !remembered && known.followers.is_empty() {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let (epoch, world, text) = (known.epoch, known.world, text.trim_end().to_string());
        let event = Event { at_ms, epoch, world, kind, text, version, status };
        known.followers.values().for_each(|link| link.send(&FromAgent::Event(event.clone())));
        if remembered {
            known.launcher.iter().for_each(|launcher| launcher.send(&ToLauncher::Happened(event.clone())));
            known.past.add(event);
        }
    }

    /// Tells somebody what is remembered; what comes then as well, who wants to `follow`. That this is all others say.
    pub fn tell(&self, connection: ConnectionId, link: &Link, follow: bool) {
        let mut known = self.0.borrow_mut();
        known.past.iter().for_each(|event| link.send(&FromAgent::Event(event.clone())));
        if follow {
            known.followers.insert(connection, link.clone());
        }
    }

    /// For somebody this asks other nodes, as long as he is there.
    pub fn asks(&self, connection: ConnectionId, asking: AbortHandle) {
        // Who asks once more is told by one.
        self.0.borrow_mut().asking.insert(connection, asking).into_iter().for_each(|before| before.abort());
    }

    /// What is remembered and not seen by other nodes, from that number on, and the next number.
    pub fn own(&self, from: u64) -> (Vec<Event>, u64) {
        let known = self.0.borrow();
        let next = known.past.next();
        // Whoever was told more by another agent of this node begins again.
        let from = if from > next { 0 } else { from };
        let own =
            |event: &&Event| matches!(event.kind, Kind::Notice | Kind::Injected | Kind::Recovered | Kind::Interrupted);
        (known.past.since(from).filter(own).cloned().collect(), next)
    }

    /// A connection has ended.
    pub fn forget(&self, connection: ConnectionId) {
        let mut known = self.0.borrow_mut();
        known.followers.remove(&connection);
        known.asking.remove(&connection).into_iter().for_each(|asking| asking.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Incoming;
    use ft_wire::history::MOST;
    use ft_wire::{FrameBuffer, PREAMBLE_LEN, Preamble, Role};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn told<M: serde::de::DeserializeOwned>(mut from: UnixStream) -> Vec<M> {
        let (mut bytes, mut frames, mut told) = (Vec::new(), FrameBuffer::default(), Vec::new());
        from.read_to_end(&mut bytes).unwrap();
        frames.push(&bytes[PREAMBLE_LEN..]);
        while let Some((body, _)) = frames.next_frame().unwrap() {
            told.push(ft_wire::decode(&body).unwrap());
        }
        told
    }

    #[tokio::test]
    async fn what_was_before_this_agent_is_told_and_the_launcher_remembers_the_rest() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&Preamble::ours(Role::Launcher).to_bytes()).unwrap();
        let (_, launcher, _incoming) = Incoming::open(ours).await.unwrap();
        let first = Events::after(History::default(), launcher.clone());
        first.happened(Kind::Released, "");
        first.completed(7);
        let past = first.0.borrow().past.clone();
        let second = Events::after(past, launcher.clone());
        second.happened(Kind::Notice, "later");
        assert_eq!(
            second.own(0),
            (vec![second.0.borrow().past.iter().last().unwrap().clone()], 2),
            "the numbers go on"
        );
        launcher.written().await;
        drop((first, second, launcher));
        let told: Vec<ToLauncher> = tokio::task::spawn_blocking(|| told(theirs)).await.unwrap();
        let kinds = told.iter().map(|message| match message {
            ToLauncher::Happened(event) => event.kind,
            other => panic!("{other:?}"),
        });
        assert_eq!(kinds.collect::<Vec<_>>(), [Kind::Released, Kind::Notice], "versions are not remembered");
    }

    #[tokio::test]
    async fn the_newest_are_remembered_and_versions_are_for_those_who_follow() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&Preamble::ours(Role::Asker).to_bytes()).unwrap();
        let (_, link, _incoming) = Incoming::open(ours).await.unwrap();
        let events = Events::default();
        events.begin(3, 2);
        events.completed(1);
        (0..MOST + 1).for_each(|n| events.happened(Kind::Notice, &format!("{n}")));
        events.tell(1, &link, true);
        events.completed(7);
        events.forget(1);
        events.completed(8);
        link.written().await;
        drop((link, events));
        let told: Vec<FromAgent> = tokio::task::spawn_blocking(|| told(theirs)).await.unwrap();
        assert_eq!(told.len(), MOST + 1);
        let FromAgent::Event(first) = &told[0] else { panic!("{told:?}") };
        assert_eq!((first.text.as_str(), first.epoch, first.world), ("1", 3, 2));
        assert!(matches!(&told[MOST], FromAgent::Event(event) if event.version == Some(7)), "{told:?}");
    }

    #[test]
    fn other_nodes_are_told_what_they_do_not_see_from_a_number_on() {
        let events = Events::default();
        events.happened(Kind::Released, "");
        (0..MOST).for_each(|n| events.happened(Kind::Notice, &format!("{n}")));
        let (own, next) = events.own(0);
        assert_eq!((own.len(), own[0].text.as_str(), next), (MOST, "0", MOST as u64 + 1));
        events.happened(Kind::Failed, "seen by all");
        events.happened(Kind::Injected, "here");
        events.happened(Kind::Recovered, "told here, for all");
        let (own, next) = events.own(next);
        let texts: Vec<&str> = own.iter().map(|event| event.text.as_str()).collect();
        assert_eq!((texts, next), (vec!["here", "told here, for all"], MOST as u64 + 4));
        assert_eq!(events.own(next).0, []);
        assert_eq!(events.own(next + 1).0.len(), MOST - 1, "another agent had told more");
    }
}
