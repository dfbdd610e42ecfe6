//! Permissions that this user's files and directories lack: a program may have taken them away, from itself as from ftd.

use crate::beneath::path_of;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// What was permitted for a while; dropped, everything has the permissions again that it had, wherever it is by then.
#[derive(Debug, Default)]
pub struct Unlocked(Vec<(File, u32)>);

impl Unlocked {
    /// Gives what this descriptor (`O_PATH`) names these permissions for its owner, if it lacks one and belongs to this user.
    pub fn permit(&mut self, handle: &File, wanted: u32) {
        // What cannot be changed shows in what is wanted of it.
        if let Some(mode) = unlock(handle, wanted)
            && let Ok(handle) = handle.try_clone()
        {
            self.0.push((handle, mode));
        }
    }
}

/// The same for good. Returns what it had before, if that was changed.
pub fn unlock(handle: &File, wanted: u32) -> Option<u32> {
    let metadata = handle.metadata().ok()?;
    let mode = metadata.mode() & 0o7777;
    let ours = metadata.uid() == nix::unistd::geteuid().as_raw() && !metadata.is_symlink();
    (mode & wanted != wanted && ours && set(handle, mode | wanted)).then_some(mode)
}

fn set(handle: &File, mode: u32) -> bool {
    std::fs::set_permissions(path_of(handle), Permissions::from_mode(mode)).is_ok()
}

impl Drop for Unlocked {
    fn drop(&mut self) {
        for (handle, mode) in self.0.drain(..).rev() {
            // It was this user's a moment ago.
            let _ = set(&handle, mode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beneath::Beneath;
    use std::path::Path;

    #[test]
    fn permissions_are_given_for_a_while_and_come_back_also_after_a_move() {
        let root = tempfile::tempdir().unwrap();
        let (locked, moved) = (root.path().join("locked"), root.path().join("moved"));
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o7777;
        std::fs::create_dir_all(locked.join("deep")).unwrap();
        std::os::unix::fs::symlink(locked.join("deep"), root.path().join("link")).unwrap();
        std::fs::set_permissions(locked.join("deep"), Permissions::from_mode(0o0)).unwrap();
        std::fs::set_permissions(&locked, Permissions::from_mode(0o1555)).unwrap();
        let beneath = Beneath::open(root.path()).unwrap();
        let mut unlocked = Unlocked::default();
        unlocked.permit(&beneath.handle(&root.path().join("link")).unwrap(), 0o700);
        assert_eq!(mode(&locked.join("deep")), 0);
        for path in [&locked, &locked.join("deep")] {
            unlocked.permit(&beneath.handle(path).unwrap(), 0o700);
        }
        assert_eq!((mode(&locked), mode(&locked.join("deep"))), (0o1755, 0o700));
        std::fs::rename(&locked, &moved).unwrap();
        drop(unlocked);
        assert_eq!(mode(&moved), 0o1555);
        assert_eq!(unlock(&beneath.handle(&moved).unwrap(), 0o700), Some(0o1555));
        assert_eq!((mode(&moved), mode(&moved.join("deep"))), (0o1755, 0o000));
    }
}
