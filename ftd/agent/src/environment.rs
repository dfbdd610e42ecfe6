//! What a rank finds in its environment.

use crate::files;
use crate::job::Job;
use crate::loners;
use crate::world::World;
use ft_wire::launcher::reaches_ranks;
use ft_wire::{Rank, forlorn};
use std::os::unix::ffi::OsStringExt;

/// A rank's whole environment, as its shepherd's child gets it.
pub fn of_rank(job: &Job, world: &World, rank: Rank) -> Vec<(Vec<u8>, Vec<u8>)> {
    let spec = &job.spec;
    let local = world.layout.local_rank(rank).unwrap_or_default().to_string();
    let local_size = world.layout.local().len().to_string();
    let mut env: Vec<(Vec<u8>, Vec<u8>)> =
        spec.variables(rank).filter(|(key, _)| reaches_ranks(key) && key != b"LD_PRELOAD").cloned().collect();
    if let Some(slurm) = &job.slurm {
        slurm.tell(&mut env, &world.layout, rank);
    }
    let mut set_path = |key: &str, name: &str| {
        env.push((key.as_bytes().to_vec(), spec.job_dir.join(name).into_os_string().into_vec()));
    };
    set_path("FT_SOCKET", ft_wire::AGENT_SOCKET);
    set_path("FT_CHECKPOINT_DIR", files::NAME);
    let mut set = |key: &str, value: String| env.push((key.as_bytes().to_vec(), value.into_bytes()));
    set("FT_JOB", spec.job.clone());
    set("FT_WORLD", world.number.to_string());
    set("FT_EPOCH", world.epoch.to_string());
    set("FT_RANK", rank.to_string());
    set("FT_SIZE", spec.world_size.to_string());
    set("FT_LOCAL_RANK", local.clone());
    set("FT_LOCAL_SIZE", local_size.clone());
    set("FT_MODE", spec.mode.clone());
    // Programs and wrappers look at what mpirun sets (to choose a device, for example), long before MPI_Init.
    let (all, size) = (rank.to_string(), spec.world_size.to_string());
    let of_mpirun = [
        ("RANK", all),
        ("LOCAL_RANK", local.clone()),
        ("NODE_RANK", local),
        ("SIZE", size),
        ("LOCAL_SIZE", local_size),
    ];
    for (key, value) in of_mpirun {
        set(&format!("OMPI_COMM_WORLD_{key}"), value);
    }
    if spec.mpi != "auto" {
        set("FT_MPI", spec.mpi.clone());
    }
    // What was found in the program's file is so; what somebody has said may not be.
    let linked_in = spec.program(rank).linked_in;
    if linked_in.is_none() || spec.mpi != "auto" {
        for (key, value) in loners::forlorn(linked_in) {
            keep_from_starting(&mut env, key, value);
        }
    }
    let old = |key: &[u8]| spec.variable(rank, key).unwrap_or_default();
    let preload = in_front(spec.preload.clone().into_os_string().into_vec(), old(b"LD_PRELOAD"));
    // AddressSanitizer takes any library in front of its own for a mistake, and ends the program.
    let sanitizer = [&b"verify_asan_link_order=0"[..], old(b"ASAN_OPTIONS")].join(&b':');
    env.retain(|(name, _)| name != b"ASAN_OPTIONS");
    env.extend([(b"LD_PRELOAD".to_vec(), preload), (b"ASAN_OPTIONS".to_vec(), sanitizer)]);
    env
}

/// Sets what keeps an MPI from starting alone. What the user has set in its place comes back when the process joins.
fn keep_from_starting(env: &mut Vec<(Vec<u8>, Vec<u8>)>, key: &str, value: &str) {
    let mut value = value.as_bytes().to_vec();
    if forlorn::SETTINGS.contains(&key) {
        let users = env.iter().rfind(|(name, _)| name == key.as_bytes()).map(|(_, users)| users.clone());
        env.retain(|(name, _)| name != key.as_bytes());
        value = forlorn::unreadable(users.as_deref());
    }
    env.push((key.as_bytes().to_vec(), value));
}

/// A list with one more entry in front; behind the sanitizers' runtimes, which must come first.
fn in_front(entry: Vec<u8>, list: &[u8]) -> Vec<u8> {
    const RUNTIMES: [&str; 7] =
        ["libasan.", "libtsan.", "libubsan.", "liblsan.", "libmsan.", "libhwasan.", "libclang_rt."];
    let is_runtime = |entry: &&[u8]| {
        let name = entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry);
        RUNTIMES.iter().any(|runtime| name.starts_with(runtime.as_bytes()))
    };
    let entries = || list.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty());
    let runtimes = entries().filter(is_runtime);
    let all: Vec<&[u8]> = runtimes.chain([&entry[..]]).chain(entries().filter(|entry| !is_runtime(entry))).collect();
    all.join(&b':')
}

#[cfg(test)]
mod tests {
    use super::{in_front, keep_from_starting};

    #[test]
    fn what_the_user_has_set_is_within_what_no_mpi_can_read() {
        let entry = |(key, value): (&str, &str)| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        let [ours, theirs] = ft_wire::forlorn::SETTINGS;
        let mut env = [("A", "b"), (ours, "0"), ("C", "d"), (ours, "1")].map(entry).to_vec();
        for key in [ours, theirs, "PMIX_NAMESPACE"] {
            keep_from_starting(&mut env, key, "not-joined");
        }
        let wanted =
            [("A", "b"), ("C", "d"), (ours, "not-joined:1"), (theirs, "not-joined"), ("PMIX_NAMESPACE", "not-joined")];
        assert_eq!(env, wanted.map(entry));
    }

    #[test]
    fn the_preload_stands_behind_sanitizers_and_before_all_others() {
        for (old, new) in [
            ("", "ours"),
            ("theirs.so", "ours:theirs.so"),
            ("/x/libprof.so:/y/libasan.so.8 z.so", "/y/libasan.so.8:ours:/x/libprof.so:z.so"),
        ] {
            assert_eq!(in_front(b"ours".to_vec(), old.as_bytes()), new.as_bytes());
        }
    }
}
