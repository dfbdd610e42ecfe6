//! The scenarios in `scenarios/`; `ft-sim --scenario FILE` runs one with its history.

use ft_simulation::scenario;
use std::path::Path;

#[test]
fn every_scenario_goes_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "txt")).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scenario in {}", folder.display());
    let failed: Vec<String> = paths.iter().filter_map(|path| scenario::run(path, false).err()).collect();
    assert!(failed.is_empty(), "{} of {} scenarios failed:\n{}", failed.len(), paths.len(), failed.join("\n"));
}
