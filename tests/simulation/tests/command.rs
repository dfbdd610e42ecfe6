//! `ft-sim` refuses what it does not know: a breach whose name is misspelt would be one that nobody looks for.

use std::io::Result;
use std::process::{Command, Output};

fn ft_sim(options: &[&str]) -> Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_ft-sim")).args(options).output()
}

#[test]
fn unknown_names_are_refused() -> Result<()> {
    for (options, says) in [
        (vec!["--profile", "carsh"], "no such profile"),
        (vec!["--profile", "crash", "--breach", "LongLeas"], "no such rule"),
        (vec!["--breaches", "--breach", "LongLeas"], "no such rule"),
    ] {
        let output = ft_sim(&options)?;
        assert!(!output.status.success(), "{options:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(says), "{options:?}: {said}");
    }
    Ok(())
}

fn says(options: &[&str]) -> Result<String> {
    Ok(String::from_utf8_lossy(&ft_sim(options)?.stdout).into_owned())
}

#[test]
fn a_seed_that_is_asked_for_is_told_whole() -> Result<()> {
    let whole = says(&["--profile", "left-out", "--seed", "0"])?;
    assert!(!whole.contains('…') && whole.lines().any(|line| line.contains("-> Cas") && line.len() > 200), "{whole}");
    let broken = ["--profile", "left-out", "--seeds", "1", "--breach", "LongLease"];
    assert!(says(&broken)?.contains('…'));
    Ok(())
}

#[test]
fn a_scenario_that_goes_as_written_says_so() -> Result<()> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/node_death.txt");
    let said = says(&["--scenario", file])?;
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("node_death.txt goes as written; the job ended with 0"), "{last}");
    Ok(())
}

#[test]
fn a_breach_is_seen_and_a_rule_that_is_kept_is_not() -> Result<()> {
    let options = ["--profile", "left-out", "--seeds", "3"];
    assert!(ft_sim(&options)?.status.success());
    assert!(!ft_sim(&[&options[..], &["--breach", "LongLease"]].concat())?.status.success());
    Ok(())
}
