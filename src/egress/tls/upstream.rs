//! Towards origins: who they are is verified here, on the client's behalf.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lru::LruCache;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, OtherError, PeerIncompatible,
    RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::roots::{self, BundleError};
use super::x509::{self, Summary, moment};
use crate::policy::host::Host;

/// From our first byte to the end of the handshake: two or three round trips and a signature, with room for an origin
/// that is woken up first.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Hosts whose sessions are remembered, so that the next connection costs no signature (RFC 8446 §2.2).
const SESSIONS: usize = 256;

/// ALPN offers for which a configuration is kept. There are four that make sense: nothing, either protocol, both.
const OFFERS: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");

/// What rustls says of a certificate below version 3 (X.509 of 1988 or 1993), which has no place for the names that
/// clients compare (RFC 6125 §6.4.4 has given up the older one). Its verifier's error is a type of its own.
const OLD_VERSION: &str = "UnsupportedCertVersion";

/// Names of a certificate that an error lists; some have a hundred.
const NAMES_LISTED: usize = 8;

/// Why there is no TLS connection to an origin. Each is a sentence about the origin.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Its certificate's time is over.
    #[error("its certificate has expired, on {since}")]
    Expired {
        /// The last moment of its validity.
        since: String,
    },
    /// Its certificate's time has not begun.
    #[error("its certificate is not valid before {from}; is this machine's clock right?")]
    NotYetValid {
        /// The first moment of its validity.
        from: String,
    },
    /// It vouches for itself.
    #[error("its certificate is self-signed ({subject}); have the operator trust it by --upstream-ca")]
    SelfSigned {
        /// Its name for itself.
        subject: String,
    },
    /// Nobody who is trusted vouches for it.
    #[error(
        "its certificate is issued by {issuer}, which is not trusted; have the operator add that CA by --upstream-ca"
    )]
    UnknownIssuer {
        /// Who issued the last certificate that it presented.
        issuer: String,
    },
    /// It is somebody else.
    #[error("its certificate is not for {host} but for {}", listed(names))]
    WrongName {
        /// Who was asked for.
        host: String,
        /// Whom the certificate names.
        names: Vec<String>,
    },
    /// Its certificate is of a version that nobody trusted issues any more.
    #[error(
        "its certificate is X.509 version 1 or 2, and only version 3 names hosts; have it issued anew with a \
         subjectAltName, or use `tls: skip` for it"
    )]
    OldCertificate,
    /// Its certificate cannot be accepted for another reason.
    #[error("its certificate cannot be accepted: {0}")]
    Certificate(String),
    /// Neither TLS 1.2 nor 1.3, or no cipher suite that is both its and ours.
    #[error(
        "it shares no version of TLS, cipher suite or key exchange with us: {0}; TLS 1.2 and 1.3 are spoken, with AEAD and ECDHE alone"
    )]
    NothingShared(String),
    /// It speaks none of the protocols that were offered by ALPN. Whoever offered them may offer others.
    #[error("it speaks none of the application protocols that were offered (ALPN)")]
    NoApplicationProtocol,
    /// It wants to know who we are.
    #[error("it demands a client certificate, which the proxy has none of; use `tls: skip` for it")]
    ClientCertificate,
    /// It refused with another alert.
    #[error("it refused the handshake with the alert {0}")]
    Alert(String),
    /// What it sent is not TLS.
    #[error("it does not speak TLS on this port")]
    NotTls,
    /// It broke the protocol's rules.
    #[error("it broke the rules of TLS: {0}")]
    Protocol(String),
    /// It closed the connection.
    #[error("it closed the connection during the TLS handshake")]
    Closed,
    /// It did not answer.
    #[error("it did not finish the TLS handshake within {} s", HANDSHAKE_TIME.as_secs())]
    TimedOut,
    /// The connection broke.
    #[error("the connection broke during the TLS handshake: {0}")]
    Io(io::Error),
    /// The host's name cannot be asked for.
    #[error("{0} is no name that a certificate could have")]
    Name(String),
    /// We cannot speak TLS at all.
    #[error("the proxy cannot verify anybody: {0}")]
    Setup(String),
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_LISTED).map(|name| sane(name)).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "nobody".to_owned(),
        count if count > NAMES_LISTED => format!("{shown} and {} more", count - NAMES_LISTED),
        _ => shown,
    }
}

