//! Requests inside tunnels: TLS on both legs, HTTP/1.1 and HTTP/2, each request judged by itself.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, server};

use super::super::http::Body;
use super::super::tls::authority::Authority;
use super::super::tls::{HTTP1, HTTP2};
use super::{Client, Fixture, SOON, origin, origins};
use crate::contract::HOST_ALIAS;
use crate::policy::host::Host;

/// An entry with these rules for a port of the host's loopback, open to every program.
pub(super) fn inspected(port: u16, rules: &str) -> String {
    format!(
        "  api:\n    endpoints: [{{host: {HOST_ALIAS}, port: {port}, {rules}}}]\n    binaries: [{{path: \"**\"}}]\n"
    )
}

const READING: &str = "protocol: rest, access: read-only";

pub(super) async fn fixture(port: u16, rules: &str) -> Fixture {
    Fixture::with_entries(vec![inspected(port, rules)]).await
}

/// An origin with a certificate by `authority`, which speaks `alpn` and nothing else.
async fn tls_origin<F, R>(authority: &Authority, alpn: Option<&'static [u8]>, serve: F) -> u16
where
    F: Fn(server::TlsStream<TcpStream>) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let config = authority.server_config(&Host::parse(HOST_ALIAS).unwrap(), alpn).unwrap();
    origin(move |stream| {
        let (acceptor, serve) = (TlsAcceptor::from(config.clone()), serve.clone());
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        }
    })
    .await
}

/// An origin that says what it was asked, and how long the body was in a trailer.
pub(super) async fn describing(alpn: Option<&'static [u8]>) -> u16 {
    tls_origin(origins(), alpn, move |stream| async move {
        let service = service_fn(described);
        let io = TokioIo::new(stream);
        if alpn == Some(HTTP2) {
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
        } else {
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        }
    })
    .await
}

pub(super) async fn described(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let head = format!("{} {} {:?}", request.method(), request.uri().path(), request.version());
    let body = request.into_body().collect().await?.to_bytes();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-length", body.len().to_string().parse().unwrap());
    let response = Response::builder().header("trailer", "x-length");
    Ok(response.body(Body::whole(head.into(), Some(trailers))).unwrap())
}

/// TLS inside a tunnel, as a client that trusts the sandbox's authority and asks for `name` has it.
pub(super) async fn inside(
    fixture: &Fixture,
    port: u16,
    name: &str,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(fixture.authority.certificate_pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, fixture.tunnel(port).await).await
}

pub(super) fn request(version: Version, method: &str, port: u16, path: &str) -> Request<Body> {
    let authority = format!("{HOST_ALIAS}:{port}");
    let request = Request::builder().method(method).version(version);
    let request = match version {
        Version::HTTP_2 => request.uri(format!("https://{authority}{path}")).header("te", "trailers"),
        _ => request.uri(path).header("host", authority).header("te", "trailers").header("connection", "te"),
    };
    request.body(Body::empty()).unwrap()
}

/// What a request was answered: status, fields, body, trailers.
pub(super) async fn answered(response: Response<Incoming>) -> (u16, HeaderMap, String, Option<HeaderMap>) {
    let (parts, body) = response.into_parts();
    let body = timeout(SOON, body.collect()).await.expect("a body in time").unwrap();
    let trailers = body.trailers().cloned();
    (parts.status.as_u16(), parts.headers, String::from_utf8(body.to_bytes().to_vec()).unwrap(), trailers)
}

/// A client of either version.
pub(super) enum Speaker {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

impl Speaker {
    pub(super) async fn over(stream: TlsStream<TcpStream>) -> Self {
        if stream.get_ref().1.alpn_protocol() == Some(HTTP2) {
            let (sender, connection) =
                http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            Self::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::One(sender)
        }
    }

    pub(super) fn version(&self) -> Version {
        match self {
            Self::One(_) => Version::HTTP_11,
            Self::Two(_) => Version::HTTP_2,
        }
    }

    pub(super) async fn send(&mut self, request: Request<Body>) -> Response<Incoming> {
        let response = async {
            match self {
                Self::One(sender) => {
                    sender.ready().await.unwrap();
                    sender.send_request(request).await.unwrap()
                }
                Self::Two(sender) => sender.send_request(request).await.unwrap(),
            }
        };
        timeout(SOON, response).await.expect("an answer in time")
    }

