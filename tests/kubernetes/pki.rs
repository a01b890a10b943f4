//! Its CA, its certificate, and its clients'.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// What a client's certificate begins its user's name with, so that it can be found without a parser.
const USER: &str = "user:";
const USER_END: u8 = b'$';

pub struct Pki {
    ca: CertifiedIssuer<'static, KeyPair>,
    open: Arc<ServerConfig>,
    closed: Arc<ServerConfig>,
}

impl Pki {
    pub fn new(address: IpAddr) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("names that certificates may have");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "stand-in CA");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key is made"))
            .expect("a CA signs itself");

        let mut params =
            CertificateParams::new(vec!["kubernetes".to_owned()]).expect("names that certificates may have");
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        if address != IpAddr::from([127, 0, 0, 1]) && !address.is_unspecified() {
            params.subject_alt_names.push(SanType::IpAddress(address));
        }
        let key = KeyPair::generate().expect("a key is made");
        let certificate = params.signed_by(&key, &ca).expect("the CA signs");
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).expect("a CA is a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let config = |demanded: bool| {
            let clients = clients.clone();
            let clients = if demanded { clients } else { clients.allow_unauthenticated() };
            let config = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let config =
                config.expect("versions of TLS").with_client_cert_verifier(clients.build().expect("roots for clients"));
            Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).expect("a certificate and its key"))
        };
        let (open, closed) = (config(false), config(true));
        Self { ca, open, closed }
    }

    pub fn ca(&self) -> String {
        self.ca.pem()
    }

    pub fn server(&self, certificates: bool) -> Arc<ServerConfig> {
        if certificates { self.closed.clone() } else { self.open.clone() }
    }

    /// A client certificate of a user, and its key.
    pub fn client(&self, user: &str) -> (String, String) {
        let mut params = CertificateParams::new(Vec::new()).expect("names that certificates may have");
        params.distinguished_name.push(DnType::CommonName, format!("{USER}{user}{}", char::from(USER_END)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key is made");
        (params.signed_by(&key, &self.ca).expect("the CA signs").pem(), key.serialize_pem())
    }

    /// Whose it is. It has been verified.
    pub fn user_of(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        let at = certificate.windows(USER.len()).position(|bytes| bytes == USER.as_bytes())? + USER.len();
        let length = certificate[at..].iter().position(|byte| *byte == USER_END)?;
        String::from_utf8(certificate[at..at + length].to_vec()).ok()
    }
}

/// As kubeconfigs write what is binary (RFC 4648 §4).
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