/// A name of a certificate, as rustls writes it: `DnsName("example.com")`, and the like.
fn sane(name: &str) -> String {
    let plain = name.split('"').nth(1).or_else(|| name.split_once('(').map(|(_, rest)| rest.trim_end_matches(')')));
    plain.unwrap_or(name).chars().filter(|c| !c.is_control()).collect()
}

/// How to speak TLS to origins.
#[derive(Debug)]
pub struct Upstream {
    extra: Vec<CertificateDer<'static>>,
    /// Roots are read when the first origin is spoken to: most sandboxes inspect nothing.
    base: OnceLock<Result<ClientConfig, String>>,
    offers: Mutex<LruCache<Vec<Vec<u8>>, Arc<ClientConfig>>>,
}

impl Upstream {
    /// Origins are verified against the system's roots, or the bundled ones of Mozilla where the system has none, and
    /// the certificates in `extra_roots`, each a file in PEM. The system's come alone where there are any: what an
    /// administrator has taken out is not to come back through this executable.
    ///
    /// # Errors
    /// A file that cannot be read, or holds anything but certificates.
    pub fn new(extra_roots: &[PathBuf]) -> Result<Self, BundleError> {
        let mut extra = Vec::new();
        for path in extra_roots {
            for (index, certificate) in roots::certificates(path)?.into_iter().enumerate() {
                // What would not be taken in the end is said now.
                RootCertStore::empty().add(certificate.clone()).map_err(|error| BundleError::Malformed {
                    path: path.clone(),
                    index: index + 1,
                    reason: error.to_string(),
                })?;
                extra.push(certificate);
            }
        }
        Ok(Self { extra, base: OnceLock::new(), offers: Mutex::new(LruCache::new(OFFERS)) })
    }

    /// Reads the roots, unless that has been done: a millisecond, for a thread that nobody waits for.
    pub fn warm_up(&self) {
        let _ = self.base();
    }

    fn base(&self) -> &Result<ClientConfig, String> {
        self.base.get_or_init(|| {
            let mut store = RootCertStore::empty();
            if let Some((_, bundle)) = roots::system_bundle() {
                store.add_parsable_certificates(CertificateDer::pem_slice_iter(&bundle).filter_map(Result::ok));
            }
            if store.is_empty() {
                store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            }
            store.add_parsable_certificates(self.extra.iter().cloned());
            configure(store).map_err(|error| error.to_string())
        })
    }

    fn config(&self, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
        let offer: Vec<Vec<u8>> = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = offers.get(&offer) {
            return Ok(config.clone());
        }
        // Verifier and sessions are shared by all.
        let mut config = self.base().clone().map_err(TlsError::Setup)?;
        config.alpn_protocols.clone_from(&offer);
        let config = Arc::new(config);
        offers.put(offer, config.clone());
        Ok(config)
    }

    /// Shakes hands on `stream`, with an origin that must prove to be `host`; also the protocol that it chose of
    /// `alpn`.
    ///
    /// # Errors
    /// [`TlsError`].
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &Host,
        alpn: &[&[u8]],
    ) -> Result<(TlsStream<S>, Option<Vec<u8>>), TlsError> {
        self.handshake_within(HANDSHAKE_TIME, stream, host, alpn).await
    }

    async fn handshake_within<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        limit: Duration,
        stream: S,
        host: &Host,
        alpn: &[&[u8]],
    ) -> Result<(TlsStream<S>, Option<Vec<u8>>), TlsError> {
        let name = match host {
            Host::Address(address) => ServerName::from(*address),
            Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|_| TlsError::Name(name.to_string()))?,
        };
        let connector = TlsConnector::from(self.config(alpn)?);
        match timeout(limit, connector.connect(name, stream)).await {
            Err(_) => Err(TlsError::TimedOut),
            Ok(Err(error)) => Err(explain(error, host)),
            Ok(Ok(stream)) => {
                let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                Ok((stream, chosen))
            }
        }
    }
}

