//! Behind a corporate proxy: what it is asked, what its answers become, and that nothing goes around it.

mod squid;
mod tls;

use std::net::IpAddr;

use hyper::Request;

use super::*;
use crate::egress::parent::{Credentials, Leg, Parent, ParentError, ParentSettings, Route};
use crate::egress::{Exemptions, guard, limits};
use crate::policy::host::Host;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Settings for a proxy on this host's loopback.
fn at(port: u16) -> ParentSettings {
    ParentSettings {
        url: format!("http://127.0.0.1:{port}").parse().unwrap(),
        exempt: Exemptions::default(),
        credentials: None,
        resolve_remotely: false,
        tls: None,
    }
}

fn parent(settings: ParentSettings) -> Parent {
    let resolver = Arc::new(Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53));
    Parent::new(settings, resolver, guard::Own::default(), limits::PARENT_TIME)
}

fn credentials(text: &str) -> Credentials {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Credentials::read(file.path()).unwrap()
}

/// Reads a head off a stream, byte by byte.
async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// A proxy that answers every CONNECT with `answer`, then echoes; what it was asked.
async fn proxy(answer: impl Into<String>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, answer) = (asked.clone(), answer.into());
    let port = origin(move |mut stream| {
        let (log, answer) = (log.clone(), answer.clone());
        async move {
            let request = head(&mut stream).await;
            log.lock().unwrap().push(request);
            let _ = stream.write_all(answer.as_bytes()).await;
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        }
    })
    .await;
    (port, asked)
}

const OPEN: &str = "HTTP/1.1 200 OK\r\n\r\n";
const API: &str = "api.example.com";

fn api() -> Host {
    Host::parse(API).unwrap()
}

/// A proxy of ours behind that parent, which knows one name and lets everyone reach it.
async fn fixture(address: &str, settings: ParentSettings) -> (Fixture, tempfile::TempDir) {
    let (directory, resolver) = files(&format!("{address} {API}\n"), "");
    let network = vec![entry("*.example.com", &[443])];
    (Fixture::with_parent(network, resolver(9), Patience::default(), None, Some(settings)).await, directory)
}

async fn ask(fixture: &Fixture, host: &str) -> (Client, Answer) {
    Client::ask(fixture, format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n")).await
}

async fn echoes(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) {
    stream.write_all(b"ping").await.unwrap();
    stream.flush().await.unwrap();
    let mut back = [0; 4];
    tokio::time::timeout(SOON, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"ping");
}

#[tokio::test]
async fn a_tunnel_is_asked_for_by_the_address_that_was_judged() {
    let (port, asked) = proxy(OPEN).await;
    let (fixture, _files) = fixture("8.8.8.8", at(port)).await;
    let (mut client, answer) = ask(&fixture, API).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    client.send("ping").await;
    while client.buffer.len() < 4 {
        assert_ne!(client.more().await, 0);
    }
    assert_eq!(client.buffer, b"ping");
    assert_eq!(*asked.lock().unwrap(), ["CONNECT 8.8.8.8:443 HTTP/1.1\r\nHost: 8.8.8.8:443\r\n\r\n"]);
    let event = fixture.events().pop().unwrap();
    assert_eq!(event.via.unwrap().to_string(), format!("127.0.0.1:{port}"));
    assert_eq!((event.host.as_str(), event.address), (API, Some(ip("8.8.8.8"))));
}

#[tokio::test]
async fn the_guard_holds_in_front_of_the_proxy() {
    let (port, asked) = proxy(OPEN).await;
    for (address, remotely) in
        [("10.0.0.1", false), ("127.0.0.1", false), ("169.254.169.254", true), ("10.0.0.1", true)]
    {
        let settings = ParentSettings { resolve_remotely: remotely, ..at(port) };
        let (fixture, _files) = fixture(address, settings).await;
        let (_, answer) = ask(&fixture, API).await;
        assert_eq!(answer.json()["error"], "destination_denied", "{address} {answer:?}");
        // Nor does an address that a policy names open what is never dialled.
        if address != "10.0.0.1" {
            fixture.swap(&[entry(address, &[443])]);
            let (_, answer) = ask(&fixture, address).await;
            assert_eq!(answer.json()["error"], "destination_denied", "{address} {answer:?}");
        }
    }
    assert!(asked.lock().unwrap().is_empty());
    // The control: the proxy itself is private too, and a public destination passes.
    let (fixture, _files) = fixture("8.8.8.8", at(port)).await;
    assert_eq!(ask(&fixture, API).await.1.status, 200);
}

#[tokio::test]
async fn names_go_out_only_where_the_proxy_is_to_resolve_them() {
    let (port, asked) = proxy(OPEN).await;
    let (near, _files) = fixture("8.8.8.8", at(port)).await;
    let (_, answer) = ask(&near, "unknown.example.com").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("unresolvable")));
    assert!(answer.json()["next_steps"].to_string().contains("--upstream-proxy-resolve-remotely"), "{answer:?}");
    assert!(asked.lock().unwrap().is_empty());
    let (far, _files) = fixture("8.8.8.8", ParentSettings { resolve_remotely: true, ..at(port) }).await;
    for host in ["unknown.example.com", API] {
        assert_eq!(ask(&far, host).await.1.status, 200);
        let last = asked.lock().unwrap().pop().unwrap();
        assert_eq!(last, format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n"));
    }
    assert_eq!(fixture_address(&far), None);
    // Where the address alone decides, a name that has none here is nothing that could be allowed.
    far.swap(&[
        "  ranges:\n    endpoints: [{port: 443, allowed_ips: [\"8.0.0.0/8\"]}]\n    binaries: [{path: \"**\"}]\n"
            .to_owned(),
    ]);
    let (_, answer) = ask(&far, "unknown.example.com").await;
    assert_eq!(answer.json()["error"], "destination_denied", "{answer:?}");
    assert_eq!(ask(&far, API).await.1.status, 200);
}

