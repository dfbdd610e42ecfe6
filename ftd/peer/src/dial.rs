//! Making a connection, again and again while something waits for its other end.

use crate::connection;
use crate::endpoint::Endpoint;
use crate::meet::{self, Meeting, NoMeeting};
use crate::patience::{self, scaled};
use ftd_core::NodeId;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

/// Dials until there is a connection, or nothing waits for one any more.
pub(crate) async fn dial(endpoint: Arc<Endpoint>, node: NodeId) {
    if endpoint.identity.me > node {
        sleep(scaled(endpoint.courtesy(node))).await;
    }
    while let Some((_, tries)) = endpoint.wants(node) {
        sleep(scaled(patience::pause(tries))).await;
        // It may be elsewhere by now, or here.
        let Some((address, _)) = endpoint.wants(node) else { return };
        match attempt(&endpoint, node, address).await {
            Ok(meeting) => endpoint.join(meeting, true),
            Err(NoMeeting::Refused(why)) => endpoint.refuse(address, why),
            Err(NoMeeting::Failed(error)) => {
                tracing::debug!(%node, %address, %error, "no connection");
                endpoint.counters.count(|counters| counters.failed += 1);
            }
        }
        endpoint.tried(node);
    }
}

async fn attempt(endpoint: &Endpoint, node: NodeId, address: SocketAddr) -> Result<Meeting, NoMeeting> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // The other side is to see the address on the network that was chosen.
    if address.is_ipv4() == endpoint.address.is_ipv4() {
        socket.bind(SocketAddr::new(endpoint.address.ip(), 0))?;
    }
    let late = |_| NoMeeting::Failed(std::io::ErrorKind::TimedOut.into());
    let stream = timeout(scaled(patience::DIAL), socket.connect(address)).await.map_err(late)??;
    connection::prepare(&stream)?;
    meet::dial(stream, &endpoint.identity, node, endpoint.address.port()).await
}
