//! What Slurm's variables say of a step, of a rank and its world: as if the step had no other nodes and tasks than those.

mod hostlist;

use crate::layout::{Layout, Place};
use ft_wire::Rank;
use ft_wire::launcher::JobSpec;
use ft_wire::step::TASKS;

/// Of tasks that follow each other. Where they equal what Slurm calls the step's, they are: in a larger allocation some keep the allocation's.
const TWINS: [(&str, &str); 5] = [
    ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_NNODES", "SLURM_STEP_NUM_NODES"),
    ("SLURM_NODELIST", "SLURM_STEP_NODELIST"),
    ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
];

type Variable = (Vec<u8>, Vec<u8>);

/// A step.
#[derive(Debug)]
pub struct Slurm {
    /// Slurm's names of its nodes, by their numbers.
    nodes: Vec<String>,
}

impl Slurm {
    /// Of a job that is a step.
    pub fn of(spec: &JobSpec) -> Option<Slurm> {
        std::env::var_os(TASKS)?;
        let nodes = text(&spec.env, "SLURM_STEP_NODELIST").and_then(|list| hostlist::names(&list));
        Some(Slurm { nodes: nodes.unwrap_or_default() })
    }

    /// Exchanges in the environment of a task what is another rank's, or all tasks' of the step.
    pub fn tell(&self, env: &mut [Variable], layout: &Layout, rank: Rank) {
        let told = self.of_rank(layout, rank);
        let is_steps =
            |(name, of_step): &&(&str, &str)| text(env, name).is_some() && text(env, name) == text(env, of_step);
        let twins: Vec<&(&str, &str)> = TWINS.iter().filter(is_steps).collect();
        for (name, value) in env {
            let of_step = twins.iter().find(|(twin, _)| twin.as_bytes() == name).map(|(_, of_step)| *of_step);
            let found = told.iter().find(|(other, _)| other.as_bytes() == name || Some(*other) == of_step);
            if let Some((_, told)) = found {
                *value = told.clone().into_bytes();
            }
        }
    }

    fn of_rank(&self, layout: &Layout, rank: Rank) -> Vec<(&'static str, String)> {
        // Who lists the nodes looks for rank 0 on the first one, also when that rank has moved to the last.
        let mut places: Vec<&Place> = layout.places().iter().collect();
        places.sort_by_key(|place| place.ranks.iter().min().copied());
        let own = places.iter().position(|place| place.node == layout.own()).unwrap_or_default();
        let tasks: Vec<usize> = places.iter().map(|place| place.ranks.len()).collect();
        let ranks: Vec<String> = layout.local().iter().map(Rank::to_string).collect();
        let mut all = vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", layout.local_rank(rank).unwrap_or_default().to_string()),
            ("SLURM_NODEID", own.to_string()),
            ("SLURM_GTIDS", ranks.join(",")),
            ("SLURM_STEP_NUM_TASKS", tasks.iter().sum::<usize>().to_string()),
            ("SLURM_STEP_NUM_NODES", places.len().to_string()),
            ("SLURM_STEP_TASKS_PER_NODE", counts(&tasks)),
        ];
        let name = |at: u32| self.nodes.get(at as usize).map(String::as_str);
        // Names that nobody knows are left as they are.
        if let Some(names) = places.iter().map(|place| name(place.node.0)).collect::<Option<Vec<_>>>() {
            all.push(("SLURM_STEP_NODELIST", hostlist::list(names)));
        }
        all
    }
}

fn text(env: &[Variable], name: &str) -> Option<String> {
    let found = env.iter().rev().find(|(other, _)| other == name.as_bytes());
    found.map(|(_, value)| String::from_utf8_lossy(value).into())
}

