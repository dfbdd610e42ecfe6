//! What libpmix is told about the server and the world, as plain values.

use ft_wire::Rank;
use ft_wire::pmix::WorldInfo;
use std::collections::HashSet;
use std::ffi::CStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::native::keys;

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Info {
    pub(crate) key: &'static CStr,
    pub(crate) value: Value,
}

/// A value with PMIx's type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    /// To be handed through `PMIx_generate_regex` first.
    NodeMap(String),
    /// To be handed through `PMIx_generate_ppn` first.
    ProcMap(String),
    U32(u32),
    U16(u16),
    Rank(Rank),
    Bool(bool),
    Infos(Vec<Info>),
}

/// A world as libpmix wants to know it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) local: Vec<Rank>,
    pub(crate) infos: Vec<Info>,
}

/// Why a [`WorldInfo`] cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The namespace's name does not fit.
    #[error("PMIx namespace {0:?} is empty, longer than 255 bytes, or holds a slash or a NUL")]
    Namespace(String),
    /// This node is not in the list.
    #[error("node {me} is none of the world's nodes, which are numbered below {nodes}")]
    Me {
        /// Index that was given.
        me: u32,
        /// Number of nodes.
        nodes: usize,
    },
    /// Ranks are missing, doubled or too large.
    #[error("the placement does not hold each of the {0} ranks once")]
    Placement(u32),
    /// Ranks without a program, or programs of more ranks.
    #[error("the programs do not have {0} ranks in all")]
    Programs(u32),
    /// A host name that would be read as two.
    #[error("host name {0:?} is empty or holds a comma, a semicolon or a NUL")]
    Host(String),
    /// A text with a NUL byte in it.
    #[error("{0:?} holds a NUL byte")]
    Nul(String),
}

fn info(key: &'static CStr, value: Value) -> Info {
    Info { key, value }
}

fn text(key: &'static CStr, value: impl Into<Vec<u8>>) -> Info {
    info(key, Value::Text(value.into()))
}

fn count(key: &'static CStr, value: usize) -> Info {
    info(key, Value::U32(u32::try_from(value).unwrap_or(u32::MAX)))
}

/// What `PMIx_server_init` is told.
pub(crate) fn server(folder: &Path, host: &str) -> Vec<Info> {
    let folder = folder.as_os_str().as_bytes();
    vec![
        text(keys::PMIX_SERVER_TMPDIR, folder),
        text(keys::PMIX_SYSTEM_TMPDIR, folder),
        // Without a name of its own the server of another job of the same user could be taken for this one.
        text(keys::PMIX_SERVER_NSPACE, format!("ftd-server.{}", std::process::id())),
        info(keys::PMIX_SERVER_RANK, Value::Rank(0)),
        text(keys::PMIX_HOSTNAME, host),
    ]
}

/// What `PMIx_server_register_nspace` is told. libpmix derives the rest from the two maps.
/// `cpus` are those that this node's ranks share.
pub(crate) fn describe(world: &WorldInfo, folder: &Path, cpus: usize) -> Result<Job, JobError> {
    check(world)?;
    let local = world.nodes[world.me as usize].1.clone();
    let mut infos = Vec::from(of_job(world));
    infos.extend(of_node(world, &local, folder, cpus));
    infos.extend(of_apps(world));
    infos.extend(of_processes(world));
    Ok(Job { local, infos })
}

fn join(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(",")
}

fn of_job(world: &WorldInfo) -> [Info; 8] {
    let size = world.world_size as usize;
    let hosts: Vec<_> = world.nodes.iter().map(|(host, _)| host.as_str()).collect();
    let ranks: Vec<_> = world.nodes.iter().map(|(_, ranks)| join(ranks)).collect();
    [
        text(keys::PMIX_JOBID, world.nspace.clone()),
        count(keys::PMIX_UNIV_SIZE, size),
        count(keys::PMIX_JOB_SIZE, size),
        count(keys::PMIX_MAX_PROCS, size),
        count(keys::PMIX_JOB_NUM_APPS, world.apps.len()),
        count(keys::PMIX_NUM_NODES, world.nodes.len()),
        info(keys::PMIX_NODE_MAP, Value::NodeMap(hosts.join(","))),
        info(keys::PMIX_PROC_MAP, Value::ProcMap(ranks.join(";"))),
    ]
}

