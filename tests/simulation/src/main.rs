//! `ft-sim`: runs seeds of a profile.
fn main() {}