/// As Slurm writes how many tasks there are on each of a list of nodes: `2(x3),1`.
fn counts(all: &[usize]) -> String {
    let alike = all.chunk_by(|one, other| one == other);
    let text = |alike: &[usize]| match alike {
        [one] => one.to_string(),
        [one, ..] => format!("{one}(x{})", alike.len()),
        [] => String::new(),
    };
    alike.map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layout;

    fn told(nodes: &str, text: &str, ranks: &[&[Rank]], me: usize, rank: Rank) -> String {
        let slurm = Slurm { nodes: hostlist::names(nodes).unwrap_or_default() };
        let bytes = |text: &str| text.as_bytes().to_vec();
        let pair = |word: &str| word.split_once('=').map(|(name, value)| (bytes(name), bytes(value)));
        let mut env: Vec<Variable> = text.split(' ').filter_map(pair).collect();
        slurm.tell(&mut env, &layout(ranks, me, 16), rank);
        let word = |(name, value): &Variable| [&name[..], b"=", &value[..]].concat();
        String::from_utf8(env.iter().map(word).collect::<Vec<_>>().join(&b' ')).unwrap()
    }

    #[test]
    fn a_rank_is_told_of_its_world_and_not_of_the_steps_other_nodes() {
        let step = "A=4 SLURM_PROCID=4 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_GTIDS=4,5 SLURM_STEP_NUM_TASKS=6 SLURM_NTASKS=6 \
                    SLURM_STEP_NUM_NODES=3 SLURM_NNODES=3 SLURM_STEP_NODELIST=n[01-03] SLURM_NODELIST=n[01-03] \
                    SLURM_STEP_TASKS_PER_NODE=2(x3) SLURM_TASKS_PER_NODE=2(x3) SLURM_JOB_NUM_NODES=3";
        assert_eq!(
            told("n[01-03]", step, &[&[0, 1], &[2, 3]], 1, 3),
            "A=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_GTIDS=2,3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 \
             SLURM_STEP_NUM_NODES=2 SLURM_NNODES=2 SLURM_STEP_NODELIST=n[01-02] SLURM_NODELIST=n[01-02] \
             SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_TASKS_PER_NODE=2(x2) SLURM_JOB_NUM_NODES=3"
        );
    }

    #[test]
    fn nodes_stand_in_the_order_of_their_ranks() {
        let step = "SLURM_NODEID=2 SLURM_GTIDS=4,5 SLURM_STEP_NODELIST=n[1-3] SLURM_STEP_TASKS_PER_NODE=2(x3)";
        let of = |id: u32, ranks: &str| {
            format!(
                "SLURM_NODEID={id} SLURM_GTIDS={ranks} SLURM_STEP_NODELIST=n[3,1-2] SLURM_STEP_TASKS_PER_NODE=1,2(x2)"
            )
        };
        let ranks: [&[Rank]; 3] = [&[1, 2], &[3, 4], &[0]];
        assert_eq!(told("n[1-3]", step, &ranks, 2, 0), of(0, "0"), "rank 0 has moved to the last");
        assert_eq!(told("n[1-3]", step, &ranks, 0, 2), of(1, "1,2"));
    }

    #[test]
    fn what_is_the_allocations_stays() {
        let step = "SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=9 SLURM_STEP_NUM_NODES=2 SLURM_NNODES=3 SLURM_STEP_NODELIST=a,b \
                    SLURM_NODELIST=a,b,c";
        let world = "SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=9 SLURM_STEP_NUM_NODES=1 SLURM_NNODES=3 SLURM_STEP_NODELIST=a \
                     SLURM_NODELIST=a,b,c";
        assert_eq!(told("a,b", step, &[&[0]], 0, 0), world);
        let unknown = told("", step, &[&[0]], 0, 0);
        assert_eq!(unknown, world.replace("NODELIST=a ", "NODELIST=a,b "), "names that nobody knows");
    }

    #[test]
    fn counts_are_written_as_slurm_does() {
        for (all, text) in [(&[2, 2, 2, 1][..], "2(x3),1"), (&[1], "1"), (&[1, 2, 1, 1], "1,2,1(x2)"), (&[], "")] {
            assert_eq!(counts(all), text);
        }
    }
}
