//! ftd's SPANK plugin: gives srun, sbatch and salloc the option `--ft` and its companions, stands a front process in the place of an srun that
//! has it, and puts a shepherd before the program of each task of such a step. Without that option it changes nothing.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.

// Outside of Slurm there is nobody who has the functions that the hooks call.
#![cfg_attr(test, allow(dead_code))]

mod allocation;
#[cfg(not(test))]
mod hooks;
mod place;
#[cfg(not(test))]
mod spank;
#[cfg(not(test))]
mod standin;
mod step;
#[cfg(not(test))]
mod task;
mod told;
mod words;
mod world;
