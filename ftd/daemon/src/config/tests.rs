//! That the default file, the manual page and the code agree, and what is wrong with keys that each are right.

use super::keys::Form;
use super::*;

const FILE: &str = include_str!("../../../../deploy/ftd.toml");
const MANUAL: &str = include_str!("../../../../docs/man/ftd.toml.5");

fn parse(text: &str) -> (Config, Vec<String>) {
    let (config, mistakes) = Config::parse(Path::new("ftd.toml"), text, "host1".into());
    (config, mistakes.iter().map(ToString::to_string).collect())
}

/// `section.key = default`, and the words about it.
type Entries = Vec<(String, String)>;

fn of_file(text: &str) -> Entries {
    let (mut section, mut words, mut found) = (String::new(), String::new(), Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_string();
        } else if let Some(comment) = line.strip_prefix("# ") {
            words += &format!("{comment} ");
            continue;
        } else if let Some(entry) = line.strip_prefix('#').filter(|rest| rest.contains(" = ")) {
            found.push((format!("{section}.{entry}"), words.clone()));
        }
        words.clear();
    }
    found
}

fn of_manual(text: &str) -> Entries {
    let text = text.replace("\\-", "-").replace("\\(dq", "\"").replace("\\(lq", "").replace("\\(rq", "");
    let (mut section, mut found, mut inside) = (String::new(), Entries::new(), false);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix(".SS [") {
            (section, inside) = (name.trim_end_matches(']').to_string(), false);
        } else if line.starts_with(".SH") {
            inside = false;
        } else if line == ".TP"
            && let Some(entry) = lines.peek().and_then(|next| next.strip_prefix(".B "))
        {
            found.push((format!("{section}.{entry}"), String::new()));
            inside = true;
        } else if inside
            && !line.starts_with('.')
            && let Some((_, words)) = found.last_mut()
        {
            *words += &format!("{line} ");
        }
    }
    found
}

fn of_code() -> Vec<String> {
    KEYS.iter().map(|key| format!("{} = {}", key.name, key.default)).collect()
}

fn range(form: &Form) -> Option<String> {
    match form {
        Form::Time(range) => Some(format!("From {} to {}", Said(*range.start()), Said(*range.end()))),
        Form::Count(range) => Some(format!("From {} to {}", range.start(), range.end())),
        Form::Nice(range) => Some(format!("From {} to {}", range.start(), range.end())),
        _ => None,
    }
}

#[test]
fn file_manual_and_code_agree() {
    let names = |entries: &Entries| entries.iter().map(|(entry, _)| entry.clone()).collect::<Vec<_>>();
    let (file, manual) = (of_file(FILE), of_manual(MANUAL));
    assert_eq!(names(&file), of_code());
    assert_eq!(names(&manual), of_code());
    for (key, ((_, in_file), (_, in_manual))) in KEYS.iter().zip(file.iter().zip(&manual)) {
        let name = key.name;
        assert_eq!(in_file.contains("At the next start."), !key.live, "{name} in the file: {in_file}");
        assert_eq!(in_manual.contains("A reload changes it."), key.live, "{name} in the manual: {in_manual}");
        if let Some(range) = range(&key.form) {
            assert!(in_file.contains(&range) && in_manual.contains(&range), "{name}: {range}");
        }
        // One text, but for the word on when it counts.
        let words = |text: &str| text.replace("At the next start. ", "").replace("A reload changes it. ", "");
        assert_eq!(words(in_file), words(in_manual), "{name}");
    }
}

#[test]
fn the_default_file_says_what_an_empty_one_does() {
    let every: String = FILE
        .lines()
        .map(|line| if line.starts_with("# ") { "" } else { line.trim_start_matches('#') })
        .fold(String::new(), |mut text, line| {
            text += line;
            text.push('\n');
            text
        });
    let ((told, mistakes), (silent, none)) = (parse(&every), parse(""));
    assert_eq!((mistakes, none), (Vec::new(), Vec::new()));
    assert_eq!(told.changes(&silent), (Vec::new(), Vec::new()));
    assert_eq!(told.values.values().filter(|(_, line)| *line > 0).count(), KEYS.len());
    assert_eq!((silent.node(), silent.label(), silent.copy_rate()), ("host1", "host1", 0));
    assert_eq!(parse("[jobs]\ncopy-rate = \"200M\"").0.copy_rate(), 200 << 20);
    let fabric = ["", "auto", "verbs, tcp"].map(|text| parse(&format!("[jobs]\nfabric = \"{text}\"")).0.fabric());
    assert_eq!(fabric, [None, None, Some("verbs,tcp".into())]);
}