    pub(super) async fn ask(
        &mut self,
        method: &str,
        port: u16,
        path: &str,
    ) -> (u16, HeaderMap, String, Option<HeaderMap>) {
        let request = request(self.version(), method, port, path);
        answered(self.send(request).await).await
    }
}

#[tokio::test]
async fn each_request_is_judged_whatever_the_two_sides_speak() {
    let both: &[&[u8]] = &[HTTP2, HTTP1];
    for (offered, chosen, client_speaks, origin_speaks) in [
        (both, Some(HTTP2), Version::HTTP_2, "HTTP/2.0"),
        (both, Some(HTTP1), Version::HTTP_11, "HTTP/1.1"),
        (both, None, Version::HTTP_2, "HTTP/1.1"),
        (&[], None, Version::HTTP_11, "HTTP/1.1"),
        (&[HTTP1], Some(HTTP1), Version::HTTP_11, "HTTP/1.1"),
        // Translated, since the two have nothing in common.
        (&[HTTP1], Some(HTTP2), Version::HTTP_11, "HTTP/2.0"),
        (&[HTTP2], Some(HTTP1), Version::HTTP_2, "HTTP/1.1"),
        (&[HTTP2], None, Version::HTTP_2, "HTTP/1.1"),
    ] {
        let port = describing(chosen).await;
        let fixture = fixture(port, READING).await;
        let stream = inside(&fixture, port, HOST_ALIAS, offered).await.unwrap();
        let mut speaker = Speaker::over(stream).await;
        let case = format!("{offered:?} {chosen:?}");
        if chosen.is_some() {
            assert_eq!(speaker.version(), client_speaks, "{case}");
        }
        for _ in 0..3 {
            let (status, _, body, trailers) = speaker.ask("GET", port, "/read").await;
            assert_eq!((status, body.as_str()), (200, format!("GET /read {origin_speaks}").as_str()), "{case}");
            assert_eq!(trailers.unwrap_or_else(|| panic!("no trailers: {case}"))["x-length"], "0", "{case}");
            let (status, fields, body, _) = speaker.ask("DELETE", port, "/read").await;
            assert_eq!((status, fields["x-openshell-policy"].to_str().unwrap()), (403, "api"), "{case}");
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (body["error"].as_str(), body["layer"].as_str(), body["method"].as_str(), body["path"].as_str()),
                (Some("policy_denied"), Some("l7"), Some("DELETE"), Some("/read")),
                "{body}"
            );
            assert!(body["rule_missing"].is_object(), "{body}");
        }
        let recorded: Vec<_> = fixture.events().into_iter().filter_map(|event| event.http).collect();
        assert!(recorded.len() == 6 && recorded.iter().all(|http| http.secure), "{recorded:?}");
    }
}

#[tokio::test]
async fn without_rules_the_same_host_is_tunnelled_and_its_own_certificate_seen() {
    let port = describing(Some(HTTP1)).await;
    let fixture = Fixture::with_ports(&[port]).await;
    assert!(inside(&fixture, port, HOST_ALIAS, &[HTTP1]).await.is_err(), "the origin's certificate is not ours");
    let skipped = self::fixture(port, "tls: skip").await;
    assert!(inside(&skipped, port, HOST_ALIAS, &[HTTP1]).await.is_err());
    let inspected = self::fixture(port, READING).await;
    assert!(inside(&inspected, port, HOST_ALIAS, &[HTTP1]).await.is_ok());
}

#[tokio::test]
async fn another_name_inside_than_the_one_dialled_is_refused() {
    for alpn in [HTTP1, HTTP2] {
        let port = describing(Some(alpn)).await;
        let fixture = fixture(port, READING).await;
        // By SNI: whatever is asked then is refused, in a certificate that the client takes.
        let mut fronted = Speaker::over(inside(&fixture, port, "other.example.com", &[alpn]).await.unwrap()).await;
        let (status, _, body, _) = fronted.ask("GET", port, "/read").await;
        assert_eq!(status, 403);
        assert!(body.contains("request_authority_mismatch") && body.contains("other.example.com"), "{body}");
        // By Host or :authority, in one request of many.
        let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap()).await;
        for (path, expected) in [("/read", 200), ("/other", 403), ("/read", 200)] {
            let mut asked = request(speaker.version(), "GET", port, path);
            if expected == 403 {
                match speaker {
                    Speaker::One(_) => {
                        asked.headers_mut().insert("host", "other.example.com".parse().unwrap());
                    }
                    Speaker::Two(_) => *asked.uri_mut() = format!("https://other.example.com{path}").parse().unwrap(),
                }
            }
            let (status, _, body, _) = answered(speaker.send(asked).await).await;
            assert_eq!(status, expected, "{body}");
        }
        // Both at once, in disagreement.
        let mut asked = request(speaker.version(), "GET", port, "/read");
        if let Speaker::Two(_) = speaker {
            asked.headers_mut().insert("host", "other.example.com".parse().unwrap());
            assert_eq!(speaker.send(asked).await.status(), 403);
        }
    }
}