/// What concerns this node.
fn of_node(world: &WorldInfo, local: &[Rank], folder: &Path, cpus: usize) -> Vec<Info> {
    let me = world.me as usize;
    let mut infos = vec![
        count(keys::PMIX_LOCAL_SIZE, local.len()),
        count(keys::PMIX_NODE_SIZE, local.len()),
        text(keys::PMIX_LOCAL_PEERS, join(local)),
        text(keys::PMIX_HOSTNAME, world.nodes[me].0.as_str()),
        count(keys::PMIX_NODEID, me),
        text(keys::PMIX_TMPDIR, folder.as_os_str().as_bytes()),
        text(keys::PMIX_NSDIR, folder.join(&world.nspace).into_os_string().into_vec()),
        // The agent removes the folder; Open MPI must not.
        info(keys::PMIX_TDIR_RMCLEAN, Value::Bool(true)),
    ];
    if local.len() > cpus {
        // Makes Open MPI 5 give the processor away when it waits. It looks only whether the key is there.
        infos.push(info(keys::PMIX_NODE_OVERSUBSCRIBED, Value::Bool(true)));
    }
    let leader = local.iter().min();
    infos.extend(leader.map(|leader| info(keys::PMIX_LOCALLDR, Value::Rank(*leader))));
    infos
}

/// The programs, in the order of their ranks.
fn of_apps(world: &WorldInfo) -> impl Iterator<Item = Info> {
    let mut first = 0;
    world.apps.iter().enumerate().map(move |(number, app)| {
        let leader = first;
        first += app.ranks;
        let infos = vec![
            count(keys::PMIX_APPNUM, number),
            count(keys::PMIX_APP_SIZE, app.ranks as usize),
            info(keys::PMIX_APPLDR, Value::Rank(leader)),
            text(keys::PMIX_WDIR, app.cwd.clone()),
            text(keys::PMIX_APP_ARGV, app.argv0.clone()),
        ];
        info(keys::PMIX_APP_INFO_ARRAY, Value::Infos(infos))
    })
}

/// For each rank the number of its program, and its place among that program's.
fn in_apps(world: &WorldInfo) -> Vec<(usize, Rank)> {
    world.apps.iter().enumerate().flat_map(|(number, app)| (0..app.ranks).map(move |rank| (number, rank))).collect()
}

/// Each process, in the order of the ranks.
fn of_processes(world: &WorldInfo) -> impl Iterator<Item = Info> {
    let mut procs: Vec<_> = world
        .nodes
        .iter()
        .enumerate()
        .flat_map(|(node, (host, ranks))| ranks.iter().zip(0u16..).map(move |(rank, local)| (*rank, local, node, host)))
        .collect();
    procs.sort_unstable();
    let incarnation = world.incarnation;
    let apps = in_apps(world);
    procs.into_iter().map(move |(rank, local_rank, node, host)| {
        let (app, in_app) = apps.get(rank as usize).copied().unwrap_or_default();
        // RANK must stand first, LOCAL_RANK and NODE_RANK must be there.
        let proc = vec![
            info(keys::PMIX_RANK, Value::Rank(rank)),
            count(keys::PMIX_APPNUM, app),
            info(keys::PMIX_APP_RANK, Value::Rank(in_app)),
            info(keys::PMIX_GLOBAL_RANK, Value::Rank(rank)),
            info(keys::PMIX_LOCAL_RANK, Value::U16(local_rank)),
            info(keys::PMIX_NODE_RANK, Value::U16(local_rank)),
            count(keys::PMIX_NODEID, node),
            text(keys::PMIX_HOSTNAME, host.clone()),
            info(keys::PMIX_REINCARNATION, Value::U32(incarnation)),
        ];
        info(keys::PMIX_PROC_INFO_ARRAY, Value::Infos(proc))
    })
}

