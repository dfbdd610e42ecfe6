//! Why a process could not be started, in words, and the exit status that says the same.

use crate::interpreter;
use crate::slot::BUSY;
use ft_sys::spawn::{SpawnError, Step};
use nix::libc;
use std::io;
use std::path::Path;

/// A start that failed.
#[derive(Debug)]
pub struct StartError {
    /// One sentence, but for what `errno` means.
    pub what: String,
    /// What the system said; 0 when `what` says it all.
    pub errno: i32,
    /// The job's exit status, should it end with this.
    pub status: i32,
}

impl StartError {
    /// Nothing about the program: a directory, a limit, memory.
    pub fn of_system(what: String, error: &io::Error) -> StartError {
        StartError { what, errno: error.raw_os_error().unwrap_or(libc::EIO), status: 1 }
    }

    /// The program is not what it was.
    pub fn of_program(what: String) -> StartError {
        StartError { what, errno: 0, status: 126 }
    }

    /// A step on the way to the program.
    pub fn of_spawn(error: &SpawnError, program: &Path, directory: &Path) -> StartError {
        let shown = program.display();
        match error.step {
            Step::Directory => {
                Self::of_system(format!("cannot change to directory {}", directory.display()), &error.error)
            }
            Step::Prepare => Self::of_system(format!("cannot start {shown}"), &error.error),
            Step::Exec => {
                let errno = error.error.raw_os_error().unwrap_or(libc::EIO);
                let status = if errno == libc::ENOENT { 127 } else { 126 };
                match interpreter::missing(program).filter(|_| matches!(errno, libc::ENOENT | libc::EACCES)) {
                    Some(why) => StartError { what: format!("cannot execute {shown}: {why}"), errno: 0, status },
                    None => StartError { what: format!("cannot execute {shown}"), errno, status },
                }
            }
        }
    }

    /// The whole sentence, and the status.
    pub fn words(self) -> (String, i32) {
        let hint = match self.errno {
            0 => return (self.what, self.status),
            libc::ETXTBSY => format!(" for {} s, because somebody has it open for writing", BUSY.as_secs()),
            libc::EAGAIN => " (the limit of processes, `ulimit -u`, or that of the cgroup is reached)".into(),
            libc::EMFILE => " (the limit of open files, `ulimit -n`, is reached)".into(),
            _ => String::new(),
        };
        (format!("{}{hint}: {}", self.what, io::Error::from_raw_os_error(self.errno)), self.status)
    }
}
