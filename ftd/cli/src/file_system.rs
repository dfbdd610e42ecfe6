//! On what a directory lies.

use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What has no other home than memory. (hugetlbfs is memory too, but nobody can write files or bind sockets there.)
const MEMORY: [FsType; 2] = [TMPFS_MAGIC, FsType(0x8584_58f6)];

/// The kind of file system that the directory is on, unless it is in memory.
///
/// # Errors
/// When nobody can say.
pub fn not_in_memory(directory: &Path) -> io::Result<Option<String>> {
    let kind = statfs(directory)?.filesystem_type();
    if MEMORY.contains(&kind) {
        return Ok(None);
    }
    let device = std::fs::metadata(directory)?.dev();
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    Ok(Some(name(&mounts, device).unwrap_or_else(|| format!("a file system of type {:#x}", kind.0))))
}

/// The kind of the file system with this device number, as `/proc/self/mountinfo` names it.
fn name(mounts: &[u8], device: u64) -> Option<String> {
    let device = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        fields.nth(2).filter(|field| *field == device.as_bytes())?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(String::from_utf8_lossy(kind).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_everything_else() {
        assert_eq!(not_in_memory(Path::new("/dev/shm")).unwrap(), None);
        assert_eq!(not_in_memory(Path::new("/proc")).unwrap(), Some("proc".to_string()));
        assert!(not_in_memory(Path::new("/no/such")).is_err());
    }

    #[test]
    fn kinds_are_read_from_the_list_of_mounts() {
        let mounts =
            b"24 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n31 24 0:52 / /home\xff rw - nfs4 server:/home rw\n";
        assert_eq!(name(mounts, nix::sys::stat::makedev(0, 52)), Some("nfs4".to_string()));
        assert_eq!(name(mounts, nix::sys::stat::makedev(8, 1)), Some("ext4".to_string()));
        assert_eq!(name(mounts, nix::sys::stat::makedev(8, 2)), None);
    }
}
