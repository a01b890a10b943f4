//! TLS to an upstream proxy that is reached by https.

use std::pin::Pin;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::policy::host::Host;

/// The outcome of a handshake, later. The error is the reason, for people.
pub type Shaking<'h> = Pin<Box<dyn Future<Output = Result<TlsStream<TcpStream>, String>> + Send + 'h>>;

/// Who speaks TLS as a client, and decides whom to trust.
pub trait Handshake: std::fmt::Debug + Send + Sync {
    /// Proves that the other end of `stream` is `host`, and offers HTTP/1.1 alone.
    fn handshake<'h>(&'h self, stream: TcpStream, host: &'h Host) -> Shaking<'h>;
}

/// The one protocol in which CONNECT and absolute-form requests are written here (RFC 7301 §6).
const HTTP_1_1: &[u8] = b"http/1.1";

/// A client that trusts what its configuration says.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<rustls::ClientConfig>);

impl TlsClient {
    /// Uses `config`, whatever protocols it would offer.
    #[must_use]
    pub fn new(mut config: rustls::ClientConfig) -> Self {
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        Self(Arc::new(config))
    }

    /// Trusts the public authorities that were built in.
    ///
    /// # Errors
    /// The cryptography supports no protocol version, which is a fault of the build.
    pub fn public() -> Result<Self, rustls::Error> {
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::new(config))
    }
}

impl Handshake for TlsClient {
    fn handshake<'h>(&'h self, stream: TcpStream, host: &'h Host) -> Shaking<'h> {
        Box::pin(async move {
            let name = match host {
                Host::Address(address) => ServerName::from(*address),
                Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|error| error.to_string())?,
            };
            TlsConnector::from(self.0.clone()).connect(name, stream).await.map_err(|error| error.to_string())
        })
    }
}
