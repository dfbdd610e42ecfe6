//! The connection to this node's daemon, which a process of its own serves there. When that dies, or stands still, another one takes its place:
//! the daemon is dialled again, for as long as the parts wait for that.

use ft_sys::channel::{Channel, ChannelError};
use ft_sys::timescale::scaled;
use ft_wire::Role;
use ft_wire::part::{FromJobs, Image, SILENT, ToJobs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A daemon that is there answers at once.
const ANSWER: Duration = Duration::from_secs(5);
/// … and takes what it is told: one that does not is as good as dead, while the parts still wait for another one.
const SENDING: Duration = Duration::from_secs(3);
/// … also where something else has to be looked at meanwhile.
const AGAIN_ANSWER: Duration = Duration::from_secs(1);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(200);
/// Processes are not dialled at once that follow each other faster.
const SELDOM: Duration = Duration::from_secs(1);
/// So long the daemon is dialled in vain: parts that hear nothing for so long have ended what there is of the job.
pub const GONE: Duration = SILENT;
/// What answers after that, and serves nothing, is asked no more.
const LAST: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    channel: Option<Channel>,
    lost: Option<Lost>,
    /// When it was lost last.
    last: Option<Instant>,
}

/// One that is lost, in the time of the parts, which wait also where this process does not run.
#[derive(Debug)]
struct Lost {
    until: Instant,
    tries_at: Instant,
    why: String,
}

impl Connection {
    /// Dials.
    ///
    /// # Errors
    /// [`ChannelError`]: there is no daemon.
    pub fn open(path: PathBuf) -> Result<Connection, ChannelError> {
        let channel = Channel::dial(&path, Role::Launcher, ANSWER)?;
        Ok(Connection { path, channel: Some(channel), lost: None, last: None })
    }

    /// Where the daemon is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says something; nothing where the connection is lost.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn say(&mut self, message: &ToJobs) -> Result<(), ChannelError> {
        self.channel.as_mut().map_or(Ok(()), |channel| channel.send(message, &[]))
    }

    /// Asks for a job. What refuses it has closed its end by now, and what it has said is there to be read.
    pub fn launch(&mut self, request: &ToJobs, image: &Image) {
        if let Some(channel) = &mut self.channel {
            let _ = channel.send(request, &[]).and_then(|()| channel.send(image, &[]));
            channel.send_within(SENDING);
        }
    }

    /// What is there to be heard, if anything is.
    ///
    /// # Errors
    /// [`ChannelError`]: the connection is lost.
    pub fn next(&mut self) -> Result<Option<FromJobs>, ChannelError> {
        let Some(channel) = &mut self.channel else { return Ok(None) };
        Ok(channel.try_receive()?.map(|(message, _)| message))
    }

    /// Ready where there is something to be heard.
    pub fn to_read(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    /// Whether it is lost, and no other one is there.
    pub fn is_lost(&self) -> bool {
        self.channel.is_none()
    }

    /// How long it is until another one is looked for; nothing where none is.
    pub fn tries_in(&self) -> Option<Duration> {
        let lost = self.lost.as_ref().filter(|_| self.channel.is_none())?;
        Some(lost.tries_at.saturating_duration_since(Instant::now()))
    }

    /// It is lost, from now on. Who stands still at its other end ends nothing when it goes on.
    pub fn lose(&mut self, why: &str, stands_still: bool) {
        if let Some(mut channel) = self.channel.take()
            && stands_still
        {
            channel.send_within(Duration::ZERO);
            let _ = channel.send(&ToJobs::Leave, &[]);
        }
        let (now, why) = (Instant::now(), why.to_string());
        match &mut self.lost {
            // One that was dialled and has served nothing.
            Some(lost) => (lost.tries_at, lost.why) = (now + AGAIN, why),
            None => {
                // One that dies again and again is no reason to be busy.
                let pause = if self.last.is_some_and(|last| now < last + SELDOM) { AGAIN } else { Duration::ZERO };
                self.lost = Some(Lost { until: now + scaled(GONE), tries_at: now + pause, why });
            }
        }
        self.last = Some(now);
    }

    /// Dials, and says this and that. One that refuses is heard by [`next`](Self::next).
    ///
    /// # Errors
    /// One sentence's middle: all was in vain for so long that nothing is left of the job.
    pub fn resume(&mut self, message: &ToJobs, image: &Image) -> Result<(), String> {
        let dialled = Channel::dial(&self.path, Role::Launcher, AGAIN_ANSWER).and_then(|mut channel| {
            channel.send_within(SENDING);
            channel.ask(message)?;
            channel.ask(image)?;
            Ok(channel)
        });
        let Some(lost) = &mut self.lost else { return Ok(()) };
        match dialled {
            // One that serves nothing is lost again at once.
            Ok(channel) if Instant::now() < lost.until + LAST => self.channel = Some(channel),
            Ok(_) => return Err(lost.why.clone()),
            Err(error) if Instant::now() >= lost.until => {
                return Err(match error {
                    // The path is said with it.
                    ChannelError::Dial { error, .. } => error.to_string(),
                    error => error.to_string(),
                });
            }
            Err(_) => lost.tries_at = Instant::now() + AGAIN,
        }
        Ok(())
    }

    /// Another process serves it, as parts can tell.
    pub fn is_back(&mut self) {
        self.lost = None;
    }
}
