//! What is heard, and which rooms it concerns.

pub mod askers;
pub mod clients;
pub mod diallers;
pub mod injections;
pub mod launcher;
pub mod nodes;
pub mod published;
pub mod ranks;
pub mod shepherds;
