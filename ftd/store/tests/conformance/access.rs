//! Who is let in, and what is said to who is not.

use crate::cluster::{Cluster, LONG, Release, login, tls};
use crate::suite;
use etcd_client::{ConnectOptions, Permission};
use ft_store::{Etcd, EtcdOptions, Expected, Scope, Store, StoreError, Swap, Watch, WatchEnd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

fn openssl(directory: &Path, args: &str) {
    let mut command = Command::new("openssl");
    let done = command.args(args.split(' ')).current_dir(directory).stderr(Stdio::null()).status().unwrap();
    assert!(done.success(), "openssl {args}");
}

/// `name.pem` and `name.key`, signed by `ca`, or by itself.
fn certificate(directory: &Path, name: &str, ca: Option<&str>, more: &str) {
    let key = format!("-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -subj /CN={name}");
    match ca {
        None => openssl(directory, &format!("req -x509 {key} -days 2 -out {name}.pem")),
        Some(ca) => {
            std::fs::write(directory.join("extensions"), more).unwrap();
            openssl(directory, &format!("req {key} -out {name}.csr"));
            let sign = format!("x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2");
            openssl(directory, &format!("{sign} -extfile extensions -out {name}.pem"));
        }
    }
}

/// The sentence that it is refused with, at once.
async fn refusal(options: EtcdOptions) -> String {
    let (store, asked) = (Etcd::new(&options).unwrap(), Instant::now());
    let error = store.get("jobs/7/epoch", LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
    let sentence = error.to_string();
    assert!(sentence.contains(&options.endpoints[0]), "{sentence}");
    assert!(sentence.contains("read jobs/7/epoch"), "{sentence}");
    sentence
}

/// Certificates for a member, a node and a stranger, and what the member is told of them.
fn certified(directory: &Path, address: &str) -> Vec<String> {
    certificate(directory, "ca", None, "");
    certificate(directory, "other", None, "");
    certificate(directory, "etcd", Some("ca"), &format!("subjectAltName=IP:{address}"));
    certificate(directory, "node", Some("ca"), "extendedKeyUsage=clientAuth");
    certificate(directory, "stranger", Some("other"), "extendedKeyUsage=clientAuth");
    let file = |name: &str| directory.join(name).display().to_string();
    let files = [("--cert-file", "etcd.pem"), ("--key-file", "etcd.key"), ("--trusted-ca-file", "ca.pem")];
    let mut args: Vec<String> = files.iter().map(|(option, name)| format!("{option}={}", file(name))).collect();
    args.push("--client-cert-auth".into());
    args
}

pub async fn certificates_are_checked_both_ways(release: Release) {
    let cluster = Cluster::start_with(release, 1, "https", certified).await;
    let path = |name: &str| -> PathBuf { cluster.path(name) };
    let pair = |name: &str| Some((path(&format!("{name}.pem")), path(&format!("{name}.key"))));
    let with = |ca: &str, name: Option<&str>| EtcdOptions {
        tls: tls(path(&format!("{ca}.pem")), name.and_then(pair)),
        ..cluster.from(0)
    };
    let store = Etcd::new(&with("ca", Some("node"))).unwrap();
    store.check(LONG).await.unwrap();
    let swap = Swap::on("jobs/7/epoch", Expected::Absent).put("jobs/7/epoch", b"1".into());
    store.compare_and_swap(swap, LONG).await.unwrap();
    for (options, says) in [
        (with("other", Some("node")), "UnknownIssuer"),
        (with("ca", None), "ertificate"),
        (with("ca", Some("stranger")), "ertificate"),
    ] {
        let sentence = refusal(options).await;
        assert!(sentence.contains(says) && sentence.contains("Look at the certificates"), "{sentence}");
    }
    // A name that its certificate does not have.
    let mut elsewhere = with("ca", Some("node"));
    elsewhere.tls.as_mut().unwrap().name = Some("elsewhere".into());
    let sentence = refusal(elsewhere).await;
    assert!(sentence.contains("NotValidForName") || sentence.contains("not valid for name"), "{sentence}");
    // Without TLS to who wants it: nobody can know that it will not help to wait.
    let plain = EtcdOptions::plain([cluster.endpoint(0).replace("https", "http")]);
    let error = Etcd::new(&plain).unwrap().get("jobs/7/epoch", Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unanswered { .. }) && error.to_string().contains("https://"), "{error}");
}

pub async fn passwords_and_roles_are_checked(release: Release) {
    let cluster = Cluster::start_with(release, 1, "http", |_, _| vec!["--auth-token-ttl=1".into()]).await;
    cluster.store().check(LONG).await.unwrap();
    let mut admin = cluster.client(0).await;
    admin.user_add("root", "top", None).await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.role_add("ftd").await.unwrap();
    admin.role_grant_permission("ftd", Permission::read_write("jobs/").with_prefix()).await.unwrap();
    admin.user_add("ftd", "right", None).await.unwrap();
    admin.user_grant_role("ftd", "ftd").await.unwrap();
    admin.auth_enable().await.unwrap();

    let with = |user: &str, password: &str| EtcdOptions { login: login(user, password), ..cluster.from(0) };
    let store = Etcd::new(&with("ftd", "right")).unwrap();
    let (inside, outside) = ("jobs/7/epoch", "secret");
    let write = |key: &str, at| Swap::on(key, Expected::at(at)).put(key, b"x".to_vec());
    let first = store.compare_and_swap(write(inside, 0), LONG).await.unwrap();
    let sentence = refusal(with("ftd", "wrong")).await;
    assert!(sentence.contains("authentication failed") && sentence.contains("user and password"), "{sentence}");
    assert!(!sentence.contains("wrong"), "the password is in it: {sentence}");
    let sentence = refusal(cluster.from(0)).await;
    assert!(sentence.contains("user name is empty") && sentence.contains("user and password"), "{sentence}");
    // What the role does not allow.
    let denied = |error: &StoreError| {
        matches!(error, StoreError::Refused { .. }) && error.to_string().contains("permission denied")
    };
    let error = store.compare_and_swap(write(outside, 0), LONG).await.unwrap_err();
    assert!(denied(&error), "{error}");
    assert!(denied(&store.get(outside, LONG).await.unwrap_err()));
    let end = timeout(LONG, store.watch(&Scope::Key(outside.into()), 1).next()).await.expect("it says so");
    assert!(matches!(&end, Err(WatchEnd::Failed(error)) if denied(error)), "{end:?}");
    // A token lapses when it is not used for a while; a write was not looked at then, and costs no more than that.
    sleep(Duration::from_secs(4)).await;
    let second = store.compare_and_swap(write(inside, first), LONG).await.unwrap();
    let connect = ConnectOptions::new().with_user("root", "top");
    let mut admin = etcd_client::Client::connect([cluster.endpoint(0)], Some(connect)).await.unwrap();
    let found = admin.get(inside, None).await.unwrap();
    assert_eq!((found.kvs()[0].mod_revision() as u64, found.kvs()[0].version()), (second, 2));
}

/// `etcdctl` of who may do everything.
struct Root<'a>(&'a Cluster, &'a [&'a str]);

