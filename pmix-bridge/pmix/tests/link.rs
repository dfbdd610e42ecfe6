//! `ft-pmix` and its link, without ranks.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{Host, LIMIT, wait_end};
use ft_wire::pmix::{App, Proc, ToAgent, ToPmix, WorldInfo};
use std::process::{Command, Stdio};
use std::time::Duration;

fn host() -> (tempfile::TempDir, Host) {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::start(&[], &folder.path().join("pmix"));
    (folder, host)
}

#[test]
fn it_ends_with_its_link() {
    let (_folder, mut host) = host();
    host.hang_up();
    assert!(wait_end(&mut host.process).success());
}

#[test]
fn it_waits_for_a_world_as_long_as_needed_and_serves_one() {
    let (folder, mut host) = host();
    assert!(host.receive(Duration::from_millis(200)).is_none());
    let env = host.register(folder.path(), 3);
    assert_eq!(env.len(), 3);
    for (rank, env) in &env {
        let get = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        assert_eq!(get("PMIX_RANK"), Some(rank.to_string()));
        assert!(get("PMIX_NAMESPACE").is_some_and(|name| name.starts_with("ftd-test-")));
        assert_eq!(get("PMIX_GDS_MODULE").as_deref(), Some("hash"));
        assert!(env.iter().all(|(name, _)| name.starts_with("PMIX_")), "{env:?}");
    }
    host.kill();
}

#[test]
fn a_senseless_world_is_refused_with_a_sentence() {
    let (folder, mut host) = host();
    host.send(&ToPmix::Register(WorldInfo {
        nspace: "x".to_string(),
        world_size: 2,
        nodes: vec![("node".to_string(), vec![0, 0])],
        me: 0,
        tmpdir: folder.path().to_path_buf(),
        incarnation: 0,
        apps: Vec::new(),
    }));
    let Some(ToAgent::Failed { reason }) = host.receive(LIMIT) else { panic!("no refusal") };
    assert_eq!(reason, "the placement does not hold each of the 2 ranks once");
    host.hang_up();
    assert!(wait_end(&mut host.process).success());
}

/// The job's directory may have been removed meanwhile, with all that was to be removed.
#[test]
fn a_world_of_a_job_that_is_over_makes_no_directories() {
    let (folder, mut host) = host();
    let gone = folder.path().join("job");
    host.send(&ToPmix::Register(WorldInfo {
        nspace: "x".to_string(),
        world_size: 1,
        nodes: vec![("node".to_string(), vec![0])],
        me: 0,
        tmpdir: gone.join("w1"),
        incarnation: 0,
        apps: vec![App { ranks: 1, argv0: b"x".to_vec(), cwd: b"/".to_vec() }],
    }));
    let Some(ToAgent::Failed { reason }) = host.receive(LIMIT) else { panic!("no refusal") };
    assert!(reason.contains("job/w1") && !gone.exists(), "{reason}");
    host.hang_up();
    assert!(wait_end(&mut host.process).success());
}

#[test]
fn answers_that_nobody_waits_for_do_no_harm() {
    let (folder, mut host) = host();
    host.send(&ToPmix::Done { token: 7, status: 0 });
    host.send(&ToPmix::FenceDone { token: 8, status: 0, data: vec![1] });
    host.register(folder.path(), 1);
    let proc = Proc { nspace: "unknown".to_string(), rank: 0 };
    host.send(&ToPmix::ModexRequest { token: 9, proc });
    // libpmix waits for the namespace to be registered; the link lives on meanwhile.
    match host.receive(Duration::from_millis(100)) {
        None => {}
        Some(ToAgent::ModexData { token: 9, status, .. }) => assert_ne!(status, 0),
        other => panic!("{other:?}"),
    }
    host.kill();
}

#[test]
fn garbage_on_the_link_ends_it_with_a_sentence() {
    let (_folder, mut host) = host();
    host.send_bytes(&[0xff; 64]);
    assert_eq!(wait_end(&mut host.process).code(), Some(1));
}

#[test]
fn it_does_not_run_without_an_agent() {
    let run = |env: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ft-pmix"));
        command.env_remove("FT_PMIX_FD").env_remove("FT_PMIX_TMPDIR").envs(env.iter().copied()).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(run(&[]), "ft-pmix: FT_PMIX_FD is not set; ft-pmix is started by ft-agent\n");
    assert_eq!(run(&[("FT_PMIX_FD", "9")]), "ft-pmix: FT_PMIX_TMPDIR is not set; ft-pmix is started by ft-agent\n");
    let no_socket = run(&[("FT_PMIX_FD", "99"), ("FT_PMIX_TMPDIR", "/nowhere")]);
    assert_eq!(no_socket, "ft-pmix: FT_PMIX_FD: descriptor 99 is no socket\n");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let (output, status) = Host::fail(std::path::Path::new("/proc/nothing/here"));
    assert!(output.contains("cannot make the folder /proc/nothing/here for PMIx session files"), "{output}");
    assert!(status.success(), "the agent knows: {status}");
}