#[tokio::test]
async fn an_origin_that_nobody_vouches_for_is_502_with_the_reason() {
    let stranger = Authority::generate(Some("stranger")).unwrap();
    for alpn in [HTTP1, HTTP2] {
        let port = tls_origin(&stranger, Some(alpn), |_| async {}).await;
        let fixture = fixture(port, READING).await;
        let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap()).await;
        let (status, _, body, _) = speaker.ask("GET", port, "/read").await;
        assert_eq!(status, 502);
        assert!(body.contains("upstream_tls_failed") && body.contains("--upstream-ca"), "{body}");
        // The control: the same by an authority that is trusted.
        let port = describing(Some(alpn)).await;
        let fixture = self::fixture(port, READING).await;
        let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap()).await;
        assert_eq!(speaker.ask("GET", port, "/read").await.0, 200);
    }
}

#[tokio::test]
async fn what_is_neither_tls_nor_http_is_told_so() {
    let port = super::echo().await;
    let fixture = fixture(port, READING).await;
    for said in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"\0\0\0\x08\x04\xd2\x16\x2f", b"\x80\x2e\x01\x03\x01"] {
        let mut client = Client { stream: fixture.tunnel(port).await, buffer: Vec::new() };
        client.send(said).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 403, "{answer:?}");
        assert_eq!(answer.json()["error"], "unsupported_protocol");
        assert!(client.ends().await);
    }
    // The control: without rules the bytes pass.
    let free = Fixture::with_ports(&[port]).await;
    let mut stream = free.tunnel(port).await;
    stream.write_all(b"SSH-2.0").await.unwrap();
    let mut back = [0; 7];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"SSH-2.0");
}

#[tokio::test]
async fn who_says_nothing_is_told_so_and_who_stops_in_the_middle_too() {
    let port = super::echo().await;
    let fixture = Fixture::hasty_with(vec![inspected(port, READING)], 200).await;
    for (said, told) in [(&b""[..], "says nothing"), (b"\x16\x03\x01\x02\x00\x01\x00", "did not end it in time")] {
        let mut client = Client { stream: fixture.tunnel(port).await, buffer: Vec::new() };
        client.send(said).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.json()["detail"].as_str().unwrap().contains(told), "{answer:?}");
    }
}

#[tokio::test]
async fn http_in_the_clear_is_judged_as_well() {
    let port = origin(|stream| async move {
        let io = TokioIo::new(stream);
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service_fn(described)).await;
    })
    .await;
    let fixture = fixture(port, READING).await;
    let mut client = Client { stream: fixture.tunnel(port).await, buffer: Vec::new() };
    for (method, expected) in [("GET", 200), ("DELETE", 403), ("GET", 200)] {
        client.send(format!("{method} /read HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n")).await;
        assert_eq!(client.answer().await.status, expected);
    }
    client.send("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 400);
    assert!(client.ends().await);
    // Forward requests obey the same rules.
    for (method, expected) in [("GET", 200), ("DELETE", 403)] {
        let ask = format!("{method} http://{HOST_ALIAS}:{port}/read HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n");
        let (_, answer) = Client::ask(&fixture, ask).await;
        assert_eq!(answer.status, expected, "{answer:?}");
    }
}

#[tokio::test]
async fn a_wish_for_a_websocket_makes_no_other_method_a_get() {
    let port = describing(Some(HTTP1)).await;
    let fixture = fixture(port, "protocol: websocket, access: read-only").await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n";
    for (method, expected) in [("GET", "HTTP/1.1 200"), ("DELETE", "HTTP/1.1 403"), ("POST", "HTTP/1.1 403")] {
        let mut stream = raw_inside(&fixture, port, &format!("{method} /ws HTTP/1.1\r\n{upgrade}")).await;
        assert!(until(&mut stream, "\r\n\r\n").await.starts_with(expected), "{method}");
    }
}

