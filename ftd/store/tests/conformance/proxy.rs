//! Stands between a client and a member of etcd, and can keep the answers back, or be slow to let somebody in.

use crate::cluster::address;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

pub struct Proxy {
    pub endpoint: String,
    /// What etcd says is thrown away; what it is told still arrives.
    pub mute: Arc<AtomicBool>,
    /// What etcd says is kept as long as this is so.
    pub holds: Arc<AtomicBool>,
    /// All that etcd says comes so many milliseconds late.
    pub late: Arc<AtomicU64>,
    /// What etcd says on connections before this one is thrown away.
    first: Arc<AtomicUsize>,
    /// So many connections there were.
    pub connections: Arc<AtomicUsize>,
    /// So many the client has open.
    pub open: Arc<AtomicUsize>,
}

impl Proxy {
    /// In front of the member at this address.
    pub async fn before(member: &str) -> Proxy {
        Proxy::slow(member, Duration::ZERO).await
    }

    /// In front of the member at this address; what it says first comes so late.
    pub async fn slow(member: &str, first: Duration) -> Proxy {
        let (here, there, mute) = (address(), format!("{member}:2379"), Arc::new(AtomicBool::new(false)));
        let (holds, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let open = Arc::new(AtomicUsize::new(0));
        let (held, counted, now) = (holds.clone(), connections.clone(), open.clone());
        let listener = TcpListener::bind((here.as_str(), 2379)).await.unwrap();
        let late = Arc::new(AtomicU64::new(0));
        let (endpoint, mute_too, lateness) = (format!("http://{here}:2379"), mute.clone(), late.clone());
        let first_heard = Arc::new(AtomicUsize::new(0));
        let forgotten = first_heard.clone();
        let proxy = Proxy { endpoint, mute: mute_too, holds, late, first: first_heard, connections, open };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(&there).await else { continue };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let (mute, held, lateness) = (mute.clone(), held.clone(), lateness.clone());
                let (now, forgotten) = (now.clone(), forgotten.clone());
                now.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                    now.fetch_sub(1, Ordering::Relaxed);
                });
                tokio::spawn(async move {
                    let mut bytes = vec![0; 1 << 16];
                    sleep(first).await;
                    while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                        sleep(Duration::from_millis(lateness.load(Ordering::Relaxed))).await;
                        while held.load(Ordering::Relaxed) {
                            sleep(Duration::from_millis(5)).await;
                        }
                        let heard = !mute.load(Ordering::Relaxed) && number >= forgotten.load(Ordering::Relaxed);
                        if heard && to_client.write_all(&bytes[..length]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        proxy
    }

    /// The connections that there are stay open, and nothing comes on them any more.
    pub fn forgets(&self) {
        self.first.store(self.connections.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
