use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{HandshakeKind, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::egress::tls::tests::file;
use crate::egress::tls::{HTTP1, HTTP2};

const NAME: &str = "api.example.com";

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

/// A CA that origins are signed by, and a file that names it.
struct World {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    ca: PathBuf,
}

impl World {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "Example Corp Root");
        let key = KeyPair::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let ca = file(directory.path(), "ca.pem", &params.self_signed(&key).unwrap().pem());
        Self { issuer: Issuer::new(params, key), ca, directory }
    }

    fn trusting(&self) -> Upstream {
        Upstream::new(std::slice::from_ref(&self.ca)).unwrap()
    }

    /// An origin with a certificate of this CA.
    fn origin(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        origin(Some(&self.issuer), names, change)
    }
}

fn origin(
    issuer: Option<&Issuer<'static, KeyPair>>,
    names: &[&str],
    change: impl FnOnce(&mut CertificateParams),
) -> ServerConfig {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.distinguished_name.push(DnType::CommonName, "Example Origin");
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = match issuer {
        Some(issuer) => params.signed_by(&key, issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ServerConfig::builder_with_provider(super::super::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap()
}

type Shaken = Result<(TlsStream<DuplexStream>, Option<Vec<u8>>), TlsError>;

async fn shake_as(upstream: &Upstream, config: ServerConfig, name: &str, alpn: &[&[u8]]) -> Shaken {
    let (near, far) = duplex(1 << 16);
    tokio::spawn(async move {
        if let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(far).await {
            let mut byte = [0];
            let _ = stream.read(&mut byte).await;
        }
    });
    upstream.handshake(near, &host(name), alpn).await
}

async fn shake(upstream: &Upstream, config: ServerConfig) -> Shaken {
    shake_as(upstream, config, NAME, &[]).await
}

/// What an origin that says `answer` to the hello and then closes comes to.
async fn answered(upstream: &Upstream, answer: &'static [u8]) -> TlsError {
    let (near, mut far) = duplex(1 << 16);
    tokio::spawn(async move {
        let mut hello = [0; 100];
        far.read_exact(&mut hello).await.unwrap();
        far.write_all(answer).await.unwrap();
    });
    upstream.handshake(near, &host(NAME), &[HTTP2]).await.unwrap_err()
}

#[tokio::test]
async fn an_origin_that_the_added_ca_vouches_for_is_spoken_to() {
    let world = World::new();
    let upstream = world.trusting();
    for name in [NAME, "127.0.0.1", "2001:db8::1"] {
        shake_as(&upstream, world.origin(&[name], |_| {}), name, &[]).await.unwrap();
    }
    for (offered, spoken, chosen) in [
        (&[HTTP2, HTTP1][..], &[HTTP2, HTTP1][..], Some(HTTP2)),
        (&[HTTP1][..], &[HTTP2, HTTP1][..], Some(HTTP1)),
        (&[HTTP2, HTTP1][..], &[][..], None),
        (&[][..], &[HTTP2][..], None),
    ] {
        let mut config = world.origin(&[NAME], |_| {});
        config.alpn_protocols = spoken.iter().map(|protocol| protocol.to_vec()).collect();
        let (_, negotiated) = shake_as(&upstream, config, NAME, offered).await.unwrap();
        assert_eq!(negotiated.as_deref(), chosen);
    }
}

#[tokio::test]
async fn an_origin_that_is_not_who_it_must_be_is_refused_with_the_reason() {
    let world = World::new();
    let upstream = world.trusting();
    let day = |at: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(at);
    // The control: nothing changed.
    shake(&upstream, world.origin(&[NAME], |_| {})).await.unwrap();

    let error =
        shake(&upstream, world.origin(&[NAME], |params| params.not_after = day(951_782_400))).await.unwrap_err();
    assert!(matches!(&error, TlsError::Expired { since } if since == "2000-02-29 00:00 UTC"), "{error}");

    let error =
        shake(&upstream, world.origin(&[NAME], |params| params.not_before = day(4_107_542_400))).await.unwrap_err();
    assert!(matches!(&error, TlsError::NotYetValid { from } if from == "2100-03-01 00:00 UTC"), "{error}");

    let error = shake(&upstream, world.origin(&["a.example.com", "b.example.com"], |_| {})).await.unwrap_err();
    assert_eq!(error.to_string(), "its certificate is not for api.example.com but for a.example.com, b.example.com");
    let error = shake_as(&upstream, world.origin(&["192.0.2.7"], |_| {}), "192.0.2.8", &[]).await.unwrap_err();
    assert_eq!(error.to_string(), "its certificate is not for 192.0.2.8 but for 192.0.2.7");
    // A name does not vouch for an address, whatever it looks like (RFC 9525 §6.5).
    let error = shake_as(&upstream, world.origin(&[NAME], |_| {}), "192.0.2.8", &[]).await.unwrap_err();
    assert!(matches!(error, TlsError::WrongName { .. }), "{error}");

    let error = shake(&upstream, origin(None, &[NAME], |_| {})).await.unwrap_err();
    assert!(matches!(&error, TlsError::SelfSigned { subject } if subject.contains("Example Origin")), "{error}");
    let error =
        shake(&upstream, origin(None, &[NAME], |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)));
    let error = error.await.unwrap_err();
    assert!(matches!(&error, TlsError::SelfSigned { .. }), "{error}");

    let stranger = Upstream::new(&[]).unwrap();
    let error = shake(&stranger, world.origin(&[NAME], |_| {})).await.unwrap_err();
    assert!(matches!(&error, TlsError::UnknownIssuer { issuer } if issuer.contains("CN=Example Corp Root")), "{error}");

    let client_only =
        |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let error = shake(&upstream, world.origin(&[NAME], client_only)).await.unwrap_err();
    assert!(matches!(error, TlsError::Certificate(_)), "{error}");
}

#[tokio::test]
async fn an_origin_that_cannot_be_agreed_with_says_what_kind_it_is() {
    let world = World::new();
    let upstream = world.trusting();
    let mut config = world.origin(&[NAME], |_| {});
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let error = shake_as(&upstream, config.clone(), NAME, &[HTTP2, HTTP1]).await.unwrap_err();
    assert!(matches!(error, TlsError::NoApplicationProtocol), "{error}");
    shake_as(&upstream, config, NAME, &[b"acme-tls/1"]).await.unwrap();
    // Alerts, as records (RFC 8446 §6): level fatal, then which.
    for (alert, nothing_shared) in [(70, true), (40, true), (71, true), (80, false)] {
        let bytes: &'static [u8] = Box::leak(Box::new([21, 3, 3, 0, 2, 2, alert]));
        let error = answered(&upstream, bytes).await;
        assert_eq!(matches!(error, TlsError::NothingShared(_)), nothing_shared, "{alert}: {error}");
        assert!(nothing_shared || matches!(error, TlsError::Alert(_)), "{alert}: {error}");
    }
    assert!(matches!(answered(&upstream, &[21, 3, 3, 0, 2, 2, 120]).await, TlsError::NoApplicationProtocol));
    assert!(matches!(answered(&upstream, &[21, 3, 3, 0, 2, 2, 116]).await, TlsError::ClientCertificate));
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-x\r\n", b"\0\0\0\0\0\0\0\0"] {
        let error = answered(&upstream, answer).await;
        assert!(matches!(error, TlsError::NotTls), "{answer:?}: {error:?}");
    }
    assert!(matches!(answered(&upstream, b"").await, TlsError::Closed));
    let (near, _far) = duplex(1 << 16);
    let silent = upstream.handshake_within(Duration::from_millis(20), near, &host(NAME), &[]).await.unwrap_err();
    assert!(matches!(silent, TlsError::TimedOut), "{silent}");
}

#[tokio::test]
async fn sessions_are_resumed_whatever_is_offered() {
    let world = World::new();
    let upstream = world.trusting();
    let mut config = world.origin(&[NAME], |_| {});
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    let config = Arc::new(config);
    for (alpn, expected) in [
        (&[HTTP2, HTTP1][..], HandshakeKind::Full),
        (&[HTTP2, HTTP1][..], HandshakeKind::Resumed),
        (&[HTTP1][..], HandshakeKind::Resumed),
    ] {
        let (near, far) = duplex(1 << 16);
        let acceptor = TlsAcceptor::from(config.clone());
        let served = tokio::spawn(async move {
            let mut stream = acceptor.accept(far).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.flush().await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        });
        let (mut stream, _) = upstream.handshake(near, &host(NAME), alpn).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(expected));
        stream.read_u8().await.unwrap();
        drop(stream);
        served.await.unwrap();
    }
    // Offers are few, and kept.
    assert!(Arc::ptr_eq(&upstream.config(&[HTTP1]).unwrap(), &upstream.config(&[HTTP1]).unwrap()));
    for number in 0..2 * OFFERS.get() {
        upstream.config(&[number.to_string().as_bytes()]).unwrap();
    }
    assert_eq!(upstream.offers.lock().unwrap().len(), OFFERS.get());
}

