//! Taking connections. Who has not proved itself has a second for it, and there is room for only so many of them.

use crate::beat::Refusal;
use crate::connection;
use crate::endpoint::Endpoint;
use crate::meet::{self, NoMeeting};
use crate::patience;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// So many have not proved themselves yet.
pub const STRANGERS: usize = 64;

/// Takes connections for as long as the endpoint is there.
pub(crate) async fn accept(endpoint: Arc<Endpoint>, listener: TcpListener) {
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => match strangers.clone().try_acquire_owned() {
                Ok(place) => {
                    let within = endpoint.clone();
                    endpoint.spawn(async move {
                        meet(&within, stream, from).await;
                        drop(place);
                    });
                }
                Err(_) => endpoint.refuse(from, Refusal::Crowd),
            },
            Err(error) => {
                tracing::warn!(%error, "a connection of another agent");
                tokio::time::sleep(patience::scaled(patience::NO_DESCRIPTORS)).await;
            }
        }
    }
}

async fn meet(endpoint: &Arc<Endpoint>, stream: TcpStream, from: SocketAddr) {
    let ready = connection::prepare(&stream).map_err(NoMeeting::Failed);
    let met = match ready {
        Ok(()) => meet::accept(stream, &endpoint.identity, endpoint.address.port()).await,
        Err(error) => Err(error),
    };
    match met {
        Ok(meeting) => endpoint.join(meeting, false),
        Err(NoMeeting::Refused(why)) => endpoint.refuse(from, why),
        Err(NoMeeting::Failed(error)) => {
            tracing::debug!(%from, %error, "somebody who did not prove itself");
            endpoint.counters.count(|counters| counters.unproven += 1);
        }
    }
}
