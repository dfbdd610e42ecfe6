//! Permissions that this user's files and directories lack: a program may have taken them away, from itself as from ftd.

use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What was permitted for a while; dropped, everything has the permissions again that it had, wherever it is by then.
#[derive(Debug, Default)]
pub struct Unlocked(Vec<(File, u32)>);

impl Unlocked {
    /// All directories of this user's that are this one or below it.
    pub fn permit_all(&mut self, directory: &Path) {
        let mut directories = vec![directory.to_path_buf()];
        while let Some(directory) = directories.pop() {
            self.permit(&directory, 0o700);
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            directories.extend(below.map(|entry| entry.path()));
        }
    }

    /// It stays so.
    pub fn for_good(mut self) {
        self.0.clear();
    }

    /// Gives this file or directory these permissions for its owner, if it lacks one and belongs to this user. No link is
    /// followed.
    pub fn permit(&mut self, path: &Path, wanted: u32) {
        let Ok(metadata) = path.symlink_metadata() else { return };
        let mode = metadata.mode() & 0o7777;
        let ours = metadata.uid() == nix::unistd::geteuid().as_raw() && !metadata.is_symlink();
        if mode & wanted == wanted || !ours {
            return;
        }
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let handle = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let same = |handle: &File| handle.metadata().is_ok_and(|now| now.ino() == metadata.ino());
        // What cannot be changed shows in what is wanted of it.
        if let Ok(handle) = handle
            && same(&handle)
            && set(&handle, mode | wanted)
        {
            self.0.push((handle, mode));
        }
    }
}

fn set(handle: &File, mode: u32) -> bool {
    let path = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    std::fs::set_permissions(path, Permissions::from_mode(mode)).is_ok()
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

    #[test]
    fn permissions_are_given_for_a_while_and_come_back_also_after_a_move() {
        let root = tempfile::tempdir().unwrap();
        let (locked, moved) = (root.path().join("locked"), root.path().join("moved"));
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o7777;
        std::fs::create_dir_all(locked.join("deep")).unwrap();
        std::os::unix::fs::symlink(locked.join("deep"), root.path().join("link")).unwrap();
        std::fs::set_permissions(locked.join("deep"), Permissions::from_mode(0o0)).unwrap();
        std::fs::set_permissions(&locked, Permissions::from_mode(0o1555)).unwrap();
        let mut unlocked = Unlocked::default();
        unlocked.permit(&root.path().join("link"), 0o700);
        unlocked.permit_all(root.path());
        assert_eq!((mode(&locked), mode(&locked.join("deep"))), (0o1755, 0o700));
        std::fs::rename(&locked, &moved).unwrap();
        drop(unlocked);
        assert_eq!(mode(&moved), 0o1555);
        let mut unlocked = Unlocked::default();
        unlocked.permit_all(&moved);
        unlocked.for_good();
        assert_eq!((mode(&moved), mode(&moved.join("deep"))), (0o1755, 0o700));
    }
}