/// The address that the last event names.
fn fixture_address(fixture: &Fixture) -> Option<IpAddr> {
    fixture.events().pop().unwrap().address
}

#[tokio::test]
async fn what_is_exempt_is_dialled_and_nothing_else_ever_is() {
    // Nobody is at the proxy: only the exempt name could arrive.
    let gone = closed_port();
    let settings = ParentSettings { exempt: "other.example.com,192.0.2.0/24".parse().unwrap(), ..at(gone) };
    let parent = parent(settings);
    let other = Host::parse("other.example.com").unwrap();
    assert_eq!(parent.route(&other, 443, &[ip("8.8.8.8")]), Route::Direct);
    assert_eq!(parent.route(&api(), 443, &[ip("192.0.2.1")]), Route::Direct);
    assert_eq!(parent.route(&api(), 443, &[ip("8.8.8.8")]), Route::Through);
    let (fixture, _files) = fixture("8.8.8.8", at(gone)).await;
    let (_, answer) = ask(&fixture, API).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("upstream_proxy_failed")), "{answer:?}");
    assert_eq!(answer.json()["via"], format!("127.0.0.1:{gone}"));
    assert!(answer.json()["detail"].as_str().unwrap().contains(&format!("http://127.0.0.1:{gone}")), "{answer:?}");
    let echo = echo().await;
    // This host's own loopback is nowhere behind a proxy.
    let network = vec![entry(HOST_ALIAS, &[echo])];
    let resolver = Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53);
    let fixture = Fixture::with_parent(network, resolver, Patience::default(), None, Some(at(gone))).await;
    let mut client = fixture.client().await;
    client.connect(echo).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn every_answer_but_success_is_an_error_that_names_the_proxy() {
    let large = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(limits::PARENT_HEAD_BYTES));
    for (answer, status, error, told) in [
        (
            "HTTP/1.1 407 Log in\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n",
            502,
            "upstream_proxy_auth",
            "407: it wants",
        ),
        (
            "HTTP/1.1 407 Log in\r\nProxy-Authenticate: Negotiate\r\n\r\n",
            502,
            "upstream_proxy_auth",
            "offers Negotiate",
        ),
        (
            "HTTP/1.1 403 Forbidden\r\n\r\n",
            502,
            "upstream_proxy_refused",
            "answered 403 Forbidden to CONNECT 8.8.8.8:443",
        ),
        ("HTTP/1.1 503 Unavailable\r\n\r\n", 502, "upstream_proxy_refused", "answered 503 Unavailable"),
        ("HTTP/1.1 504 Too late\r\n\r\n", 504, "upstream_timeout", "answered 504 Too late"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://login.example.com/\r\n\r\n",
            502,
            "upstream_proxy_refused",
            "302 Found",
        ),
        ("HTTP/1.1 101 Switching\r\n\r\n", 502, "upstream_proxy_refused", "101 Switching"),
        ("SSH-2.0-OpenSSH\r\n\r\n", 502, "upstream_proxy_failed", "not HTTP/1.1"),
        (large.as_str(), 502, "upstream_proxy_failed", "exceeds 8192 bytes"),
    ] {
        let (port, asked) = proxy(answer).await;
        let (fixture, _files) = fixture("8.8.8.8", at(port)).await;
        let (_, answer) = ask(&fixture, API).await;
        let json = answer.json();
        assert_eq!((answer.status, json["error"].as_str()), (status, Some(error)), "{answer:?}");
        let detail = json["detail"].as_str().unwrap();
        assert!(detail.contains(told) && detail.contains(&format!("http://127.0.0.1:{port}")), "{detail}");
        assert_eq!(json["via"], format!("127.0.0.1:{port}"));
        let event = fixture.events().pop().unwrap();
        assert_eq!((event.stage, event.via.unwrap().port), (crate::event::Stage::Dial, port));
        assert_eq!(asked.lock().unwrap().len(), 1);
    }
    // The control, with what RFC 9110 has a client pass over.
    let (port, _) = proxy("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 204 Fine\r\nContent-Length: 5\r\n\r\n").await;
    let (fixture, _files) = fixture("8.8.8.8", at(port)).await;
    assert_eq!(ask(&fixture, API).await.1.status, 200);
}