#[test]
fn a_bad_file_of_roots_is_named_at_start() {
    let world = World::new();
    let bad = file(world.directory.path(), "bad.pem", "not a certificate\n");
    let error = Upstream::new(&[world.ca.clone(), bad.clone()]).unwrap_err().to_string();
    assert!(error.starts_with(bad.to_str().unwrap()), "{error}");
    // Nothing else is read before it is needed.
    assert!(world.trusting().base.get().is_none());
}

#[test]
fn names_are_listed_up_to_a_bound() {
    let names: Vec<String> = (0..20).map(|n| format!("DnsName(\"h{n}.example.com\")")).collect();
    assert!(listed(&names).ends_with("h7.example.com and 12 more"));
    assert_eq!(listed(&["IpAddress(192.0.2.7)".to_owned()]), "192.0.2.7");
    assert_eq!(listed(&[]), "nobody");
}

#[test]
fn a_certificate_of_an_old_version_is_told_so() {
    let certificate = |edit: fn(&mut Vec<u8>)| {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "Old Origin");
        let mut der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        edit(&mut der);
        CertificateDer::from(der)
    };
    let world = World::new();
    let verdict = |certificate: &CertificateDer<'_>| {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(CertificateDer::pem_file_iter(&world.ca).unwrap().filter_map(Result::ok));
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), super::super::provider());
        let verifier = Naming(verifier.build().unwrap());
        let name = ServerName::try_from(NAME).unwrap();
        match verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now()) {
            Err(rustls::Error::InvalidCertificate(error)) => explain_certificate(&error, &host(NAME)),
            other => panic!("{other:?}"),
        }
    };
    // `version [0] EXPLICIT INTEGER` (RFC 5280 §4.1): 2 is version 3.
    let old = certificate(|der| {
        let at = der.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]).unwrap();
        der[at + 4] = 0;
    });
    assert!(matches!(verdict(&old), TlsError::OldCertificate), "{:?}", verdict(&old));
    // The control: the same as it is issued today.
    assert!(matches!(verdict(&certificate(|_| {})), TlsError::SelfSigned { .. }));
}
