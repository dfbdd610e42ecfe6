//! What every room needs to know: what the job is, and whom to tell of what happens in it.

use crate::binding::Binding;
use crate::events::Events;
use crate::link::Link;
use crate::names::Names;
use crate::slurm::Slurm;
use crate::wish::Wish;
use ft_sys::job_time;
use ft_wire::ask::Kind;
use ft_wire::cluster::ClusterNode;
use ft_wire::history::History;
use ft_wire::launcher::{JobSpec, ToLauncher};
use ft_wire::toll::Toll;
use ft_wire::{Epoch, Rank, World};
use ftd_core::{Event, Micros, Standing};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The job, as the launcher described it.
#[derive(Debug)]
pub struct Job {
    /// The description.
    pub spec: JobSpec,
    /// It is over: its processes are being killed.
    pub over: bool,
    /// It is so because ftd has refused what runs.
    pub refused: bool,
    /// The ranks were told to end by a signal of the user's.
    pub told: bool,
    /// To what its ranks are bound here.
    pub binding: Option<Binding>,
    /// The step that it is.
    pub slurm: Option<Slurm>,
    /// What has happened in it.
    pub events: Events,
    launcher: Link,
    names: Names,
    uses_mpi: bool,
    reports: VecDeque<Event>,
    wishes: VecDeque<(World, Wish)>,
    /// What was said and is not said again, by no agent of this node.
    said: BTreeSet<String>,
    processors: usize,
}

/// Time that ftd-core reckons in.
#[derive(Debug, Clone, Copy)]
pub enum Time {
    /// On one machine: the job's, which stands still when the user has stopped the job. It begins as the other one says.
    Job(Instant, Micros),
    /// On several: it goes on whatever sleeps or is stopped here. Other nodes' watches, and this one's lease, do so as well.
    World,
}

impl Time {
    /// That of a job on so many nodes.
    pub fn of(nodes: usize) -> Time {
        if nodes > 1 { Time::World } else { Time::Job(job_time::now(), since_boot()) }
    }

    /// The time now.
    pub fn now(self) -> Micros {
        match self {
            Time::Job(begun, at) => at.after(Micros(job_time::now().duration_since(begun).as_micros() as u64)),
            Time::World => since_boot(),
        }
    }

    /// How long until then.
    pub fn until(self, at: Micros) -> Duration {
        let left = Duration::from_micros(at.0.saturating_sub(self.now().0));
        match self {
            Time::Job(..) => job_time::unhurried(left),
            Time::World => left,
        }
    }
}

fn ranks_here(spec: &JobSpec) -> u32 {
    match &spec.cluster {
        None => spec.world_size,
        Some(cluster) => cluster.own().map_or(0, |node| node.slots.min(spec.world_size)),
    }
}

fn since_boot() -> Micros {
    Micros(ft_sys::process::micros_since_boot())
}

impl Job {
    /// `launcher`: who described it.
    ///
    /// What has happened, and was said once, before this agent was there comes from the launcher.
    pub fn new(spec: JobSpec, launcher: Link, (past, said): (History, BTreeSet<String>)) -> Job {
        let processors = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        let ranks = ranks_here(&spec);
        Job {
            names: Names::of(spec.cluster.as_ref(), spec.node.as_deref()),
            binding: Binding::of(&spec, ranks),
            slurm: Slurm::of(&spec),
            spec,
            over: false,
            refused: false,
            told: false,
            events: Events::after(past, launcher.clone()),
            launcher,
            uses_mpi: false,
            reports: VecDeque::new(),
            wishes: VecDeque::new(),
            said,
            processors,
        }
    }

    /// ftd-core hears of this when what happens now has been noted everywhere.
    pub fn report(&mut self, event: Event) {
        self.reports.push_back(event);
    }

    /// The next event that ftd-core has not heard of.
    pub fn next_event(&mut self) -> Option<Event> {
        self.reports.pop_front()
    }