#[tokio::test]
async fn a_proxy_that_closes_or_is_silent_is_not_waited_for() {
    let closing = origin(|mut stream| async move {
        head(&mut stream).await;
    })
    .await;
    let (near, _files) = fixture("8.8.8.8", at(closing)).await;
    let (_, answer) = ask(&near, API).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("upstream_proxy_failed")), "{answer:?}");
    let silent = origin(|stream| async move {
        tokio::time::sleep(SOON).await;
        drop(stream);
    })
    .await;
    let (_files, resolver) = files(&format!("8.8.8.8 {API}\n"), "");
    let patience = Patience { parent: Duration::from_millis(200), ..Patience::default() };
    let network = vec![entry(API, &[443])];
    let hasty = Fixture::with_parent(network, resolver(9), patience, None, Some(at(silent))).await;
    let (_, answer) = ask(&hasty, API).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (504, Some("upstream_timeout")), "{answer:?}");
    assert_eq!(answer.json()["via"], format!("127.0.0.1:{silent}"));
}

#[tokio::test]
async fn a_proxy_that_is_this_proxy_is_never_dialled() {
    let (port, asked) = proxy(OPEN).await;
    let own = guard::Own::new(vec![format!("127.0.0.1:{port}").parse().unwrap()]);
    let resolver = Arc::new(Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53));
    let looped = Parent::new(at(port), resolver, own, limits::PARENT_TIME);
    let error = looped.tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap_err();
    assert!(matches!(error, ParentError::Own { .. }), "{error}");
    assert!(asked.lock().unwrap().is_empty());
    parent(at(port)).tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap();
}

