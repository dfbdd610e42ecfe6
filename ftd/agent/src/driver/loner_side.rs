//! The search for ranks that would be jobs of their own.

use super::*;

impl Driver {
    /// The next look comes when the last one has ended, and its rest is over.
    pub(super) fn rest_before_loners(&self, number: WorldNumber, search: Search) {
        let Some(world) = self.worlds.get(&number) else { return };
        let (inputs, rest) = (self.inputs.clone(), search.rest(world.since.elapsed()));
        tokio::spawn(async move {
            tokio::time::sleep(rest).await;
            let _ = inputs.send(Input::LookForLoners(number, search));
        });
    }

    /// Has ranks looked at that have not joined; when all have, there is nothing to look for any more.
    pub(super) fn look_for_loners(&mut self, number: WorldNumber, mut search: Search) {
        let Some(world) = self.worlds.get(&number).filter(|w| !w.stopping) else { return };
        let waits = |member: &Member| member.pid.is_none() && !member.served && !member.ended;
        let waiting = || world.members.iter().filter(|(_, member)| waits(member));
        let certain = self.spec.linked_in.is_some() && self.spec.mpi == "auto";
        if certain || waiting().next().is_none() {
            return;
        }
        let ranks: Vec<(Rank, i32)> = waiting().filter_map(|(rank, member)| Some((*rank, member.child?))).collect();
        let (age, inputs) = (world.since.elapsed(), self.inputs.clone());
        let (preload, served) = (self.spec.preload.clone(), self.spec.linked_in);
        tokio::task::spawn_blocking(move || {
            let _behind = ft_sys::behind::Behind::begin();
            let loner = search.look(&ranks, age, &preload, served);
            let _ = inputs.send(Input::LookedForLoners(number, search, loner));
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
        let Some(member) = self.member(number, loner.rank).filter(|m| m.pid.is_none()) else { return };
        let process = member.process;
        let why = match loner.other {
            Some(family) => {
                format!("; that is {}, and --ft-mpi={} is wrong", crate::loners::name(family), self.spec.mpi)
            }
            None => "; something between ftrun and the program takes LD_PRELOAD away".to_string(),
        };
        let reason = format!(
            "process {} has loaded {} without ftd's libft_preload.so and would be a job of its own{why}",
            loner.pid, loner.library
        );
        self.report(Event::StartFailed { process, reason, status: 1 });
    }
}
