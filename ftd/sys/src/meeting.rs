//! Meeting the front of a step of Slurm's over TCP: each end proves to the other that it knows the step's secret, which is never sent.

use crate::channel::{Channel, ChannelError};
use ft_wire::Role;
use ft_wire::step::{Challenge, Hello, KEY, MAX_FIRST, Step, Welcome, What};
use nix::libc;
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// A front that is there answers within this time.
const ANSWER: Duration = Duration::from_secs(10);
/// An address where nobody answers is given up then.
const CONNECT: Duration = Duration::from_secs(3);
/// A peer whose machine or network is gone is noticed within this time.
const GONE: u32 = 15_000;
/// How often a connection on which nobody speaks is tried, and from when on.
const PROBE: Duration = Duration::from_secs(4);

/// Why the two do not come together.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// Nobody listens there.
    #[error("srun's front cannot be reached at {tried}: {error}")]
    Away {
        /// Where that was tried.
        tried: String,
        /// What the system said last.
        error: io::Error,
    },
    /// It says something else, or nothing.
    #[error("srun's front: {0}")]
    Link(#[from] ChannelError),
    /// It does not know the secret.
    #[error("who answers in the place of srun's front does not know the step's secret")]
    Stranger,
    /// There are no random bytes.
    #[error("the kernel has no random bytes: {0}")]
    Random(io::Error),
}

/// Random bytes of the kernel's.
///
/// # Errors
/// When it has none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// A secret for one purpose: of one nobody learns another.
pub fn derived(secret: &[u8; KEY], purpose: &'static str) -> [u8; KEY] {
    blake3::derive_key(purpose, secret)
}

/// A word that is another one for each step and each purpose, and tells nothing of the secret.
pub fn word(secret: &[u8; KEY], purpose: &'static str) -> String {
    derived(secret, purpose)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the front may be: where Slurm says that srun is, and otherwise where it says itself.
pub fn places(step: &Step) -> Vec<SocketAddr> {
    beside_srun(step).into_iter().chain(step.addresses.iter().copied()).collect()
}

/// Where Slurm says that the srun of a task or a part is, whose front has this port.
fn beside_srun(step: &Step) -> Option<SocketAddr> {
    let address: IpAddr = std::env::var("SLURM_SRUN_COMM_HOST").ok()?.parse().ok()?;
    Some(SocketAddr::new(address, step.addresses.first()?.port()))
}

/// Who proves something.
#[derive(Debug, Clone, Copy)]
enum Side {
    Front,
    Dialler,
}

fn proof(secret: &[u8; KEY], side: Side, challenge: &Challenge, hello: &Hello) -> blake3::Hash {
    let purpose = match side {
        Side::Front => "ftd step: the front",
        Side::Dialler => "ftd step: who dials the front",
    };
    let mut hasher = blake3::Hasher::new_keyed(&derived(secret, purpose));
    hasher.update(&challenge.nonce).update(&hello.nonce).update(&hello.what).finalize()
}

/// Dials the front, where Slurm says that srun is and otherwise where it says itself, and tells it what for.
///
/// # Errors
/// [`MeetingError`].
pub fn dial(step: &Step, what: &What) -> Result<Channel, MeetingError> {
    let mut channel = connect(&places(step))?;
    channel.limit(MAX_FIRST);
    channel.exchange(Role::Launcher, ANSWER)?;
    let (challenge, _): (Challenge, _) = channel.receive(Some(ANSWER))?;
    let what = ft_wire::encode(what, 0).map_err(ChannelError::from)?.split_off(ft_wire::FRAME_HEADER);
    let mut hello = Hello { nonce: random().map_err(MeetingError::Random)?, proof: [0; KEY], what };
    hello.proof = *proof(&step.secret.0, Side::Dialler, &challenge, &hello).as_bytes();
    channel.send(&hello, &[])?;
    let (welcome, _): (Welcome, _) = channel.receive(Some(ANSWER))?;
    // That comparison takes as long whatever is different.
    if proof(&step.secret.0, Side::Front, &challenge, &hello) != welcome.proof {
        return Err(MeetingError::Stranger);
    }
    channel.limit(ft_wire::MAX_BODY);
    Ok(channel)
}

fn connect(addresses: &[SocketAddr]) -> Result<Channel, MeetingError> {
    let (mut tried, mut last) = (Vec::new(), io::Error::from(io::ErrorKind::AddrNotAvailable));
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT).and_then(|stream| prepared(&stream).map(|()| stream)) {
            Ok(stream) => return Ok(Channel::from_stream(stream)),
            Err(error) => last = error,
        }
        tried.push(address.to_string());
    }
    Err(MeetingError::Away { tried: tried.join(", "), error: last })
}