impl Root<'_> {
    fn ctl(&self, words: &[&str]) {
        let Root(cluster, access) = self;
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .current_dir(cluster.path(""))
            .arg(format!("--endpoints={}", cluster.endpoint(0)));
        let said = command
            .args(["--command-timeout=30s", "--cacert=ca.pem", "--cert=node.pem", "--key=node.key"])
            .args(*access)
            .args(words)
            .output();
        let said = said.unwrap();
        assert!(said.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said.stderr));
    }
}

impl suite::Forgets for Root<'_> {
    async fn forget(&self, revision: u64) {
        self.ctl(&["compact", &revision.to_string()]);
    }
}

pub async fn one_member_holds_the_suite(release: Release) {
    let cluster = Cluster::start_with(release, 1, "https", certified).await;
    let path = |name: &str| cluster.path(name);
    let node = || tls(path("ca.pem"), Some((path("node.pem"), path("node.key"))));
    Etcd::new(&EtcdOptions { tls: node(), ..cluster.from(0) }).unwrap().check(LONG).await.unwrap();
    let nobody = Root(&cluster, &[]);
    for words in [
        "user add root:top",
        "user grant-role root root",
        "role add ftd",
        "user add ftd:right",
        "user grant-role ftd ftd",
    ] {
        nobody.ctl(&words.split(' ').collect::<Vec<_>>());
    }
    nobody.ctl(&["role", "grant-permission", "ftd", "--prefix", "readwrite", ""]);
    nobody.ctl(&["auth", "enable"]);
    let store = Etcd::new(&EtcdOptions { tls: node(), login: login("ftd", "right"), ..cluster.from(0) }).unwrap();
    suite::holds(&store, &Root(&cluster, &["--user=root:top"])).await;
}
