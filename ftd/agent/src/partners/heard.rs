//! What the other nodes say of copies, and what is heard from behind.

use super::kinds::{Errand, Use};
use super::state::{News, Partners};
use crate::arenas::Arenas;
use crate::job::Job;
use crate::ship_host;
use ft_wire::Rank;
use ft_wire::copies::CopyWord;
use ft_wire::ship::{Move, ToAgent, Window};
use ftd_core::NodeId;

impl Partners {
    /// Another node says something. `round`: there seems to be no straight way to it, so that its words come and no bytes would.
    pub fn hear(&mut self, job: &mut Job, arenas: &mut Arenas, (from, round): (NodeId, bool), word: CopyWord) {
        tracing::debug!(from = from.0, round, ?word, "heard");
        match word {
            CopyWord::Offer { copy, facts } => self.offered(job, arenas, from, (copy, facts)),
            CopyWord::Room { copy, target, address } => {
                if !(round && self.has_no_way_to(job, arenas, from, copy)) {
                    self.room(job, arenas, from, copy, (target, &address));
                }
            }
            CopyWord::Written { copy } => self.written(job, arenas, from, copy),
            CopyWord::Kept { copy } => self.kept(job, arenas, from, copy),
            CopyWord::NotKept { copy, reason, again } => self.not_kept(job, arenas, from, (copy, reason, again)),
            CopyWord::Want { copy } => self.wanted(job, arenas, from, copy),
            CopyWord::WantThrough { copy, holder } => self.wanted_through(job, arenas, from, copy, NodeId(holder)),
            CopyWord::Readable { copy, .. } if round && self.reads_otherwise(job, from, copy) => {}
            CopyWord::Readable { copy, facts, target, address } => {
                self.may_be_read(job, arenas, from, (copy, facts, target, &address));
            }
            CopyWord::NotReadable { copy, reason } => self.not_readable(job, from, copy, &reason),
            CopyWord::Read { copy } => self.was_read(job, arenas, from, copy),
        }
        self.see_to_rate();
    }

    /// Something was heard from behind.
    pub fn take(&mut self, job: &mut Job, arenas: &mut Arenas, news: News) {
        match news {
            News::Ship(ship_host::News::Said { host, message }) => {
                if self.ship.is(host) {
                    self.said(job, arenas, message);
                }
            }
            News::Ship(ship_host::News::Closed { host, reason }) => {
                if self.ship.is(host) {
                    self.ship.left(&reason);
                    self.lose_all(job, arenas, &reason);
                }
            }
            News::Checked { copy, result } => {
                self.is_checked(job, arenas, copy, result.clone());
                self.is_back(job, arenas, copy, result);
            }
            News::Look => {
                self.looking();
                self.look_at_sending(job, arenas);
                self.look_at_fetching(job);
                if !self.is_still() && !self.open {
                    self.look_soon();
                }
            }
        }
        self.see_to_rate();
    }

    fn said(&mut self, job: &mut Job, arenas: &mut Arenas, message: ToAgent) {
        match message {
            ToAgent::Ready { provider, address, not } => {
                tracing::info!(provider, not, "ft-ship is ready");
                self.ship.ready(address);
                self.tell_provider(job, &provider, not);
            }
            ToAgent::Failed { reason } => self.ship.finds_none(reason),
            ToAgent::Exposed { window, target } => self.opened(job, window, Ok(target)),
            ToAgent::NotExposed { window, reason } => self.opened(job, window, Err(reason)),
            ToAgent::Hidden { window } => self.hidden(arenas, window),
            ToAgent::Moved { id } => self.moved(job, arenas, id, Ok(())),
            ToAgent::NotMoved { id, reason } => self.moved(job, arenas, id, Err(reason)),
            ToAgent::Progress { id, bytes } => {
                if let Some(Errand::There(rank)) = self.moves.get(&id).copied() {
                    self.progress(rank, id, bytes);
                }
            }
            ToAgent::Here => {}
        }
    }

    /// Over what copies go: to who wants to know it, and to all where another provider was asked for first.
    fn tell_provider(&self, job: &mut Job, provider: &str, not: Option<String>) {
        let (node, verbose) = (self.name(job, self.me), job.spec.verbose);
        match not {
            Some(better) => job.notice_once(format!(
                "copies from and to {node} go over {provider}, for there is no {better} there, which jobs.fabric in its ftd.toml has first"
            )),
            None if verbose => job.notice_once(format!("copies from and to {node} go over {provider}")),
            None => {}
        }
    }

    fn opened(&mut self, job: &mut Job, window: Window, target: Result<ft_wire::ship::Target, String>) {
        match self.windows.get(&window).copied() {
            Some(Use::Keeping(rank)) => self.may_be_written(job, rank, window, target),
            Some(Use::Lent(node, rank)) => self.is_lent(job, (node, rank), window, target),
            Some(Use::Nothing(_)) if target.is_err() => drop(self.windows.remove(&window)),
            Some(Use::Nothing(_)) | None => {}
        }
    }

    fn hidden(&mut self, arenas: &mut Arenas, window: Window) {
        if let Some(Use::Keeping(rank)) = self.windows.remove(&window) {
            self.is_closed(arenas, rank, window);
        }
    }

    fn moved(&mut self, job: &mut Job, arenas: &mut Arenas, id: Move, result: Result<(), String>) {
        match self.moves.remove(&id) {
            Some(Errand::There(rank)) => self.has_moved(job, rank, id, result),
            Some(Errand::Back(rank, _)) => self.has_come(job, arenas, rank, (id, result)),
            None => {}
        }
    }

    /// The process is gone: what it did has failed.
    fn lose_all(&mut self, job: &mut Job, arenas: &mut Arenas, reason: &str) {
        for window in std::mem::take(&mut self.windows) {
            match window {
                (window, Use::Keeping(rank)) => self.is_closed(arenas, rank, window),
                (_, Use::Lent(node, rank)) => drop(self.lent.remove(&(node, rank))),
                (_, Use::Nothing(_)) => {}
            }
        }
        let moves: Vec<(Move, Errand)> = std::mem::take(&mut self.moves).into_iter().collect();
        for (id, errand) in moves {
            let failed = Err(format!("ft-ship is gone ({reason})"));
            match errand {
                Errand::There(rank) => self.has_moved(job, rank, id, failed),
                Errand::Back(rank, _) => self.has_come(job, arenas, rank, (id, failed)),
            }
        }
        let ranks: Vec<Rank> = self.queues.keys().copied().collect();
        tracing::debug!(?ranks, "what they had on its way is offered again");
    }
}