/// Words are short and wait for nobody, and a machine that is gone is noticed.
///
/// # Errors
/// What the system said.
pub fn prepared(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    Ok(sockopt::set_tcp_user_timeout(stream, GONE)?)
}

/// How many bytes the other machine has not taken yet. One that is there does, whatever its processes do.
///
/// # Errors
/// It is a connection no more.
pub fn untaken(link: BorrowedFd<'_>) -> io::Result<usize> {
    // One that has been broken off has nobody at its other end.
    rustix::net::getpeername(link)?;
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int to where this points.
    let done = unsafe { libc::ioctl(link.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// The front's end of a connection that was dialled. To be [heard](Self::hear) when something comes.
#[derive(Debug)]
pub struct Guest {
    channel: Channel,
    challenge: Challenge,
    greeted: bool,
}

impl Guest {
    /// Greets who has dialled.
    ///
    /// # Errors
    /// [`MeetingError`]: nothing comes of it.
    pub fn greet(stream: TcpStream) -> Result<Guest, MeetingError> {
        prepared(&stream).map_err(ChannelError::from)?;
        let challenge = Challenge { nonce: random().map_err(MeetingError::Random)? };
        let mut channel = Channel::from_stream(stream);
        channel.limit(MAX_FIRST);
        channel.greet(Role::Launcher)?;
        channel.send(&challenge, &[])?;
        Ok(Guest { channel, challenge, greeted: false })
    }

    /// What it has said, if that has come, and has been proved: then it is welcome.
    ///
    /// # Errors
    /// [`MeetingError`]: nothing comes of it.
    pub fn hear(&mut self, secret: &[u8; KEY]) -> Result<Option<What>, MeetingError> {
        if !self.greeted {
            match self.channel.greeting(Duration::ZERO) {
                Ok(_) => self.greeted = true,
                Err(ChannelError::TimedOut(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let Some((hello, _)) = self.channel.try_receive::<Hello>()? else { return Ok(None) };
        if proof(secret, Side::Dialler, &self.challenge, &hello) != hello.proof {
            return Err(MeetingError::Stranger);
        }
        let what = ft_wire::decode(&hello.what).map_err(ChannelError::from)?;
        let proof = *proof(secret, Side::Front, &self.challenge, &hello).as_bytes();
        self.channel.send(&Welcome { proof }, &[])?;
        Ok(Some(what))
    }

    /// The connection to one that is welcome.
    pub fn into_channel(mut self) -> Channel {
        self.channel.limit(ft_wire::part::MAX_SAID);
        self.channel
    }

    /// The connection.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ft_wire::cluster::Hidden;
    use std::net::TcpListener;

    fn meet(theirs: [u8; KEY]) -> (Result<Channel, MeetingError>, Result<Option<What>, MeetingError>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let step =
            Step { addresses: vec![listener.local_addr().unwrap()], secret: Hidden([7; KEY]), options: Vec::new() };
        let said = What::Refused { status: 3, sentence: "no".into() };
        let dialler = std::thread::spawn(move || dial(&step, &said));
        let mut guest = Guest::greet(listener.accept().unwrap().0).unwrap();
        let heard = loop {
            match guest.hear(&theirs) {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                other => break other,
            }
        };
        drop(guest);
        (dialler.join().unwrap(), heard)
    }

    #[test]
    fn who_knows_the_secret_is_heard_and_who_does_not_is_not() {
        let (dialled, heard) = meet([7; KEY]);
        assert!(dialled.is_ok());
        assert_eq!(heard.unwrap(), Some(What::Refused { status: 3, sentence: "no".into() }));
        let (dialled, heard) = meet([8; KEY]);
        assert!(dialled.is_err() && matches!(heard, Err(MeetingError::Stranger)));
    }

    #[test]
    fn what_was_said_is_part_of_the_proof() {
        let challenge = Challenge { nonce: [1; KEY] };
        let hello = Hello { nonce: [2; KEY], proof: [0; KEY], what: vec![1] };
        let other = Hello { what: vec![2], ..hello.clone() };
        let of = |side, hello| proof(&[7; KEY], side, &challenge, hello);
        assert_ne!(of(Side::Dialler, &hello), of(Side::Dialler, &other));
        assert_ne!(of(Side::Dialler, &hello), of(Side::Front, &hello));
    }
}