fn check(world: &WorldInfo) -> Result<(), JobError> {
    let nspace = &world.nspace;
    if nspace.is_empty() || nspace.len() > 255 || nspace.contains(['/', '\0']) || nspace.starts_with('.') {
        return Err(JobError::Namespace(nspace.clone()));
    }
    if world.me as usize >= world.nodes.len() {
        return Err(JobError::Me { me: world.me, nodes: world.nodes.len() });
    }
    let mut seen = HashSet::new();
    let ranks = world.nodes.iter().flat_map(|(_, ranks)| ranks);
    let sound = ranks.clone().all(|rank| *rank < world.world_size && seen.insert(*rank));
    if !sound || seen.len() != world.world_size as usize || seen.is_empty() || seen.len() > usize::from(u16::MAX) {
        return Err(JobError::Placement(world.world_size));
    }
    if in_apps(world).len() != world.world_size as usize {
        return Err(JobError::Programs(world.world_size));
    }
    if let Some((host, _)) = world.nodes.iter().find(|(host, _)| host.is_empty() || host.contains([',', ';', '\0'])) {
        return Err(JobError::Host(host.clone()));
    }
    let of_apps = world.apps.iter().flat_map(|app| [&app.argv0[..], &app.cwd]);
    let nul = of_apps.chain([world.tmpdir.as_os_str().as_bytes()]).find(|text| text.contains(&0));
    nul.map_or(Ok(()), |text| Err(JobError::Nul(String::from_utf8_lossy(text).into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::pmix::App;

    fn app(ranks: u32, name: &str) -> App {
        App { ranks, argv0: name.into(), cwd: b"/".to_vec() }
    }

    fn world() -> WorldInfo {
        WorldInfo {
            nspace: "job.1".to_string(),
            world_size: 4,
            nodes: vec![("a".to_string(), vec![0, 2]), ("b".to_string(), vec![1, 3])],
            me: 1,
            tmpdir: std::path::PathBuf::new(),
            incarnation: 3,
            apps: vec![app(1, "/bin/one"), app(3, "/bin/three")],
        }
    }

    #[test]
    fn ranks_come_in_order_and_their_rank_first() {
        let job = describe(&world(), Path::new("/x"), 1).unwrap();
        assert_eq!(job.local, [1, 3]);
        let arrays = job.infos.iter().filter(|i| i.key == keys::PMIX_PROC_INFO_ARRAY);
        let firsts: Vec<_> = arrays
            .map(|array| match &array.value {
                Value::Infos(infos) => infos[0].clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected: Vec<_> = (0..4).map(|rank| info(keys::PMIX_RANK, Value::Rank(rank))).collect();
        assert_eq!(firsts, expected);
        let oversubscribed = info(keys::PMIX_NODE_OVERSUBSCRIBED, Value::Bool(true));
        assert!(job.infos.contains(&oversubscribed));
        assert!(!describe(&world(), Path::new("/x"), 2).unwrap().infos.contains(&oversubscribed));
        assert!(job.infos.contains(&info(keys::PMIX_PROC_MAP, Value::ProcMap("0,2;1,3".to_string()))));
    }

    #[test]
    fn senseless_worlds_are_refused() {
        let refuse = |change: fn(&mut WorldInfo)| {
            let mut world = world();
            change(&mut world);
            describe(&world, Path::new("/x"), 2).unwrap_err()
        };
        assert!(matches!(refuse(|w| w.nspace = "../x".to_string()), JobError::Namespace(_)));
        assert!(matches!(refuse(|w| w.nspace = "n".repeat(256)), JobError::Namespace(_)));
        assert!(matches!(refuse(|w| w.me = 2), JobError::Me { .. }));
        assert!(matches!(refuse(|w| w.world_size = 5), JobError::Placement(5)));
        assert!(matches!(refuse(|w| w.nodes[0].1 = vec![0, 0]), JobError::Placement(4)));
        assert!(matches!(refuse(|w| w.nodes[0].0 = "a,b".to_string()), JobError::Host(_)));
        assert!(matches!(refuse(|w| w.apps[1].cwd = b"a\0b".to_vec()), JobError::Nul(_)));
        assert!(matches!(refuse(|w| w.apps[1].ranks = 2), JobError::Programs(4)));
    }

    #[test]
    fn each_rank_is_of_its_program() {
        assert_eq!(in_apps(&world()), [(0, 0), (1, 0), (1, 1), (1, 2)]);
        let job = describe(&world(), Path::new("/x"), 1).unwrap();
        let arrays = job.infos.iter().filter(|i| i.key == keys::PMIX_APP_INFO_ARRAY);
        let arrays: Vec<_> = arrays.map(|array| array.value.clone()).collect();
        for (array, (number, ranks, leader)) in arrays.iter().zip([(0, 1, 0), (1, 3, 1)]) {
            let Value::Infos(infos) = array else { panic!("{array:?}") };
            for expected in [
                count(keys::PMIX_APPNUM, number),
                count(keys::PMIX_APP_SIZE, ranks),
                info(keys::PMIX_APPLDR, Value::Rank(leader)),
            ] {
                assert!(infos.contains(&expected), "{expected:?} is not in {infos:?}");
            }
        }
        assert_eq!(arrays.len(), 2);
    }
}
