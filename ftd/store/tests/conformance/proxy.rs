//! Stands between a client and a member of etcd, and can keep the answers back.

use crate::cluster::address;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Proxy {
    pub endpoint: String,
    /// What etcd says is thrown away; what it is told still arrives.
    pub mute: Arc<AtomicBool>,
}

impl Proxy {
    /// In front of the member at this address.
    pub async fn before(member: &str) -> Proxy {
        let (here, there, mute) = (address(), format!("{member}:2379"), Arc::new(AtomicBool::new(false)));
        let listener = TcpListener::bind((here.as_str(), 2379)).await.unwrap();
        let proxy = Proxy { endpoint: format!("http://{here}:2379"), mute: mute.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&there).await else { continue };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let mute = mute.clone();
                tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                tokio::spawn(async move {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                        if !mute.load(Ordering::Relaxed) && to_client.write_all(&bytes[..length]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        proxy
    }
}