#[tokio::test]
async fn a_connection_that_never_rests_leaves_time_for_the_others() {
    // Frames of a type that nobody knows, which HTTP/2 has ignored (RFC 9113 §5.5), and PRIORITY, which is (§5.3.2): they
    // are read without end. SETTINGS and PING ask for an answer each (CVE-2019-9512, CVE-2019-9515): whoever reads none is
    // read no further.
    never_rests(&[0, 0, 0, 0xfe, 0, 0, 0, 0, 0], true).await;
    never_rests(&[0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 16], true).await;
    never_rests(&[0, 0, 0, 4, 0, 0, 0, 0, 0], false).await;
    never_rests(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], false).await;
}

/// Sends a frame over and over, which is read without end or only as far as buffers go, while others are served.
async fn never_rests(frame: &'static [u8], endless: bool) {
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicBool, Ordering};
    let port = describing(Some(HTTP1)).await;
    let fixture = fixture(port, READING).await;
    let (address, done) = (fixture.address, Arc::new(AtomicBool::new(false)));
    let over = done.clone();
    let flood = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let connect = format!("CONNECT {HOST_ALIAS}:{port} HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n");
        stream.write_all(connect.as_bytes()).unwrap();
        assert_ne!(stream.read(&mut [0; 1024]).unwrap(), 0);
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        let frames = frame.repeat(4096);
        let mut sent = 0_u64;
        while !over.load(Ordering::Relaxed) && stream.write_all(&frames).is_ok() {
            sent += frames.len() as u64;
        }
        sent
    });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    for _ in 0..3 {
        let asked = async {
            let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[HTTP1]).await.unwrap()).await;
            speaker.ask("GET", port, "/read").await.0
        };
        assert_eq!(timeout(SOON, asked).await.expect("its turn"), 200);
    }
    if !endless {
        // It ends by itself, since nobody takes more of it.
        assert!(timeout(SOON * 4, flood).await.expect("an end in time").unwrap() > 0);
        return;
    }
    done.store(true, Ordering::Relaxed);
    // The control: it was read all the while.
    assert!(flood.await.unwrap() > 1024 * 1024);
}

#[tokio::test]
async fn what_means_another_request_or_two_bodies_is_refused() {
    let port = describing(Some(HTTP1)).await;
    let fixture = fixture(port, "protocol: rest, access: full").await;
    for (fields, expected) in [
        ("X-Mine: 1\r\nContent-Type: a/b\r\n", "HTTP/1.1 200"),
        ("X-HTTP-Method-Override: DELETE\r\n", "HTTP/1.1 400"),
        ("X-Original-URL: /other\r\n", "HTTP/1.1 400"),
        ("Content-Type: a/b\r\nContent-Type: c/d\r\n", "HTTP/1.1 400"),
    ] {
        let mut stream = raw_inside(&fixture, port, &format!("GET / HTTP/1.1\r\n{fields}")).await;
        assert!(until(&mut stream, "\r\n\r\n").await.starts_with(expected), "{fields}");
    }
}

#[tokio::test]
async fn a_tunnel_ends_when_its_endpoint_gets_request_rules() {
    let port = super::echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut stream = fixture.tunnel(port).await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    // The control: another policy that still leaves it alone.
    fixture.swap(&[super::entry(HOST_ALIAS, &[port, 1])]);
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    fixture.swap(&[inspected(port, READING)]);
    assert!(timeout(SOON, stream.read_u8()).await.expect("an end in time").is_err());
}

#[tokio::test]
async fn an_origin_that_only_promises_is_502() {
    let port = raw_origin(|mut stream, _| async move {
        while stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await.is_ok() {}
    })
    .await;
    let fixture = fixture(port, READING).await;
    let mut stream = raw_inside(&fixture, port, "GET / HTTP/1.1\r\n").await;
    assert!(until(&mut stream, "interim responses\",").await.contains("HTTP/1.1 502 "));
}

#[tokio::test]
async fn a_grpc_client_is_refused_in_grpc() {
    let port = describing(Some(HTTP2)).await;
    let fixture = fixture(port, "protocol: grpc, rules: [{allow: {service: pkg.Reader, method: 'Get*'}}]").await;
    let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[HTTP2]).await.unwrap()).await;
    for (path, allowed) in [("/pkg.Reader/GetIt", true), ("/pkg.Reader/Drop", false), ("/pkg.Writer/GetIt", false)] {
        let mut asked = request(Version::HTTP_2, "POST", port, path);
        asked.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        let (status, fields, _, _) = answered(speaker.send(asked).await).await;
        assert_eq!(status, 200, "{path}");
        let refused = fields.get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
        assert_eq!(refused.as_deref(), (!allowed).then_some("7"), "{path} {fields:?}");
        if !allowed {
            assert!(fields["grpc-message"].to_str().unwrap().starts_with("policy_denied: "), "{fields:?}");
        }
    }
}