#[test]
fn keys_that_do_not_fit_each_other_are_mistakes() {
    let cases = [
        ("[etcd]\nendpoints = [\"https://a:1\"]", "line 2: etcd.endpoints: https:// needs the CA"),
        ("[etcd]\nendpoints = [\"https://a:1\", \"http://a:2\"]", "line 2: etcd.endpoints: some begin with https://"),
        ("[etcd]\nca-file = \"/dev/null/x\"", "line 2: etcd.ca-file: /dev/null/x cannot be read: "),
        ("[etcd]\nuser = \"ftd\"", "line 2: etcd.user: it is of no use without etcd.password-file"),
        ("[etcd]\nserver-name = \"a\"", "line 2: etcd.server-name: the endpoints begin with http://"),
        ("[peers]\nca-file = \"/etc/passwd\"", "line 2: peers.ca-file: it is of no use without peers.cert-file"),
        ("[peers]\ninsecure = 1", "line 2: peers.insecure: 1 is no true and no false"),
        ("[jobs]\nheartbeat-period = \"200ms\"", "jobs.heartbeat-timeout: 500ms is less than 3 periods of 200ms"),
        (
            "[control]\nconnections = 4",
            "control.connections-per-user: one user may have more (16) than all together (4)",
        ),
        ("[control]\nconnections = 0", "line 2: control.connections: 0 is not a number from 1 to 65536"),
        ("[etcd]\nlease = \"1s\"", "line 2: etcd.lease: \"1s\" is not between 2s and 1h"),
        ("[jobs]\nroot = \"yes\"", "line 2: jobs.root: \"yes\" is no true and no false"),
        ("[metrics]\naddress = \"localhost\"", "line 2: metrics.address: \"localhost\" is no address with a port"),
        ("[log]\nfilter = \"a=b=c\"", "line 2: log.filter: \"a=b=c\" is not what can be logged"),
        (
            "[log]\nfilter = \"inof\"",
            "line 2: log.filter: \"inof\" is not what can be logged: \"inof\" is no level; info is meant?",
        ),
        ("[log]\nfilter = \"ft_store=debug,wran\"", "line 2: log.filter: \"ft_store=debug,wran\" is not what"),
        ("[control]\nsocket = \"ftd.sock\"", "line 2: control.socket: \"ftd.sock\" is no full path"),
        ("[control]\nsocket = \"\"", "line 2: control.socket: it is empty; to have the default"),
        ("[etcd]\nendpoints = []\nserver-name = \"a\"", "line 2: etcd.endpoints: no endpoint is named"),
        (
            "[jobs]\nheartbeat-timeout = \"1\"\nheartbeat-period = \"20s\"",
            "line 2: jobs.heartbeat-timeout: \"1\" is no time",
        ),
        ("[jobs]\ncopy-rate = 200", "line 2: jobs.copy-rate: 200 is no text; a rate looks like \"200M\""),
        ("[jobs]\ncopy-rate = \"200\"", "line 2: jobs.copy-rate: \"200\" is not a rate from 64K bytes a second on"),
        ("[jobs]\nfabric = \"verb,tcp\"", "line 2: jobs.fabric: \"verb\" is none of the providers verbs, cxi, "),
        ("[jobs]\nfabric = \"\"", "line 2: jobs.fabric: it is empty; to have the default"),
        ("[jobs]\nfabric = [\"tcp\"]", "line 2: jobs.fabric: this array is no text in quotation marks"),
        ("[jobs]\nagent-nice = 5", "line 2: jobs.agent-nice: 5 is not a number from -20 to 0"),
        ("[jobs]\nagent-nice = \"-5\"", "line 2: jobs.agent-nice: \"-5\" is not a number from -20 to 0"),
        ("[node]\nname = 7", "line 2: node.name: 7 is no text in quotation marks"),
    ];
    for (text, expected) in cases {
        let (_, mistakes) = parse(text);
        assert!(mistakes.len() == 1 && mistakes[0].starts_with(expected), "{text}: {mistakes:?}");
    }
    // Without a period it is a fifth.
    assert_eq!(parse("[jobs]\nheartbeat-timeout = \"200ms\"").1, Vec::<String>::new());
    let (_, mistakes) = Config::parse(Path::new("x"), "", "bad host".into());
    assert!(mistakes[0].to_string().starts_with("node.name: the node has no name here"), "{mistakes:?}");
}

#[test]
fn secrets_that_everybody_may_read_are_mistakes() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("[etcd]\nuser = \"ftd\"\npassword-file = \"{}\"", file.path().display());
    for (mode, right) in [(0o600, true), (0o640, true), (0o644, false)] {
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        let (_, mistakes) = parse(&text);
        assert_eq!(mistakes.is_empty(), right, "{mode:o}: {mistakes:?}");
        assert!(right || mistakes[0].contains("everybody may read it (mode 0644): chmod o= "), "{mistakes:?}");
    }
}

#[test]
fn a_reload_changes_what_it_can_and_names_the_rest() {
    let (old, _) = parse("[etcd]\nlease = \"10s\"\n[control]\nconnections = 99");
    let (new, _) = parse("[node]\nname = \"other\"\n[control]\nconnections = 98\n[log]\nfilter = \"debug\"");
    let (live, later) = old.changes(&new);
    assert_eq!((live, later), (vec!["control.connections", "log.filter"], vec!["node.name"]));
    let merged = old.with_live_of(&new);
    assert_eq!((merged.connections(), merged.filter(), merged.node()), (98, "debug", "host1"));
}

#[test]
fn another_process_has_the_configuration_that_is_in_use() {
    let old = Config::of_text("[node]\nname = \"a\"\n[log]\nfilter = \"warn\"\n", "host");
    let new = Config::of_text("[node]\nname = \"b\"\n[log]\nfilter = \"debug\"\n", "host");
    for (config, expected) in [(old.clone(), ("a", "warn")), (old.with_live_of(&new), ("a", "debug"))] {
        let there = Config::of_texts(config.texts());
        assert_eq!((there.node(), there.filter(), there.file == config.file), (expected.0, expected.1, true));
    }
}

#[test]
fn too_long_a_period_for_the_time_out_is_a_warning_where_it_was_none() {
    let warned = |text: &str| {
        let (config, mistakes) = parse(text);
        assert!(mistakes.is_empty(), "{text}: {mistakes:?}");
        config.warnings().iter().any(|warning| warning.contains("500ms is less than 4 periods of 150ms"))
    };
    assert!(warned("[jobs]\nheartbeat-period = \"150ms\""));
    assert!(!warned("[jobs]\nheartbeat-period = \"125ms\"") && !warned(""));
}
