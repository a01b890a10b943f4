//! What the tests of this room share: two ends of a connection in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::DuplexStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// A client that trusts the certificates in `pem`, and offers `alpn`.
pub(super) fn client(pem: &str, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        store.add(certificate.unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(super::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// Both ends of a handshake.
pub(super) type Ends = (client::TlsStream<DuplexStream>, server::TlsStream<DuplexStream>);

/// Shakes hands; the client's error is the more telling one.
pub(super) async fn shake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &'static str,
) -> std::io::Result<Ends> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let connect = TlsConnector::from(client.clone()).connect(ServerName::try_from(name).unwrap(), near);
    let accept = TlsAcceptor::from(server.clone()).accept(far);
    let (near, far) = tokio::join!(connect, accept);
    Ok((near?, far?))
}

/// Writes a file that a flag could name.
pub(super) fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
