//! `ftd status`: asks the node's daemon how it is.

use ft_sys::span;
use ft_wire::control::{Etcd, FromDaemon, Status, ToDaemon};
use ft_wire::{FRAME_HEADER, FrameBuffer, FrameError, PREAMBLE_LEN, Preamble, Role};
use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that is there answers at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Nobody listens.
    #[error("no ftd answers on {}: {error}; does it run on this node (systemctl status ftd), and with this socket?", path.display())]
    Nobody {
        /// On which socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It does not answer.
    #[error("ftd was asked on {} and did not answer within {} s", .0.display(), PATIENCE.as_secs())]
    Silent(PathBuf),
    /// It answers what is no answer.
    #[error("what answers on {}: {error}", path.display())]
    Frame {
        /// On which socket.
        path: PathBuf,
        /// What is wrong with it.
        error: FrameError,
    },
    /// It refuses.
    #[error("{0}")]
    Refused(String),
}

/// Asks on that socket.
///
/// # Errors
/// [`StatusError`].
pub fn ask(path: &Path) -> Result<Status, StatusError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => StatusError::Silent(path.into()),
        _ => StatusError::Nobody { path: path.into(), error },
    };
    let wrong = |error| StatusError::Frame { path: path.into(), error };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let request = ft_wire::encode(&ToDaemon::Status, 0).map_err(wrong)?;
    // One that refuses has closed its end by now, and what it has said is there to be read.
    let sent = stream.write_all(&[&Preamble::ours(Role::Asker).to_bytes()[..], &request].concat());
    let mut preamble = [0; PREAMBLE_LEN];
    stream.read_exact(&mut preamble).map_err(|error| failed(sent.err().unwrap_or(error)))?;
    Preamble::from_bytes(&preamble).map_err(wrong)?;
    let mut frames = FrameBuffer::default();
    let mut bytes = [0; 4096 + FRAME_HEADER];
    loop {
        if let Some((body, _)) = frames.next_frame().map_err(wrong)? {
            return match ft_wire::decode(&body).map_err(wrong)? {
                FromDaemon::Status(status) => Ok(*status),
                FromDaemon::Refused(sentence) => Err(StatusError::Refused(sentence)),
            };
        }
        match stream.read(&mut bytes).map_err(failed)? {
            0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            count => frames.push(&bytes[..count]),
        }
    }
}

/// As a person reads it.
pub fn text(status: &Status) -> String {
    let mut text = format!("ftd {}, pid {}, for {}\n", status.version, status.pid, span::shown(status.up_ms));
    let mut line = |name: &str, words: &str| {
        let _ = writeln!(text, "{name:<8}{words}");
    };
    line("node", &format!("{} (host {}, label {}, id {})", status.node, status.host, status.label, status.id));
    line("etcd", &etcd(&status.etcd));
    line(
        "lease",
        &match &status.lease {
            None => "none".into(),
            Some(lease) => {
                format!("{:016x}, {} left of {}", lease.id, span::shown(lease.left_ms), span::shown(lease.ttl_ms))
            }
        },
    );
    line("jobs", &if status.jobs.is_empty() { "none".into() } else { status.jobs.join(", ") });
    line("config", &status.config.display().to_string());
    if let Some(sentence) = &status.refused {
        for one in sentence.lines() {
            line("", &format!("not in use as it is now: {one}"));
        }
    }
    if !status.later.is_empty() {
        line("", &format!("changed, and in use from the next start on: {}", status.later.join(", ")));
    }
    text
}

fn etcd(etcd: &Etcd) -> String {
    match etcd {
        Etcd::Unasked => "has not been asked yet".into(),
        Etcd::Answers { ago_ms } => format!("answers (last {} ago)", span::shown(*ago_ms)),
        Etcd::Away { for_ms, reason } => format!("has not answered for {}: {reason}", span::shown(*for_ms)),
    }
}
