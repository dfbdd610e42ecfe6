//! Who is led here to an agent from another node: each in a process of its own, which nobody counts but this. So many at a time of one user,
//! each with a numbered file that its process holds locked.

use crate::config::Config;
use crate::lock::{Lock, LockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Most are soon done: whoever finds no place waits as long …
const WAITS: Duration = Duration::from_secs(2);
/// … and looks again so often.
const LOOKS: Duration = Duration::from_millis(50);

/// One of them, as long as it is led. A process has one at most: its own locks keep it from no file.
#[derive(Debug)]
pub struct Asker {
    path: PathBuf,
    _lock: Lock,
}

impl Asker {
    /// One more of a user's: as many as may dial the control socket here. Root, who mends jobs, is not counted.
    ///
    /// # Errors
    /// One sentence.
    pub async fn enter(config: &Config, uid: u32) -> Result<Option<Asker>, String> {
        if uid == 0 {
            return Ok(None);
        }
        let (askers, most) = (config.socket().with_file_name("askers"), config.connections_per_user());
        let until = Instant::now() + WAITS;
        loop {
            match place(&askers, uid, most) {
                Ok(Some(asker)) => return Ok(Some(asker)),
                Ok(None) if Instant::now() < until => tokio::time::sleep(LOOKS).await,
                Ok(None) => {
                    return Err(format!(
                        "user {uid} asks from other nodes {} already, and no more are allowed: try again when some are done, or \
                         ask the administrator to raise control.connections-per-user",
                        ftd_core::times(most as u64)
                    ));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // Who locks a file that is gone takes another one.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One that nobody has; `None` when there is none.
fn place(askers: &Path, uid: u32, most: usize) -> Result<Option<Asker>, LockError> {
    let made = std::fs::create_dir(askers).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    made.map_err(|error| LockError::Io { path: askers.into(), error })?;
    for number in 0..most {
        let path = askers.join(format!("{uid}.{number}"));
        match Lock::take(&path) {
            Ok(lock) => return Ok(Some(Asker { path, _lock: lock })),
            Err(LockError::Taken(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock;
    use std::process::{Child, Command, Stdio};

    const PLACE: &str = "FT_TEST_ASKERS";

    /// Locks of one process keep only others out: this test is those others, too, as long as its input lasts.
    #[test]
    fn a_user_has_so_many_places_and_takes_nobody_elses() {
        if let Some(askers) = std::env::var_os(PLACE) {
            let _asker = place(Path::new(&askers), 7, 2).unwrap().unwrap();
            io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
            return;
        }
        let askers = tempfile::tempdir().unwrap();
        let other = |number: u32| -> Child {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "askers::tests::a_user_has_so_many_places_and_takes_nobody_elses"]);
            let started = command.env(PLACE, askers.path()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while !lock::is_taken(&askers.path().join(format!("7.{number}"))) {
                assert!(std::time::Instant::now() < until, "no lock is taken");
                std::thread::sleep(Duration::from_millis(5));
            }
            started.unwrap()
        };
        let mut others = [other(0), other(1)];
        assert!(place(askers.path(), 7, 2).unwrap().is_none());
        assert!(place(askers.path(), 7, 3).unwrap().is_some() && place(askers.path(), 8, 2).unwrap().is_some());
        others[0].kill().unwrap();
        others[0].wait().unwrap();
        assert!(place(askers.path(), 7, 2).unwrap().is_some(), "the place of one that was killed");
        drop(others[1].stdin.take());
        assert!(others[1].wait().unwrap().success() && std::fs::read_dir(askers.path()).unwrap().next().is_none());
    }
}