fn configure(store: RootCertStore) -> Result<ClientConfig, Box<dyn std::error::Error>> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), super::provider()).build()?;
    let mut config = ClientConfig::builder_with_provider(super::provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Naming(verifier)))
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(config)
}

/// The verifier of rustls, every verdict its own; one that nobody is trusted comes with the name of who was not.
#[derive(Debug)]
struct Naming(Arc<WebPkiServerVerifier>);

/// Who vouched for an origin that was not believed.
#[derive(Debug, thiserror::Error)]
#[error("not trusted")]
struct Distrusted {
    name: String,
    self_signed: bool,
}

impl ServerCertVerifier for Naming {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now).map_err(|error| {
            let itself = Summary::read(end_entity).is_some_and(|leaf| leaf.is_self_issued());
            let by_issuer = match &error {
                rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
                // A self-signed certificate that says it is a CA is refused for that first.
                rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                    itself && inner.to_string() != OLD_VERSION
                }
                _ => false,
            };
            // The last one presented is the nearest to a root.
            let last = intermediates.last().unwrap_or(end_entity);
            match Summary::read(last) {
                Some(summary) if by_issuer => {
                    let name = x509::name(&summary.issuer);
                    let distrusted = Distrusted { name, self_signed: itself };
                    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(distrusted))))
                }
                _ => error,
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// What an error of the handshake means.
fn explain(error: io::Error, host: &Host) -> TlsError {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                TlsError::Closed
            }
            _ => TlsError::Io(error),
        };
    };
    match tls {
        rustls::Error::InvalidCertificate(error) => explain_certificate(error, host),
        rustls::Error::NoApplicationProtocol => TlsError::NoApplicationProtocol,
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::NoApplicationProtocol => TlsError::NoApplicationProtocol,
            AlertDescription::CertificateRequired => TlsError::ClientCertificate,
            AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
                TlsError::NothingShared(format!("it sent the alert {alert:?}"))
            }
            // RFC 8446 §6.2: parameters that cannot be agreed on.
            AlertDescription::HandshakeFailure => TlsError::NothingShared("it sent the alert HandshakeFailure".into()),
            alert => TlsError::Alert(format!("{alert:?}")),
        },
        rustls::Error::PeerIncompatible(what) => TlsError::NothingShared(match what {
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => "it wants a version below 1.2".to_owned(),
            what => format!("{what:?}"),
        }),
        // The first record makes no sense as one; later ones come from somebody who has spoken TLS before.
        rustls::Error::InvalidMessage(_) | rustls::Error::PeerSentOversizedRecord => TlsError::NotTls,
        other => TlsError::Protocol(other.to_string()),
    }
}

fn explain_certificate(error: &CertificateError, host: &Host) -> TlsError {
    match error {
        CertificateError::ExpiredContext { not_after, .. } => TlsError::Expired { since: moment(*not_after) },
        CertificateError::NotValidYetContext { not_before, .. } => TlsError::NotYetValid { from: moment(*not_before) },
        CertificateError::NotValidForNameContext { presented, .. } => {
            TlsError::WrongName { host: host.to_string(), names: presented.clone() }
        }
        CertificateError::UnknownIssuer => TlsError::UnknownIssuer { issuer: "somebody unknown".to_owned() },
        CertificateError::Other(OtherError(inner)) => match inner.downcast_ref::<Distrusted>() {
            Some(Distrusted { name, self_signed: true }) => TlsError::SelfSigned { subject: name.clone() },
            Some(Distrusted { name, .. }) => TlsError::UnknownIssuer { issuer: name.clone() },
            None if inner.to_string() == OLD_VERSION => TlsError::OldCertificate,
            None => TlsError::Certificate(inner.to_string()),
        },
        other => TlsError::Certificate(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
