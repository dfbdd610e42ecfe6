//! That a node has had a part of a step whose job's script runs elsewhere: on this node's disk, for the daemon may be started anew meanwhile.

use crate::places::Places;
use crate::state::State;
use ft_wire::part::{join, split};
use ft_wire::step::BATCH;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How such a file begins, whose words are those of this release.
const FORMAT: &str = "1";
/// Of a task's environment, what Slurm's commands and ftd itself go by.
const KEPT: [&str; 3] = ["PATH=", "SLURM_CONF=", "SLURM_RESTART_COUNT="];

/// A job, and where its script is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Slurm's number of it.
    pub job: u32,
    /// The number of this node in the step: the nodes act one after the other.
    pub turn: u32,
    /// Whose it is.
    pub uid: u32,
    /// That user's name.
    pub user: String,
    /// ftd's name of the script's node.
    pub node: String,
    /// The environment of who asks Slurm for it.
    pub env: Vec<u8>,
}

/// A part of a step of this job's has begun here, in a task with this environment: notes it, if its script is on another node. Where the
/// machine that a script is on is no node of ftd's nobody can say whether it is there.
pub async fn note(
    state: Arc<State>,
    places: Places,
    (job, turn): (u32, u32),
    (uid, user): (u32, String),
    env: Vec<u8>,
) {
    let Some(machine) = machine_of(&env) else { return };
    if machine == state.config().host() {
        return;
    }
    let node = match places.find(&machine).await {
        Ok(record) if record.host == machine => Some(record.name),
        _ => {
            let all = places.all().await.unwrap_or_default();
            let mut named = all.into_iter().filter(|record| record.host == machine).map(|record| record.name);
            named.next().filter(|_| named.next().is_none())
        }
    };
    let Some(node) = node else {
        tracing::info!(job, machine, "the script of this job of Slurm's is on no node of ftd's: nobody watches it");
        return;
    };
    let note = Note { job, turn, uid, user, node, env: kept(&env) };
    let written = tokio::task::spawn_blocking(move || note.write(&state.config().state())).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(%error, job, "should the node of this job's script die between two steps nobody ends the job");
    }
}

/// What the machine calls itself where the script runs, if there is one.
fn machine_of(env: &[u8]) -> Option<String> {
    let batch = split(env).find_map(|word| word.strip_prefix(BATCH.as_bytes())?.strip_prefix(b"="))?;
    let (_, machine) = std::str::from_utf8(batch).ok()?.split_once(' ')?;
    Some(machine.into())
}

/// What of it is of use later.
fn kept(env: &[u8]) -> Vec<u8> {
    let is_kept = |word: &&[u8]| {
        KEPT.iter().any(|name| word.starts_with(name.as_bytes()))
            || word.starts_with(BATCH.as_bytes())
            || word.starts_with(b"FT_GATE_DIR=")
            || word.starts_with(b"FT_TEST_")
    };
    join(split(env).filter(is_kept).map(<[u8]>::to_vec))
}

fn directory(state: &Path) -> PathBuf {
    state.join("scripts")
}

impl Note {
    /// Those of a daemon's `state`.
    pub fn all(state: &Path) -> Vec<Note> {
        let files = std::fs::read_dir(directory(state)).into_iter().flatten().flatten();
        files.filter_map(|file| Note::read(&file.path())).collect()
    }

    fn read(path: &Path) -> Option<Note> {
        let job = path.file_name()?.to_str()?.parse().ok()?;
        let bytes = std::fs::read(path).ok()?;
        let mut words = split(&bytes).map(|word| std::str::from_utf8(word).ok());
        let mut next = || words.next().flatten();
        if next()? != FORMAT {
            return None;
        }
        let (turn, uid) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (user, node) = (next()?.to_string(), next()?.to_string());
        Some(Note { job, turn, uid, user, node, env: join(split(&bytes).skip(5).map(<[u8]>::to_vec)) })
    }

    fn bytes(&self) -> Vec<u8> {
        let Note { turn, uid, user, node, env, .. } = self;
        let words = [FORMAT, &turn.to_string(), &uid.to_string(), user, node].map(|word| word.as_bytes().to_vec());
        [join(words), env.clone()].concat()
    }

    fn write(&self, state: &Path) -> std::io::Result<()> {
        let directory = directory(state);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let draft = directory.join(format!(".{}.{}", self.job, std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&self.bytes())?;
        // Whoever reads it finds all of it. After a loss of power it may be gone: this node's own steps are then, too.
        std::fs::rename(&draft, directory.join(self.job.to_string()))
    }

    /// The job is over. What was noted of one that has begun anew stays.
    pub fn strike(&self, state: &Path) {
        let path = directory(state).join(self.job.to_string());
        if Note::read(&path).as_ref() == Some(self) {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(words: &[&str]) -> Vec<u8> {
        join(words.iter().map(|word| word.as_bytes().to_vec()))
    }

    #[test]
    fn a_note_is_what_it_was_and_goes_alone() {
        let state = tempfile::tempdir().unwrap();
        let words = ["PATH=/a:/b", "SLURM_CONF=/c", "SLURM_FT_STEP_BATCH=n1 m1", "HOME=/h", "SLURM_FT_STEP=secret"];
        let all = env(&words);
        assert_eq!((machine_of(&all).as_deref(), kept(&all)), (Some("m1"), env(&words[..3])));
        assert_eq!(machine_of(&env(&["SLURM_FT_STEP_BATCH=", "A=n m"])), None);
        let note = Note { job: 7, turn: 2, uid: 1000, user: "u".into(), node: "m1".into(), env: kept(&all) };
        note.write(state.path()).unwrap();
        std::fs::write(state.path().join("scripts/8"), "2\0what a later release writes\0").unwrap();
        std::fs::write(state.path().join("scripts/.9.1"), note.bytes()).unwrap();
        assert_eq!(Note::all(state.path()), std::slice::from_ref(&note));
        let again = Note { env: env(&["SLURM_RESTART_COUNT=1"]), ..note.clone() };
        again.write(state.path()).unwrap();
        note.strike(state.path());
        assert_eq!(Note::all(state.path()), std::slice::from_ref(&again));
        again.strike(state.path());
        assert_eq!(Note::all(state.path()), []);
    }
}
