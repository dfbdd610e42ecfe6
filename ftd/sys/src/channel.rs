//! Stream sockets that carry [`ft_wire`] frames and, those of unix, descriptors.
//!
//! [`Channel`] blocks, for the small programs in and above a rank. [`recv_with_fds`] and [`send_with_fds`] are the system
//! calls below it, for those that wait by other means.

use crate::job_time::Awake;
use ft_wire::{FrameBuffer, FrameError, PREAMBLE_LEN, Preamble, Role, decode, encode};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most descriptors that travel with one frame; the kernel's own limit is 253.
const MAX_FDS: usize = 253;
/// Longest wait for room in a peer's buffer. A peer that lives reads within milliseconds.
const SENDING: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(10) };

/// Why a message did not pass.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Nobody listens there.
    #[error("{}: {error}", path.display())]
    Dial {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The peer closed the connection.
    #[error("the connection was closed by the peer")]
    Closed,
    /// No message came in time, or none was taken.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The peer sent what is no message, or is of another release.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
}

impl ChannelError {
    /// What to look at, where a daemon is asked and does not answer.
    pub fn of_daemon(&self) -> &'static str {
        match self {
            ChannelError::TimedOut(_) => "; it may be stopped, or the machine too busy (systemctl status ftd)",
            _ => "",
        }
    }
}

/// A connection that blocks.
#[derive(Debug)]
pub struct Channel {
    stream: OwnedFd,
    frames: FrameBuffer,
    fds: VecDeque<OwnedFd>,
    /// A message was sent in part: what followed it would be taken for the rest of it.
    cut: bool,
    /// So long is waited for room.
    sending: Duration,
}

impl Channel {
    /// Connects to `path` and exchanges preambles.
    ///
    /// # Errors
    /// [`ChannelError::Dial`] when nobody listens; [`ChannelError::Frame`] when the peer is of another release;
    /// [`ChannelError::TimedOut`].
    pub fn dial(path: &Path, role: Role, timeout: Duration) -> Result<Channel, ChannelError> {
        let stream =
            UnixStream::connect(path).map_err(|error| ChannelError::Dial { path: path.to_path_buf(), error })?;
        let mut channel = Channel::from_stream(stream);
        channel.exchange(role, timeout)?;
        Ok(channel)
    }

    /// Takes a connected stream, an inherited socket pair for example, or one of TCP, with which no descriptors travel. Nothing is sent yet.
    pub fn from_stream(stream: impl Into<OwnedFd>) -> Channel {
        Channel {
            stream: stream.into(),
            frames: FrameBuffer::default(),
            fds: VecDeque::new(),
            cut: false,
            sending: SENDING,
        }
    }

    /// Sends this side's preamble and reads the peer's. Who refuses at once may have closed its end before: what it has said is there
    /// to be read, and nothing can be sent.
    ///
    /// # Errors
    /// As [`dial`](Self::dial).
    pub fn exchange(&mut self, role: Role, timeout: Duration) -> Result<Preamble, ChannelError> {
        or_read(self.greet(role))?;
        self.greeting(timeout)
    }

    /// Sends this side's preamble: the first half of [`exchange`](Self::exchange), for those that wait for the answer by
    /// other means.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] when the peer is gone.
    pub fn greet(&mut self, role: Role) -> Result<(), ChannelError> {
        self.write_all(&Preamble::ours(role).to_bytes(), &[])
    }

    /// Reads the peer's preamble: the other half.
    ///
    /// # Errors
    /// As [`dial`](Self::dial).
    pub fn greeting(&mut self, timeout: Duration) -> Result<Preamble, ChannelError> {
        let mut patience = Patience::new(timeout);
        let mut bytes = [0; PREAMBLE_LEN];
        let mut have = 0;
        while have < bytes.len() {
            self.wait(PollFlags::POLLIN, Some(&mut patience))?;
            have += self.read(&mut bytes[have..])?;
        }
        Ok(Preamble::from_bytes(&bytes)?)
    }

