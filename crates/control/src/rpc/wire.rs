//! The stream that carries frames: a TCP connection, with or without TLS.
//!
//! A TLS connection begins with [`FIRST_BYTE`], with which no hello begins, so a server detects whether a client speaks
//! TLS. If only one of the two ends speaks TLS, the server tells the client by a hello, to a plain client and to a TLS
//! client alike; a TLS client recognizes that a hello is not a message of TLS. The handshake has the same time limit as
//! a hello.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "tls")]
use fusee_tls::FIRST_BYTE;
use fusee_tls::TlsSettings;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio::time::timeout;
#[cfg(feature = "tls")]
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

#[cfg(feature = "tls")]
use super::HELLO_TIMEOUT;
use super::hello::HelloError;

/// A secret that only the two ends of one TLS connection know.
pub(super) type ChannelBinding = [u8; 32];
#[cfg(feature = "tls")]
const LABEL: &[u8] = b"EXPORTER-fusee-control";

/// A connection between a client and a server, with or without TLS.
#[derive(Debug)]
pub(super) enum RpcStream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

impl RpcStream {
    /// Makes the client's end of a connection to this host and port.
    pub(super) async fn dial(
        stream: TcpStream,
        addr: &str,
        tls: Option<&TlsSettings>,
    ) -> Result<RpcStream, HelloError> {
        match tls {
            None => Ok(RpcStream::Plain(stream)),
            #[cfg(feature = "tls")]
            Some(tls) => {
                let failed = |error: fusee_tls::TlsError| HelloError::Tls(error.to_string());
                let name = fusee_tls::server_name(addr).map_err(failed)?;
                let connecting = TlsConnector::from(tls.client_config()).connect(name, stream);
                let stream = timeout(HELLO_TIMEOUT, connecting).await;
                let stream = stream.map_err(|_| HelloError::Silent)?.map_err(failure)?;
                Ok(RpcStream::Tls(Box::new(stream.into())))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => unreachable!("there is no TLS without the feature, for {addr}"),
        }
    }

    /// Makes the server's end. If only one of the two ends speaks TLS, the stream is a plain one, over which the
    /// server's hello tells the client so.
    pub(super) async fn answer(
        stream: TcpStream,
        tls: Option<&TlsSettings>,
    ) -> Result<RpcStream, HelloError> {
        #[cfg(feature = "tls")]
        if let Some(config) = tls.and_then(TlsSettings::server_config) {
            let mut first = [0];
            match timeout(HELLO_TIMEOUT, stream.peek(&mut first)).await {
                Err(_) => return Err(HelloError::Silent),
                Ok(Err(_) | Ok(0)) => return Err(HelloError::Closed),
                Ok(Ok(_)) => {}
            }
            if first == [FIRST_BYTE] {
                let accepting = TlsAcceptor::from(config).accept(stream);
                let stream = timeout(HELLO_TIMEOUT, accepting).await;
                let stream = stream.map_err(|_| HelloError::Silent)?.map_err(failure)?;
                return Ok(RpcStream::Tls(Box::new(stream.into())));
            }
        }
        let _plain = tls;
        Ok(RpcStream::Plain(stream))
    }

    /// Returns the underlying TCP connection.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            RpcStream::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            RpcStream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Returns the secret of this TLS connection; `None` without TLS.
    pub(super) fn binding(&self) -> Result<Option<ChannelBinding>, HelloError> {
        match self {
            RpcStream::Plain(_) => Ok(None),
            #[cfg(feature = "tls")]
            RpcStream::Tls(stream) => {
                let failed =
                    |error: tokio_rustls::rustls::Error| HelloError::Tls(error.to_string());
                let binding = match &**stream {
                    TlsStream::Client(stream) => {
                        stream.get_ref().1.export_keying_material([0; 32], LABEL, None)
                    }
                    TlsStream::Server(stream) => {
                        stream.get_ref().1.export_keying_material([0; 32], LABEL, None)
                    }
                };
                binding.map(Some).map_err(failed)
            }
        }
    }
}

#[cfg(feature = "tls")]
fn failure(error: io::Error) -> HelloError {
    match fusee_tls::failure(&error) {
        Some(what) => HelloError::Tls(what),
        None => HelloError::Closed,
    }
}

impl AsyncRead for RpcStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RpcStream::Plain(stream) => Pin::new(stream).poll_read(context, buf),
            #[cfg(feature = "tls")]
            RpcStream::Tls(stream) => match Pin::new(&mut **stream).poll_read(context, buf) {
                // The end of a connection without a TLS close message is accepted, because frames contain their
                // lengths, so that a cut frame is detected.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Ok(()))
                }
                read => read,
            },
        }
    }
}

impl AsyncWrite for RpcStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            RpcStream::Plain(stream) => Pin::new(stream).poll_write(context, buf),
            #[cfg(feature = "tls")]
            RpcStream::Tls(stream) => Pin::new(&mut **stream).poll_write(context, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RpcStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            #[cfg(feature = "tls")]
            RpcStream::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RpcStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(feature = "tls")]
            RpcStream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}
