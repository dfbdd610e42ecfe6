//! A stream whose end says why it is one.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Behind what was said comes its end, or, when there is a reason for that, an error that says it.
pub struct Told {
    /// The stream.
    pub own: DuplexStream,
    /// The reason, which is there before the end is.
    pub why: Arc<OnceLock<String>>,
}

impl AsyncRead for Told {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.own).poll_read(cx, into))?;
        match self.why.get() {
            Some(why) if into.filled().len() == before && into.remaining() > 0 => {
                Poll::Ready(Err(io::Error::other(why.clone())))
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Told {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.own).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.own).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.own).poll_shutdown(cx)
    }
}