    /// Sends one message; waits for room in the peer's buffer, 10 s at the most where nothing else was said ([`send_within`](Self::send_within)).
    ///
    /// # Errors
    /// [`ChannelError::Closed`] when the peer is gone, [`ChannelError::TimedOut`] when it does not read; either ends this
    /// direction of the connection: nothing is sent any more.
    pub fn send<M: Serialize>(&mut self, message: &M, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        if fds.len() > MAX_FDS {
            return Err(FrameError::Malformed(format!("{} descriptors with one message", fds.len())).into());
        }
        let frame = encode(message, fds.len() as u8)?;
        self.write_all(&frame, fds)
    }

    /// Sends what is answered. Who refuses may have closed its end by now, which is no error here: what it has said is there to be read.
    ///
    /// # Errors
    /// As [`send`](Self::send), but for [`ChannelError::Closed`], which [`receive`](Self::receive) says when all was read.
    pub fn ask<M: Serialize>(&mut self, question: &M) -> Result<(), ChannelError> {
        or_read(self.send(question, &[]))
    }

    /// The next message with its descriptors; `None` waits for ever.
    ///
    /// # Errors
    /// [`ChannelError::TimedOut`], after which the connection is still good; any other ends it.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<(M, Vec<OwnedFd>), ChannelError> {
        let mut patience = timeout.map(Patience::new);
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(message);
            }
            self.wait(PollFlags::POLLIN, patience.as_mut())?;
            self.fill()?;
        }
    }

    /// A message that is here already.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] when the peer is gone and all it sent was read.
    pub fn try_receive<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Vec<OwnedFd>)>, ChannelError> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(Some(message));
            }
            if !self.fill_now()? {
                return Ok(None);
            }
        }
    }

    /// Another descriptor of the connection, to write to.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.stream.try_clone()
    }

    /// From now on takes messages of at most so many bytes.
    pub fn limit(&mut self, most: usize) {
        self.frames.limit(most);
    }

    /// From now on waits only so long for room in the peer's buffer.
    pub fn send_within(&mut self, time: Duration) {
        self.sending = time;
    }

    fn buffered<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Vec<OwnedFd>)>, ChannelError> {
        let Some((body, count)) = self.frames.next_frame()? else { return Ok(None) };
        let count = usize::from(count);
        if self.fds.len() < count {
            let text = format!("{count} descriptors announced, {} came", self.fds.len());
            return Err(FrameError::Malformed(text).into());
        }
        let message = decode(&body)?;
        Ok(Some((message, self.fds.drain(..count).collect())))
    }

    fn fill(&mut self) -> Result<(), ChannelError> {
        while !self.fill_now()? {
            self.wait(PollFlags::POLLIN, None)?;
        }
        Ok(())
    }

    /// Takes in what is here; false when nothing is.
    fn fill_now(&mut self) -> Result<bool, ChannelError> {
        let mut bytes = [0; 4 << 10];
        let count = self.read_now(&mut bytes)?;
        self.frames.push(&bytes[..count.unwrap_or(0)]);
        Ok(count.is_some())
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, ChannelError> {
        loop {
            match self.read_now(into)? {
                Some(count) => return Ok(count),
                None => self.wait(PollFlags::POLLIN, None)?,
            }
        }
    }

    fn read_now(&mut self, into: &mut [u8]) -> Result<Option<usize>, ChannelError> {
        loop {
            match recv_with_fds(self.stream.as_fd(), into, &mut self.fds) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_all(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        if self.cut {
            return Err(ChannelError::Closed);
        }
        let written = self.write(bytes, fds);
        if written.is_err() {
            self.cut = true;
            // A peer that reads again finds the end behind what it was sent.
            let _ = shutdown(&self.stream, Shutdown::Write);
        }
        written
    }

    fn write(&self, mut bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let mut fds = fds;
        let mut patience = Patience::new(self.sending);
        while !bytes.is_empty() {
            match send_with_fds(self.stream.as_fd(), bytes, fds) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    fds = &[];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(PollFlags::POLLOUT, Some(&mut patience))?;
                }
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Err(ChannelError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags, mut patience: Option<&mut Patience>) -> Result<(), ChannelError> {
        loop {
            let piece = patience.as_mut().map(|patience| patience.waited.piece(patience.most));
            if self.ready(what, piece)? {
                return Ok(());
            }
            if let Some(patience) = patience.as_mut().filter(|_| piece == Some(Duration::ZERO)) {
                return Err(ChannelError::TimedOut(patience.most));
            }
        }
    }

    fn ready(&self, what: PollFlags, left: Option<Duration>) -> Result<bool, ChannelError> {
        let timeout = left.map_or(PollTimeout::NONE, crate::patience::at_most);
        match poll(&mut [PollFd::new(self.stream.as_fd(), what)], timeout) {
            Ok(count) => Ok(count > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}

/// Who cannot write any more can still read.
fn or_read(written: Result<(), ChannelError>) -> Result<(), ChannelError> {
    match written {
        Err(ChannelError::Closed) => Ok(()),
        written => written,
    }
}

/// How long a peer is waited for: while this process does not run, the peer may not run either.
#[derive(Debug)]
struct Patience {
    most: Duration,
    waited: Awake,
}

impl Patience {
    fn new(most: Duration) -> Patience {
        Patience { most, waited: Awake::begin() }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// One `recvmsg` that does not wait: returns the number of bytes, 0 at the end, and appends descriptors that came along
/// (close-on-exec).
///
/// # Errors
/// As `recvmsg`; `ENOBUFS` when descriptors were lost because this process has too many open: those that came are closed.
/// `InvalidData` when more lie in `fds` than an honest peer's frames can have brought.
pub fn recv_with_fds(socket: BorrowedFd<'_>, into: &mut [u8], fds: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    // Closes what is not taken out of it.
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message =
        recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)?;
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    // One frame's may wait for the rest of its bytes while those of the next come.
    if fds.len() > 2 * MAX_FDS {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("{} descriptors came without frames", fds.len())));
    }
    Ok(message.bytes)
}

/// One `sendmsg` that neither waits nor raises SIGPIPE: returns the number of bytes taken. The descriptors go with the first byte.
///
/// # Errors
/// As `sendmsg`; `InvalidInput` for more than 253 descriptors.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::from_stream(a), Channel::from_stream(b))
    }

    #[test]
    fn a_peer_that_does_not_read_is_an_error() {
        let (mut a, _b) = pair();
        let text = "x".repeat(10_000);
        let error = (0..10_000).find_map(|_| a.send(&text, &[]).err()).unwrap();
        assert!(matches!(error, ChannelError::TimedOut(_)), "{error}");
    }

    #[test]
    fn nothing_follows_a_message_that_was_sent_in_part() {
        let (mut a, mut b) = pair();
        let text = "x".repeat(10_000);
        let sent = (0..10_000).take_while(|_| a.send(&text, &[]).is_ok()).count();
        for _ in 0..sent {
            assert_eq!(b.receive::<String>(Some(Duration::from_secs(5))).unwrap().0, text);
        }
        // There is room again.
        assert!(matches!(a.send(&"y", &[]), Err(ChannelError::Closed)));
        assert!(matches!(b.receive::<String>(Some(Duration::from_secs(5))), Err(ChannelError::Closed)));
        b.send(&"still", &[]).unwrap();
        assert_eq!(a.receive::<String>(Some(Duration::from_secs(5))).unwrap().0, "still");
    }

    #[test]
    fn descriptors_arrive_with_their_own_frame() {
        let (mut a, mut b) = pair();
        let file = |text: &str| {
            let mut file = std::fs::File::from(crate::memory::create_memfd("t", 0).unwrap());
            file.write_all(text.as_bytes()).unwrap();
            file
        };
        let (one, two) = (file("one"), file("two"));
        a.send(&1u32, &[]).unwrap();
        a.send(&2u32, &[one.as_fd()]).unwrap();
        a.send(&3u32, &[two.as_fd(), one.as_fd()]).unwrap();
        let mut texts = Vec::new();
        for expected in 1..=3u32 {
            let (number, fds) = b.receive::<u32>(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(number, expected);
            for fd in fds {
                let (mut file, mut text) = (std::fs::File::from(fd), String::new());
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_string(&mut text).unwrap();
                texts.push((number, text));
            }
        }
        assert_eq!(texts, [(2, "one".into()), (3, "two".into()), (3, "one".into())]);
    }

    /// In a child, whose limit of descriptors cuts the control message: what came is closed, and the loss is an error.
    #[test]
    fn a_message_that_is_cut_leaks_no_descriptor() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send_with_fds(a.as_fd(), b"x", &[file.as_fd(); 8]).unwrap();
        let open =
            || (0..256).filter(|fd| nix::fcntl::fcntl(borrow(*fd), nix::fcntl::FcntlArg::F_GETFD).is_ok()).count();
        // SAFETY: the child makes its checks and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let before = open();
            let free = (3..).find(|fd| nix::fcntl::fcntl(borrow(*fd), nix::fcntl::FcntlArg::F_GETFD).is_err());
            let limit = free.unwrap_or(3) as u64 + 4;
            let set = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, limit, limit);
            let mut fds = VecDeque::new();
            let cut =
                recv_with_fds(b.as_fd(), &mut [0; 8], &mut fds).is_err_and(|e| e.raw_os_error() == Some(libc::ENOBUFS));
            let passed = set.is_ok() && cut && fds.is_empty() && open() == before;
            // SAFETY: as above.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) };
        }
        assert_eq!(crate::wait::wait_for(pid).unwrap().code(), Some(0));
    }

    fn borrow(fd: i32) -> BorrowedFd<'static> {
        // SAFETY: only asked whether it is open.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    #[test]
    fn descriptors_without_frames_are_refused() {
        let (a, mut b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..3 {
            send_with_fds(a.as_fd(), &[0], &[file.as_fd(); 200]).unwrap();
        }
        let error = (0..3).find_map(|_| b.receive::<u32>(Some(Duration::from_millis(50))).err()).unwrap();
        assert!(matches!(error, ChannelError::Io(_)), "{error}");
    }

    #[test]
    fn many_megabytes_pass() {
        let (mut a, mut b) = pair();
        let big: Vec<u8> = (0..9_000_000u32).map(|n| n as u8).collect();
        let sent = big.clone();
        let sender = std::thread::spawn(move || a.send(&sent, &[]).map(|()| a));
        assert_eq!(b.receive::<Vec<u8>>(Some(Duration::from_secs(20))).unwrap().0, big);
        sender.join().unwrap().unwrap();
    }

    #[test]
    fn silence_and_death_of_the_peer_are_told_apart() {
        let (mut a, b) = pair();
        assert!(matches!(a.receive::<u32>(Some(Duration::from_millis(20))), Err(ChannelError::TimedOut(_))));
        assert!(a.try_receive::<u32>().unwrap().is_none());
        drop(b);
        assert!(matches!(a.receive::<u32>(None), Err(ChannelError::Closed)));
        assert!(matches!(a.send(&1u32, &[]), Err(ChannelError::Closed)));
    }

    #[test]
    fn what_a_peer_says_that_refuses_at_once_is_heard() {
        let (mut a, mut b) = pair();
        b.greet(Role::Daemon).unwrap();
        b.send(&"no", &[]).unwrap();
        drop(b);
        assert_eq!(a.exchange(Role::Launcher, Duration::from_secs(5)).unwrap().role, Role::Daemon);
        a.ask(&1u32).unwrap();
        assert_eq!(a.receive::<String>(Some(Duration::from_secs(5))).unwrap().0, "no");
        a.ask(&2u32).unwrap();
        assert!(matches!(a.receive::<String>(None), Err(ChannelError::Closed)));
        let (mut silent, b) = pair();
        drop(b);
        assert!(matches!(silent.exchange(Role::Launcher, Duration::from_secs(5)), Err(ChannelError::Closed)));
    }

    #[test]
    fn another_release_is_told_by_both_numbers() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut bytes = Preamble::ours(Role::Agent).to_bytes();
        bytes[8] += 2;
        (&b).write_all(&bytes).unwrap();
        let error = Channel::from_stream(a).exchange(Role::Client, Duration::from_secs(1)).unwrap_err();
        let theirs = format!("protocol version {}", ft_wire::VERSION + 2);
        assert!(error.to_string().contains(&theirs), "{error}");
    }
}
