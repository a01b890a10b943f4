//! A corporate proxy that is reached by https.

use tokio_rustls::TlsAcceptor;

use super::*;
use crate::egress::tls::upstream::Upstream;

/// A proxy behind TLS, whose certificate is for `name`; and a client that trusts its authority.
async fn tls_proxy(name: &str, banner: &'static str) -> (u16, Arc<Upstream>, Arc<Upstream>) {
    let signed = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls_pki_types::PrivateKeyDer::Pkcs8(signed.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let port = origin(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            assert!(head(&mut stream).await.starts_with("CONNECT 8.8.8.8:443 HTTP/1.1\r\n"));
            let _ = stream.write_all(format!("{OPEN}{banner}").as_bytes()).await;
            let (mut read, mut write) = tokio::io::split(stream);
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        }
    })
    .await;
    let root = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(root.path(), signed.cert.pem()).unwrap();
    let trusting = Upstream::new(&[root.path().to_owned()]).unwrap();
    (port, Arc::new(trusting), Arc::new(Upstream::new(&[]).unwrap()))
}

fn secured(port: u16, tls: Arc<Upstream>) -> ParentSettings {
    ParentSettings { url: format!("https://127.0.0.1:{port}").parse().unwrap(), tls: Some(tls), ..at(port) }
}

#[tokio::test]
async fn a_proxy_behind_tls_must_prove_who_it_is() {
    let (port, trusting, public) = tls_proxy("127.0.0.1", "hello ").await;
    let (leg, _) = parent(secured(port, trusting.clone())).tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap();
    assert!(matches!(leg, Leg::Tls(_)));
    // By whose authority, and for which name.
    let unknown = parent(secured(port, public)).tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap_err();
    assert!(matches!(unknown, ParentError::Tls { .. }), "{unknown}");
    let (port, trusting, _) = tls_proxy("other.example.com", "").await;
    let misnamed = parent(secured(port, trusting.clone())).tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap_err();
    assert!(matches!(misnamed, ParentError::Tls { .. }), "{misnamed}");
    // What speaks no TLS is told so, and is not spoken to in clear.
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let port = origin(move |mut stream| {
        let log = log.clone();
        async move {
            let mut bytes = Vec::new();
            let _ = stream.read_buf(&mut bytes).await;
            log.lock().unwrap().extend(bytes);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    })
    .await;
    let clear = parent(secured(port, trusting)).tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap_err();
    assert!(matches!(clear, ParentError::Tls { .. }), "{clear}");
    // A record of type handshake (RFC 8446 §5.1).
    assert_eq!(asked.lock().unwrap().first(), Some(&22));
}

#[tokio::test]
async fn a_tunnel_inside_tls_carries_both_ways_to_the_end() {
    let (port, trusting, _) = tls_proxy("127.0.0.1", "hello ").await;
    let (fixture, _files) = fixture("8.8.8.8", secured(port, trusting)).await;
    let (client, answer) = ask(&fixture, API).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let sent: Vec<u8> = (0..4 * 1024 * 1024_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = [b"hello ", sent.as_slice()].concat();
    let mut all = client.buffer;
    let (mut read, mut write) = client.stream.into_split();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    tokio::time::timeout(SOON * 4, read.read_to_end(&mut all)).await.unwrap().unwrap();
    writer.await.unwrap();
    assert!(all == expected);
    // A new policy ends it as any other.
    let (mut client, _) = ask(&fixture, API).await;
    while client.buffer.len() < 6 {
        assert_ne!(client.more().await, 0);
    }
    fixture.swap(&[entry("github.com", &[443])]);
    assert!(tokio::time::timeout(SOON, client.stream.read_u8()).await.unwrap().is_err());
}
