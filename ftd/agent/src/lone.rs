//! The search for ranks that would be jobs of their own.

use crate::job::Job;
use crate::loners::{self, Loner, Search};
use crate::outlet::Outlet;
use crate::world::Member;
use crate::worlds::Worlds;
use ft_wire::launcher::Program;
use ft_wire::{Rank, World as WorldNumber};
use ftd_core::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::Notify;

/// What the search says.
#[derive(Debug)]
pub enum News {
    /// It is time to look whether ranks of this world are alone.
    Look(WorldNumber, Box<Search>),
    /// That was done, and perhaps one was found.
    Looked(WorldNumber, Box<Search>, Option<Loner>),
}

/// The worlds whose processes are being looked at.
#[derive(Debug)]
pub struct Lone {
    searched: BTreeMap<WorldNumber, Arc<AtomicBool>>,
    /// The agent is awake to say its heartbeats: one that has them wakes for no search of what has grown old.
    beats: Option<Arc<Notify>>,
    news: Outlet<News>,
}

impl Lone {
    /// None is. `beats`: the agent has heartbeats to say.
    pub fn new(news: Outlet<News>, beats: bool) -> Lone {
        Lone { searched: BTreeMap::new(), beats: beats.then(Arc::default), news }
    }

    /// The agent is awake, as it is now and then.
    pub fn beat(&self) {
        self.beats.iter().for_each(|beats| beats.notify_waiters());
    }

    /// Begins to look at a world's processes, unless that goes on already: who is to be looked at may be others then.
    pub fn seek(&mut self, job: &Job, worlds: &Worlds, number: WorldNumber) {
        // What was found in the program's file is so.
        let linked_in = |program: &Program| program.linked_in.is_some();
        let certain = job.spec.programs.iter().all(linked_in) && job.spec.mpi == "auto";
        if certain || worlds.running(number).is_none() {
            return;
        }
        match self.searched.get(&number) {
            Some(others) => others.store(true, Ordering::Relaxed),
            None => {
                self.searched.insert(number, Arc::default());
                self.rest(number, Search::default());
            }
        }
    }

    /// The next look comes when the last one has ended, and its rest is over; and not while it would see what the last one has seen.
    fn rest(&self, number: WorldNumber, mut search: Search) {
        let (news, beats) = (self.news.clone(), self.beats.clone());
        let others = self.searched.get(&number).cloned().unwrap_or_default();
        tokio::spawn(async move {
            let until = Instant::now() + search.anew();
            loop {
                pause(&search, beats.as_deref()).await;
                if others.swap(false, Ordering::Relaxed) || Instant::now() >= until || !search.is_still() {
                    break;
                }
            }
            news.send(News::Look(number, Box::new(search)));
        });
    }

    /// The search goes on.
    pub fn take(&mut self, job: &mut Job, worlds: &Worlds, news: News) {
        match news {
            News::Look(number, search) => self.look(job, worlds, number, *search),
            News::Looked(number, search, loner) => {
                if let Some(loner) = loner {
                    refuse(job, worlds, number, &loner);
                }
                self.rest(number, *search);
            }
        }
    }

    /// Has ranks looked at that have not joined, or whose joined process has ended and left others; when there are none, there
    /// is nothing to look for until one of these ends.
    fn look(&mut self, job: &Job, worlds: &Worlds, number: WorldNumber, mut search: Search) {
        let world = worlds.running(number);
        let waiting = world.into_iter().flat_map(|world| &world.members).filter(|(_, member)| member.may_be_alone());
        let waiting: Vec<(&Rank, &Member)> = waiting.collect();
        if waiting.is_empty() {
            self.searched.remove(&number);
            return;
        }
        let below = |(rank, member): (&Rank, &Member)| {
            let served = job.spec.program(*rank).linked_in;
            Some(loners::Below { rank: *rank, child: member.child?, joined: member.mpi_pid(), served })
        };
        let ranks: Vec<_> = waiting.into_iter().filter_map(below).collect();
        let (news, preload) = (self.news.clone(), job.spec.preload.clone());
        tokio::task::spawn_blocking(move || {
            let _behind = ft_sys::behind::Behind::begin();
            let loner = search.look(&ranks, &preload);
            news.send(News::Looked(number, Box::new(search), loner));
        });
    }
}

/// Until the next look, or until it is seen that there is nothing to look for.
async fn pause(search: &Search, beats: Option<&Notify>) {
    let rest = tokio::time::sleep;
    match beats.filter(|_| search.has_grown_old()) {
        Some(beats) => tokio::select! { () = beats.notified() => {}, () = rest(2 * search.rest()) => {} },
        None => rest(search.rest()).await,
    }
}

/// One rank alone would mean as many jobs of one as there are ranks.
fn refuse(job: &mut Job, worlds: &Worlds, number: WorldNumber, loner: &Loner) {
    let is_rank = |member: &Member| member.mpi_pid() == Some(loner.pid);
    let found = worlds.member(number, loner.rank).filter(|member| member.may_be_alone() && !is_rank(member));
    if let Some(process) = found.map(|member| member.process) {
        let reason = loner.sentence(&job.spec.mpi, &job.spec.preload);
        job.report(Event::StartFailed { process, reason, status: 1 });
    }
}
