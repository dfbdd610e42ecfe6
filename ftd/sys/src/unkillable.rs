//! Who outlives SIGKILL, and why: a sentence for the user.

use crate::individual::signal_below;
use crate::proc;
use std::fmt;

/// A living process that SIGKILL has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unkillable {
    /// Its number.
    pub pid: i32,
    /// Its name, where it can be looked at.
    pub name: Option<String>,
    /// The kernel's letter for its state, where it can be looked at.
    pub state: Option<char>,
    /// The kernel lets this user send it no signal.
    pub refused: bool,
}

impl Unkillable {
    /// A descendant of this process.
    pub fn of(pid: i32) -> Unkillable {
        let stat = proc::stat(&proc::living(pid)).ok().flatten();
        Unkillable {
            pid,
            state: stat.as_ref().map(|stat| stat.state),
            name: stat.map(|stat| stat.comm),
            refused: is_refused(pid),
        }
    }
}

/// Kills a descendant of this process; true when it belongs to somebody whose processes this one cannot kill.
pub(crate) fn is_refused(pid: i32) -> bool {
    signal_below(pid, libc::SIGKILL).is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
}

impl fmt::Display for Unkillable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        match (self.refused, self.state) {
            (true, _) => f.write_str(", which belongs to another user (EPERM)")?,
            (false, Some('D')) => f.write_str(", which is in uninterruptible sleep (state D)")?,
            (false, _) => f.write_str(", which does not end")?,
        }
        if self.name.is_none() {
            f.write_str(" and cannot be looked at (hidepid)")?;
        }
        Ok(())
    }
}

/// What is to be said of those that are left; `None` when nobody is.
pub fn sentence(left: &[Unkillable]) -> Option<String> {
    let words: Vec<String> = left.iter().map(ToString::to_string).collect();
    (!words.is_empty()).then(|| format!("still there after SIGKILL, and left: {}", words.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_named_with_the_reason() {
        let one =
            |pid, name: Option<&str>, state, refused| Unkillable { pid, name: name.map(Into::into), state, refused };
        let left = [
            one(7, Some("su"), Some('S'), true),
            one(8, None, None, true),
            one(9, Some("dd"), Some('D'), false),
            one(10, Some("x"), Some('R'), false),
        ];
        let expected = "still there after SIGKILL, and left: process 7 (su), which belongs to another user (EPERM); \
            process 8, which belongs to another user (EPERM) and cannot be looked at (hidepid); \
            process 9 (dd), which is in uninterruptible sleep (state D); process 10 (x), which does not end";
        assert_eq!(sentence(&left).unwrap(), expected);
        assert_eq!(sentence(&[]), None);
    }
}
