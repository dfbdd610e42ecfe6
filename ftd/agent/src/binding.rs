//! Which processors the ranks of this node run on.

use ft_sys::topology;
use ft_wire::Rank;
use ft_wire::launcher::JobSpec;
use ftd_core::binding::{self, Bind, Policy, Processor};

/// How the ranks are bound, and to what they can be.
#[derive(Debug)]
pub struct Binding {
    policy: Policy,
    processors: Vec<Processor>,
}

impl Binding {
    /// As the job's user wants it. Nothing where that is not ftd's business, or nobody is bound.
    pub fn of(spec: &JobSpec, ranks: u32) -> Option<Binding> {
        let policy: Policy = spec.binding.as_ref()?.policy.parse().ok()?;
        let allowed = topology::allowed();
        let oversubscribed = ranks as usize > allowed.len();
        if policy.bind == Bind::None
            || policy.bind == Bind::Share && policy.cores.is_none() && !policy.pinned && oversubscribed
        {
            return None;
        }
        let place = |one: topology::Processor| Processor {
            package: one.package,
            domain: one.domain,
            core: one.core,
            number: one.number,
        };
        Some(Binding { policy, processors: topology::of(&allowed).into_iter().map(place).collect() })
    }

    /// The processors of so many ranks of this node, in their order. More than was asked for are bound to nothing: they are those of
    /// a node that was lost.
    fn assign(&self, ranks: usize) -> Vec<Vec<u32>> {
        binding::assign(&self.processors, &self.policy, ranks).unwrap_or(vec![Vec::new(); ranks])
    }
}

/// The processors of each rank that a world has on this node, in the order of the ranks; and what people want to know of it.
pub fn of_ranks(spec: &JobSpec, binding: Option<&Binding>, ranks: &[Rank]) -> (Vec<Vec<u32>>, Vec<String>) {
    let unbound = || vec![Vec::new(); ranks.len()];
    let assigned = binding.map_or_else(unbound, |binding| binding.assign(ranks.len()));
    let wanted = spec.binding.as_ref().is_some_and(|binding| binding.report);
    let sentence = |(rank, processors): (&Rank, &Vec<u32>)| {
        let to = match processors.len() {
            0 => "no processor".to_string(),
            1 => format!("processor {}", topology::text(processors)),
            _ => format!("processors {}", topology::text(processors)),
        };
        format!("rank {rank} is bound to {to}")
    };
    let sentences = ranks.iter().zip(&assigned).filter(|_| wanted).map(sentence).collect();
    (assigned, sentences)
}
