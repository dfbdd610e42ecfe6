//! Hello and proofs on a connection that was just made.

use crate::beat::Refusal;
use crate::beats::Identity;
use crate::frame::Lane;
use crate::hello::{HELLO, Hello, PREAMBLE, Proofs, same};
use crate::patience;
use crate::secret::KEY;
use ftd_core::NodeId;
use std::io::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Why two did not come together.
#[derive(Debug)]
pub(crate) enum NoMeeting {
    /// Somebody who is not of this job, or not of this release.
    Refused(Refusal),
    /// The network, or nobody there.
    Failed(Error),
}

impl From<Error> for NoMeeting {
    fn from(error: Error) -> Self {
        NoMeeting::Failed(error)
    }
}

impl From<Refusal> for NoMeeting {
    fn from(refusal: Refusal) -> Self {
        NoMeeting::Refused(refusal)
    }
}

/// Two that have come together.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub stream: TcpStream,
    /// The other one.
    pub peer: Hello,
    /// What this side sends.
    pub out: Lane,
    /// What the other one sends.
    pub into: Lane,
}

async fn bounded<T>(work: impl Future<Output = Result<T, NoMeeting>>) -> Result<T, NoMeeting> {
    let late = || NoMeeting::Failed(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(patience::scaled(patience::HANDSHAKE), work).await.unwrap_or_else(|_| Err(late()))
}

/// Reads a hello. Of another release's nothing is read but what all have in common.
async fn read_hello(stream: &mut TcpStream, identity: &Identity) -> Result<(Hello, [u8; HELLO]), NoMeeting> {
    let mut bytes = [0; HELLO];
    let mut preamble = [0; PREAMBLE];
    stream.read_exact(&mut preamble).await?;
    Hello::check_preamble(&preamble)?;
    bytes[..PREAMBLE].copy_from_slice(&preamble);
    stream.read_exact(&mut bytes[PREAMBLE..]).await?;
    Ok((Hello::from_bytes(&bytes, &identity.job)?, bytes))
}

async fn read_proof(stream: &mut TcpStream) -> Result<[u8; KEY], NoMeeting> {
    let mut proof = [0; KEY];
    stream.read_exact(&mut proof).await?;
    Ok(proof)
}

/// On a connection that this side made to this node.
pub(crate) async fn dial(
    mut stream: TcpStream,
    identity: &Identity,
    to: NodeId,
    port: u16,
) -> Result<Meeting, NoMeeting> {
    bounded(async {
        let mine = Hello::new(identity.me, to, identity.incarnation, port)?.to_bytes(&identity.job);
        stream.write_all(&mine).await?;
        let (peer, theirs) = read_hello(&mut stream, identity).await?;
        let proof = read_proof(&mut stream).await?;
        let proofs = Proofs::of(&identity.secret, &identity.job, &mine, &theirs);
        // Told before it is judged, so that the other side can count a stranger as well.
        stream.write_all(&proofs.dialler).await?;
        if !same(proof, proofs.acceptor) {
            return Err(Refusal::Forged.into());
        }
        if peer.from != to || peer.to != identity.me {
            return Err(Refusal::Misdirected.into());
        }
        let (out, into) = (Lane::new(proofs.from_dialler), Lane::new(proofs.from_acceptor));
        Ok(Meeting { stream, peer, out, into })
    })
    .await
}

/// On a connection that somebody made to this side.
pub(crate) async fn accept(mut stream: TcpStream, identity: &Identity, port: u16) -> Result<Meeting, NoMeeting> {
    bounded(async {
        let answer =
            |to| Hello::new(identity.me, to, identity.incarnation, port).map(|hello| hello.to_bytes(&identity.job));
        let (peer, theirs) = match read_hello(&mut stream, identity).await {
            Ok(read) => read,
            Err(refused) => {
                // Another release is told which one this is, so that both sides can name both.
                if matches!(refused, NoMeeting::Refused(Refusal::Version(_))) {
                    stream.write_all(&answer(NodeId(0))?).await?;
                }
                return Err(refused);
            }
        };
        let mine = answer(peer.from)?;
        let proofs = Proofs::of(&identity.secret, &identity.job, &theirs, &mine);
        stream.write_all(&mine).await?;
        stream.write_all(&proofs.acceptor).await?;
        if !same(read_proof(&mut stream).await?, proofs.dialler) {
            return Err(Refusal::Forged.into());
        }
        if peer.to != identity.me || peer.from == identity.me || peer.incarnation == 0 {
            return Err(Refusal::Misdirected.into());
        }
        let (out, into) = (Lane::new(proofs.from_acceptor), Lane::new(proofs.from_dialler));
        Ok(Meeting { stream, peer, out, into })
    })
    .await
}