#[tokio::test]
async fn the_proxys_own_name_is_resolved_like_any() {
    let (port, _) = proxy(OPEN).await;
    let url = format!("http://proxy.example.com:{port}");
    for (hosts, opens) in [("127.0.0.1 proxy.example.com\n", true), ("", false)] {
        let (_files, resolver) = files(hosts, "");
        let settings = ParentSettings { url: url.parse().unwrap(), ..at(port) };
        let parent = Parent::new(settings, Arc::new(resolver(9)), guard::Own::default(), limits::PARENT_TIME);
        match parent.tunnel(&api(), 443, &[ip("8.8.8.8")]).await {
            Ok((mut leg, address)) => {
                assert_eq!((opens, address), (true, Some(ip("8.8.8.8"))));
                echoes(&mut leg).await;
            }
            Err(error) => {
                assert!(!opens && matches!(error, ParentError::Unresolvable { .. }), "{error}");
                assert!(error.to_string().contains(&url), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn the_next_address_is_asked_for_only_where_the_proxy_could_not_reach_one() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let port = origin(move |mut stream| {
        let log = log.clone();
        async move {
            let request = head(&mut stream).await;
            let refused = if request.contains("[2001:4860::1]") { Some("503 No route") } else { None };
            let refused = refused.or(request.contains("9.9.9.9").then_some("403 No"));
            log.lock().unwrap().push(request.lines().next().unwrap().to_owned());
            let _ = stream.write_all(format!("HTTP/1.1 {}\r\n\r\n", refused.unwrap_or("200 OK")).as_bytes()).await;
        }
    })
    .await;
    let parent = parent(at(port));
    let (_, address) = parent.tunnel(&api(), 443, &[ip("2001:4860::1"), ip("8.8.8.8")]).await.unwrap();
    assert_eq!(address, Some(ip("8.8.8.8")));
    assert_eq!(*asked.lock().unwrap(), ["CONNECT [2001:4860::1]:443 HTTP/1.1", "CONNECT 8.8.8.8:443 HTTP/1.1"]);
    asked.lock().unwrap().clear();
    let error = parent.tunnel(&api(), 443, &[ip("9.9.9.9"), ip("8.8.8.8")]).await.unwrap_err();
    assert!(matches!(error, ParentError::Refused { status: 403, by_address: true, .. }), "{error}");
    assert_eq!(asked.lock().unwrap().len(), 1);
    assert!(matches!(parent.tunnel(&api(), 443, &[]).await, Err(ParentError::NoAddress { .. })));
}

#[tokio::test]
async fn bytes_behind_the_answer_belong_to_the_tunnel() {
    let (port, _) = proxy("HTTP/1.1 200 OK\r\nVia: x\r\n\r\nSSH-2.0-x\r\n").await;
    let (mut leg, _) = parent(at(port)).tunnel(&api(), 22, &[ip("8.8.8.8")]).await.unwrap();
    let mut banner = [0; 11];
    leg.read_exact(&mut banner).await.unwrap();
    assert_eq!(&banner, b"SSH-2.0-x\r\n");
    // And an answer that comes in pieces is one answer.
    let port = origin(|mut stream| async move {
        head(&mut stream).await;
        for byte in b"HTTP/1.1 200 OK\r\n\r\n!" {
            let _ = stream.write_all(&[*byte]).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let (mut leg, _) = parent(at(port)).tunnel(&api(), 22, &[ip("8.8.8.8")]).await.unwrap();
    assert_eq!(leg.read_u8().await.unwrap(), b'!');
}

#[tokio::test]
async fn credentials_go_to_the_proxy_and_are_shown_nowhere() {
    let (port, asked) = proxy(OPEN).await;
    let settings = ParentSettings { credentials: Some(credentials("me:secret\n")), ..at(port) };
    assert!(!format!("{settings:?}").contains("bWU6"));
    parent(settings).tunnel(&api(), 443, &[ip("8.8.8.8")]).await.unwrap();
    let request = asked.lock().unwrap().pop().unwrap();
    assert!(request.contains("\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{request}");
    let (port, _) = proxy("HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n").await;
    let settings = ParentSettings { credentials: Some(credentials("me:secret\n")), ..at(port) };
    let (fixture, _files) = fixture("8.8.8.8", settings).await;
    let (_, answer) = ask(&fixture, API).await;
    assert!(answer.json()["detail"].as_str().unwrap().contains("407: it refuses the credentials"), "{answer:?}");
    assert_eq!(answer.field("proxy-authenticate"), None);
    assert!(!format!("{answer:?}").contains("bWU6"));
}

#[test]
fn a_request_is_addressed_to_the_proxy() {
    let ours = parent(ParentSettings { credentials: Some(credentials("me:secret")), ..at(1) });
    for (host, port, path, target) in [
        (API, 80, "/a%2Fb?q=1", "http://api.example.com/a%2Fb?q=1"),
        (API, 8080, "/", "http://api.example.com:8080/"),
        ("[2001:db8::80]", 80, "/", "http://[2001:db8::80]/"),
    ] {
        let mut request = Request::get(path).header("proxy-authorization", "Basic dGhlaXJz").body(()).unwrap();
        ours.address(&mut request, &Host::parse(host).unwrap(), port).unwrap();
        assert_eq!(request.uri().to_string(), target);
        let fields: Vec<_> = request.headers().get_all("proxy-authorization").into_iter().collect();
        assert_eq!(fields, ["Basic bWU6c2VjcmV0"]);
        parent(at(1)).address(&mut request, &Host::parse(host).unwrap(), port).unwrap();
        assert!(!request.headers().contains_key("proxy-authorization"));
    }
    let answer =
        |status| hyper::Response::builder().status(status).header("proxy-authenticate", "NTLM").body(()).unwrap();
    assert!(ours.judge(&answer(200)).is_ok() && ours.judge(&answer(401)).is_ok());
    let error = ours.judge(&answer(407)).unwrap_err();
    assert!(
        matches!(&error, ParentError::Authentication { sent: true, schemes, .. } if schemes == &["NTLM"]),
        "{error}"
    );
}
