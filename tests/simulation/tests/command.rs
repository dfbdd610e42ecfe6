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

#[test]
fn a_breach_is_seen_and_a_rule_that_is_kept_is_not() -> Result<()> {
    let options = ["--profile", "left-out", "--seeds", "3"];
    assert!(ft_sim(&options)?.status.success());
    assert!(!ft_sim(&[&options[..], &["--breach", "LongLease"]].concat())?.status.success());
    Ok(())
}
