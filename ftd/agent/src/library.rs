//! Libraries that a process has loaded.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file of the library whose name begins so, if the process has it loaded and may be looked at.
pub fn loaded(pid: i32, name: &[u8]) -> Option<PathBuf> {
    let maps = ft_sys::proc::read(&ft_sys::proc::living(pid).join("maps")).ok().flatten()?;
    find(&maps, name)
}

fn find(maps: &[u8], name: &[u8]) -> Option<PathBuf> {
    let mut paths = maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let path = &line[line.iter().position(|byte| *byte == b'/')?..];
        let file = path.rsplit(|byte| *byte == b'/').next()?;
        (file.starts_with(name) && !path.ends_with(b" (deleted)")).then(|| PathBuf::from(OsStr::from_bytes(path)))
    });
    paths.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_its_name() {
        let maps = b"7f01-7f02 r-xp 00000000 08:01 7 /a b/libpmix_tools.so.1\n7f02-7f03 rw-p 00000000 00:00 0 [heap]\n\
            7f03-7f04 r--p 00000000 08:01 9   /a b/libpmix.so.2.6.2\n7f04-7f05 r-xp 00000000 08:01 9   /a b/libpmix.so.2.6.2\n";
        assert_eq!(find(maps, b"libpmix.so"), Some(PathBuf::from("/a b/libpmix.so.2.6.2")));
        assert_eq!(find(maps, b"libmpi.so"), None);
        assert_eq!(find(b"7f03-7f04 r--p 00000000 08:01 9 /a/libpmix.so.2 (deleted)", b"libpmix.so"), None);
        assert!(loaded(std::process::id() as i32, b"libc.so").is_some());
        assert_eq!(loaded(-1, b"libc.so"), None);
    }
}
