//! What a process has open for writing, as `/proc` shows it.

use crate::proc;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inodes of all that the process may write to, by descriptors and shared mappings. Inodes of several file systems are
/// not told apart: asking a descriptor for its own would wait for a file server that is away.
pub fn open_for_writing(pid: i32) -> BTreeSet<u64> {
    let mut inodes = mapped(&proc::read(&proc::of(pid).join("maps")).ok().flatten().unwrap_or_default());
    inodes.extend(descriptors_for_writing(pid).into_iter().flatten());
    inodes
}

/// The same of descriptors alone; `None` when it has none at all any more: it is gone, or at the point of its end where it
/// closes them.
pub fn descriptors_for_writing(pid: i32) -> Option<BTreeSet<u64>> {
    let directory = proc::of(pid);
    let entries: Vec<_> = std::fs::read_dir(directory.join("fdinfo")).ok()?.flatten().collect();
    let mut inodes = BTreeSet::new();
    let mut any = false;
    for entry in entries {
        if let Ok(Some(info)) = proc::read(&entry.path()) {
            any = true;
            inodes.extend(written(&info, || of_link(&directory.join("fd").join(entry.file_name()))));
        }
    }
    any.then_some(inodes)
}

/// The inode if a descriptor with this `fdinfo` writes.
fn written(info: &[u8], ask: impl FnOnce() -> Option<u64>) -> Option<u64> {
    let text = std::str::from_utf8(info).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    if flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_PATH != 0 {
        return None;
    }
    // Linux 5.14 and later tell it.
    field("ino:").map_or_else(ask, |inode| inode.parse().ok())
}

fn of_link(link: &Path) -> Option<u64> {
    Some(std::fs::metadata(link).ok()?.ino())
}

/// Of `maps`, in which a path may be no text: the inodes that are mapped shared and can be written.
fn mapped(maps: &[u8]) -> BTreeSet<u64> {
    let inode = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let rights = fields.nth(1)?;
        (rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b's')).then_some(())?;
        std::str::from_utf8(fields.nth(2)?).ok()?.parse().ok()
    };
    maps.split(|byte| *byte == b'\n').filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    #[test]
    fn descriptors_and_mappings_that_write_are_found_and_readers_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, [0; 4096]).unwrap();
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        };
        let (held, mapped, closed) = (file("held"), file("mapped"), file("closed"));
        let inode = |file: &File| file.metadata().unwrap().ino();
        let inodes = [&held, &mapped, &closed].map(inode);
        let map = crate::memory::SharedMap::map(&mapped, 0, 4096).unwrap();
        drop((mapped, closed));
        let reader = File::open(directory.path().join("closed")).unwrap();
        let found = open_for_writing(std::process::id() as i32);
        assert_eq!(inodes.map(|inode| found.contains(&inode)), [true, true, false]);
        drop((map, held, reader));
        assert!(!open_for_writing(std::process::id() as i32).contains(&inodes[1]));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while !crate::death::is_past_user_code(pid).unwrap() || crate::post_mortem::zombie(pid).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(descriptors_for_writing(pid), None, "a dead process has none");
        child.wait().unwrap();
    }

    #[test]
    fn an_older_kernel_is_asked_for_the_inode() {
        let info = |flags: &str, more: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t25\n{more}");
        let written = |info: String| written(info.as_bytes(), || Some(7));
        assert_eq!(written(info("0100001", "ino:\t12\n")), Some(12));
        assert_eq!(written(info("0100002", "")), Some(7));
        assert_eq!(written(info("0100000", "ino:\t12\n")), None);
    }
}
