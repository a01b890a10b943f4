//! One connection, from a name to a verified TLS session.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::access::Access;
use super::error::Failure;
use crate::egress::dial::dial;
use crate::egress::resolve::Resolver;
use crate::policy::host::Host;

/// Name, TCP and TLS together: an API server of the cluster answers in milliseconds, one behind a slow link in a second;
/// SYNs that are dropped are sent again after one and three.
pub const CONNECT_TIME: Duration = Duration::from_secs(4);

/// Connects and shakes hands.
pub(super) async fn open(
    access: &Access,
    resolver: &Resolver,
    tls: ClientConfig,
) -> Result<TlsStream<TcpStream>, Failure> {
    timeout(CONNECT_TIME, connect(access, resolver, tls)).await.unwrap_or(Err(Failure::TimedOut(CONNECT_TIME)))
}

async fn connect(access: &Access, resolver: &Resolver, tls: ClientConfig) -> Result<TlsStream<TcpStream>, Failure> {
    let server = &access.server;
    let addresses = match &server.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => resolver.resolve(name).await.map_err(|error| Failure::Unreachable(error.to_string()))?,
    };
    let dialled = dial(&addresses, server.port).await;
    let (stream, _) = dialled.map_err(|error| Failure::Unreachable(error.to_string()))?;
    let handshake = TlsConnector::from(Arc::new(tls)).connect(access.name.clone(), stream).await;
    handshake.map_err(|error| tls_failure(&error).unwrap_or_else(|| Failure::Broken(error.to_string())))
}

/// What TLS has against the other side, or the other side against us; nothing for other errors.
pub(super) fn tls_failure(error: &io::Error) -> Option<Failure> {
    let tls: &rustls::Error = error.get_ref()?.downcast_ref()?;
    Some(Failure::Tls(match tls {
        // Every cluster's CA has the same name, so that another one's is tried, and has not signed this.
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is not of the CA that the kubeconfig or service account gives; give the cluster's own"
                .into()
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) => {
            let names = presented.join(", ");
            format!("its certificate is for {names} alone; name the server so, or give that as tls-server-name")
        }
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. } | CertificateError::Expired) => {
            "its certificate has expired; renew it, or correct this machine's clock".into()
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::DecryptError,
        ) => {
            format!("it does not accept our client certificate ({tls}); give one of the CA that it trusts for clients")
        }
        rustls::Error::InvalidMessage(_) => "it does not speak TLS on this port".into(),
        tls => tls.to_string(),
    }))
}

/// What ended an exchange over HTTP.
pub(super) fn http_failure(error: &hyper::Error) -> Failure {
    if error.is_parse() || error.is_parse_status() || error.is_parse_too_large() {
        return Failure::Malformed(format!("it is no HTTP/1.1 ({error})"));
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(failure) = cause.downcast_ref().and_then(tls_failure) {
            return failure;
        }
        source = cause.source();
    }
    Failure::Broken(error.to_string())
}
