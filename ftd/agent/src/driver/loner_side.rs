//! The search for ranks that would be jobs of their own.

use super::*;

impl Driver {
    /// Begins to look at a world's processes, unless that goes on already.
    pub(super) fn seek_loners(&mut self, number: WorldNumber) {
        // What was found in the program's file is so.
        let certain = self.spec.linked_in.is_some() && self.spec.mpi == "auto";
        let Some(world) = self.worlds.get_mut(&number).filter(|world| !certain && !world.stopping) else { return };
        if !std::mem::replace(&mut world.searched, true) {
            self.rest_before_loners(number, Search::default());
        }
    }

    /// The next look comes when the last one has ended, and its rest is over.
    fn rest_before_loners(&self, number: WorldNumber, search: Search) {
        let (inputs, rest) = (self.inputs.clone(), search.rest());
        tokio::spawn(async move {
            tokio::time::sleep(rest).await;
            let _ = inputs.send(Input::LookForLoners(number, Box::new(search)));
        });
    }

    /// Has ranks looked at that have not joined, or whose joined process has ended and left others; when there are none, there
    /// is nothing to look for until one of these ends.
    pub(super) fn look_for_loners(&mut self, number: WorldNumber, mut search: Search) {
        let Some(world) = self.worlds.get_mut(&number).filter(|w| !w.stopping) else { return };
        let waiting = || world.members.iter().filter(|(_, member)| member.may_be_alone());
        if waiting().next().is_none() {
            world.searched = false;
            return;
        }
        let below = |(rank, member): (&Rank, &Member)| {
            Some(crate::loners::Below { rank: *rank, child: member.child?, joined: member.mpi_pid() })
        };
        let ranks: Vec<_> = waiting().filter_map(below).collect();
        let (inputs, preload, served) = (self.inputs.clone(), self.spec.preload.clone(), self.spec.linked_in);
        tokio::task::spawn_blocking(move || {
            let _behind = ft_sys::behind::Behind::begin();
            let loner = search.look(&ranks, &preload, served);
            let _ = inputs.send(Input::LookedForLoners(number, Box::new(search), loner));
        });
    }

    pub(super) fn looked_for_loners(&mut self, number: WorldNumber, search: Search, loner: Option<Loner>) {
        if let Some(loner) = loner {
            self.refuse_loner(number, &loner);
        }
        self.rest_before_loners(number, search);
    }

    /// A process with the preload, but without the environment that says where it belongs. That is known of its shepherd.
    pub(super) fn rank_is_astray(&mut self, connection: ConnectionId, why: &str) {
        let Some(Dialler::Unknown(link, peer)) = self.diallers.get(&connection) else { return };
        let (link, pid) = (link.clone(), peer.pid);
        let above =
            |slot: &Slot| self.slots.get(slot).zip(peer.held.as_ref()).is_some_and(|(s, held)| held.is_below(*s));
        let members = self.worlds.values().filter(|world| !world.stopping).flat_map(|world| world.members.values());
        let found = members.filter(|member| !member.ended).find(|member| above(&member.slot));
        let Some(process) = found.map(|member| member.process) else {
            return link.send(&rank::ToRank::Refused { reason: "the job has ended".into() });
        };
        let reason = format!(
            "process {pid} would be a job of its own: {why}; something between ftrun and the program clears the environment"
        );
        self.report(Event::StartFailed { process, reason, status: 1 });
    }

    /// One rank alone would mean as many jobs of one as there are ranks.
    fn refuse_loner(&mut self, number: WorldNumber, loner: &Loner) {
        let is_rank = |member: &Member| member.mpi_pid() == Some(loner.pid);
        let found = self.member(number, loner.rank).filter(|member| member.may_be_alone() && !is_rank(member));
        if let Some(process) = found.map(|member| member.process) {
            let reason = loner.sentence(&self.spec.mpi, &self.spec.preload);
            self.report(Event::StartFailed { process, reason, status: 1 });
        }
    }
}
