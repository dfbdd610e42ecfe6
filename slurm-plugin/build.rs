//! For which Slurm the plugin is: that loads none that was built for another release. Without Slurm's header it is 22.05.

use std::path::PathBuf;

const HEADER: &str = "slurm/slurm_version.h";
const NAME: &str = "SLURM_VERSION_NUMBER";
const OTHERWISE: u32 = 0x16_05_00;

fn main() {
    println!("cargo::rerun-if-env-changed=SLURM_INCLUDE_DIR");
    let told = std::env::var_os("SLURM_INCLUDE_DIR").map(PathBuf::from);
    let header = told.unwrap_or_else(|| "/usr/include".into()).join(HEADER);
    println!("cargo::rerun-if-changed={}", header.display());
    let version = std::fs::read_to_string(&header).ok().and_then(|text| version(&text)).unwrap_or(OTHERWISE);
    println!("cargo::rustc-env=FT_SLURM_VERSION={version:x}");
}

/// `#define SLURM_VERSION_NUMBER 0x160508`: a byte each for year, month and number.
fn version(text: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find_map(|words| match words[..] {
        ["#define", NAME, number] => u32::from_str_radix(number.strip_prefix("0x")?, 16).ok(),
        _ => None,
    })
}