/// An origin that reads a head, and then does as `serve` says with the raw stream.
pub(super) async fn raw_origin<F, R>(serve: F) -> u16
where
    F: Fn(server::TlsStream<TcpStream>, String) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    tls_origin(origins(), Some(HTTP1), move |mut stream| {
        let serve = serve.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => return,
                }
            }
            serve(stream, String::from_utf8(head).unwrap()).await;
        }
    })
    .await
}

pub(super) async fn raw_inside(fixture: &Fixture, port: u16, head: &str) -> TlsStream<TcpStream> {
    let mut stream = inside(fixture, port, HOST_ALIAS, &[HTTP1]).await.unwrap();
    let (line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    stream.write_all(format!("{line}\r\nHost: {HOST_ALIAS}:{port}\r\n{fields}\r\n").as_bytes()).await.unwrap();
    stream
}

/// Reads until `end` has come.
pub(super) async fn until(stream: &mut TlsStream<TcpStream>, end: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).ends_with(end) {
        let mut byte = [0];
        let count = timeout(SOON, stream.read(&mut byte)).await.expect("bytes in time").unwrap();
        assert_ne!(count, 0, "ended after {:?}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn interim_responses_pass_and_a_body_waits_for_its_100() {
    let port = raw_origin(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let mut body = [0; 4];
        // The body does not come before it is asked for.
        assert!(timeout(std::time::Duration::from_millis(100), stream.read_exact(&mut body)).await.is_err());
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        stream.read_exact(&mut body).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n").await.unwrap();
        stream.write_all(&body).await.unwrap();
    })
    .await;
    let fixture = fixture(port, "protocol: rest, access: full").await;
    let head = "PUT /a HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n";
    let mut stream = raw_inside(&fixture, port, head).await;
    let hints = until(&mut stream, "\r\n\r\n").await;
    assert!(hints.starts_with("HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n"), "{hints}");
    let go_on = until(&mut stream, "\r\n\r\n").await;
    assert!(go_on.starts_with("HTTP/1.1 100 "), "{go_on}");
    stream.write_all(b"body").await.unwrap();
    assert!(until(&mut stream, "body").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn events_of_a_stream_arrive_one_by_one_however_long_the_silence() {
    let port = raw_origin(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").await.unwrap();
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            stream.write_all(event.as_bytes()).await.unwrap();
            // Three times the patience of this proxy.
            tokio::time::sleep(std::time::Duration::from_millis(900)).await;
        }
    })
    .await;
    let fixture = Fixture::hasty_with(vec![inspected(port, READING)], 300).await;
    let mut stream = raw_inside(&fixture, port, "GET /events HTTP/1.1\r\n").await;
    until(&mut stream, "data: 1\n\n").await;
    until(&mut stream, "data: 2\n\n").await;
}

#[tokio::test]
async fn a_new_policy_ends_what_it_no_longer_allows_and_nothing_else() {
    let port = tls_origin(origins(), Some(HTTP2), |stream| async move {
        let service = service_fn(|request: Request<Incoming>| async move {
            let (mut sender, body) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(1);
            tokio::spawn(async move {
                while sender.send_data(Bytes::from_static(b"tick")).await.is_ok() {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            });
            drop(request);
            Ok::<_, std::io::Error>(Response::new(body))
        });
        let io = TokioIo::new(stream);
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
    })
    .await;
    let rules = |paths: &str| inspected(port, &format!("protocol: rest, rules: [{paths}]"));
    let allow = |path: &str| format!("{{allow: {{method: GET, path: {path}}}}}");
    let both = rules(&format!("{}, {}", allow("/a"), allow("/b")));
    let fixture = Fixture::with_entries(vec![both]).await;
    let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[HTTP2]).await.unwrap()).await;
    let mut kept = speaker.send(request(Version::HTTP_2, "GET", port, "/a")).await.into_body();
    let mut ended = speaker.send(request(Version::HTTP_2, "GET", port, "/b")).await.into_body();
    assert!(kept.frame().await.unwrap().is_ok() && ended.frame().await.unwrap().is_ok());
    fixture.swap(&[rules(&allow("/a"))]);
    let broke_off = async { while let Some(Ok(_)) = ended.frame().await {} };
    timeout(SOON, broke_off).await.expect("the stream that is no longer allowed ends");
    for _ in 0..3 {
        assert!(kept.frame().await.unwrap().is_ok());
    }
    assert_eq!(speaker.ask("GET", port, "/b").await.0, 403);
}