    /// Other nodes are to be told or asked this, about a world that has ranks there.
    pub fn wish(&mut self, world: World, wish: Wish) {
        self.wishes.push_back((world, wish));
    }

    /// The next wish that nobody has seen to.
    pub fn next_wish(&mut self) -> Option<(World, Wish)> {
        self.wishes.pop_front()
    }

    /// The ranks that may have been here before this agent.
    pub fn all_ranks_here(&self) -> Vec<Rank> {
        let first = self.spec.cluster.as_ref().and_then(|cluster| cluster.own()).map_or(0, |node| node.first_slot);
        (first..self.spec.world_size.min(first + self.ranks_here())).collect()
    }

    /// How many ranks this node has when the job begins.
    fn ranks_here(&self) -> u32 {
        ranks_here(&self.spec)
    }

    /// A node comes into the job, behind those that there are.
    pub fn add(&mut self, node: ClusterNode) {
        self.names.add(node.name.clone());
        self.spec.cluster.iter_mut().for_each(|cluster| cluster.nodes.push(node.clone()));
    }

    /// Tells the launcher.
    pub fn tell(&self, message: &ToLauncher) {
        self.launcher.send(message);
    }

    /// Tells people.
    pub fn notice(&self, text: String) {
        let text = self.said(&text);
        self.events.happened(Kind::Notice, &text);
        self.tell(&ToLauncher::Notice(text));
    }

    /// Tells people of a failure that somebody has asked for.
    pub fn injected(&self, text: &str) {
        self.events.happened(Kind::Injected, text);
        self.tell(&ToLauncher::Notice(text.into()));
    }

    /// A sentence with the nodes' names in the place of their numbers.
    pub fn said(&self, text: &str) -> String {
        self.names.said(text)
    }

    /// Tells people how a recovery went, and the launcher what failures have cost with it. `over`: the ranks compute.
    pub fn recovered(&self, epoch: Epoch, over: bool, block: &str, toll: Box<Toll>) {
        let block = self.said(block);
        self.events.happened(if over { Kind::Recovered } else { Kind::Interrupted }, &block);
        self.tell(&ToLauncher::Recovered { epoch, block, toll });
    }

    /// The job is over here.
    pub fn ended(&self, status: i32, reason: Option<String>, standing: Standing) {
        let reason = reason.map(|reason| self.said(&reason));
        self.events.ended(status, reason.as_deref().unwrap_or(""));
        // To a launcher that knows nothing of the latter it is the former.
        let (left_out, unrecorded) = (standing != Standing::Agreed, standing == Standing::Unrecorded);
        self.tell(&ToLauncher::End { status, reason, left_out, unrecorded });
    }

    /// The same, unless it was said before.
    pub fn notice_once(&mut self, text: String) {
        let text = self.said(&text);
        if self.said.insert(text.clone()) {
            self.events.happened(Kind::Notice, &text);
            self.tell(&ToLauncher::NoticeOnce(text));
        }
    }

    /// The program uses MPI: an agent that takes this one's place is to know it.
    pub fn uses_mpi(&mut self) {
        if !std::mem::replace(&mut self.uses_mpi, true) {
            self.tell(&ToLauncher::Mpi);
        }
    }

    /// Whether there are more ranks here than processors.
    pub fn oversubscribed(&self) -> bool {
        self.ranks_here() as usize > self.processors
    }

    /// A setting for a rank, unless the user made it.
    pub fn unless_set(&self, rank: Rank, key: &str, value: impl Into<Vec<u8>>) -> Option<(String, Option<Vec<u8>>)> {
        let set = self.spec.variable(rank, key.as_bytes()).is_some();
        (!set).then(|| (key.to_string(), Some(value.into())))
    }

    /// MPI_Comm_spawn was refused; the MPI says so to the program.
    pub fn say_spawn_refused(&self, command: &str) {
        self.notice(format!(
            "MPI_Comm_spawn of {command} was refused: ftd starts the ranks of ftrun -n and no others, with --ft=none as \
             with --ft=reinit"
        ));
    }
}
