//! The workload's end against proxies that go, come back, and forget.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::attest::{Begun, Verifier, begun};
use crate::attribution::{AttributionConfig, Processes};
use crate::sys::netlink::{Protocol, Socket};

const KEY: [u8; 32] = [9; 32];

fn key() -> Key {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), KEY).unwrap();
    Key::read(file.path()).unwrap()
}

fn attributor() -> Arc<Attributor> {
    let proc = std::fs::File::open("/proc").unwrap().into();
    let diagnosis = Socket::open(Protocol::SocketDiagnosis).unwrap();
    Arc::new(Attributor::new(AttributionConfig { diagnosis, processes: Processes::All(proc) }))
}

/// A workload's end before a proxy at `proxy`, and where the workload connects.
async fn remote(proxy: SocketAddr, keyed: bool) -> (SocketAddr, watch::Sender<bool>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let settings = RemoteSettings {
        proxy: (Host::Address(proxy.ip()), proxy.port()),
        resolver: Resolver::default(),
        attesting: keyed.then(|| (key(), attributor())),
        events: Events::off(),
        patience: limits::Patience::default(),
    };
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(Remote::new(settings).serve(vec![listener], stopped));
    (at, stop)
}

/// A message of ours, whole, and what came behind it.
async fn message(stream: &mut TcpStream) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        match begun(&bytes) {
            Begun::Hello(length) | Begun::Preface(length) => {
                let rest = bytes.split_off(length);
                return (bytes, rest);
            }
            Begun::Short(_) => assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0),
            other => panic!("{other:?}: {bytes:?}"),
        }
    }
}

/// All that a stream still says.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn bytes_pass_both_ways_and_an_end_passes_as_an_end() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, _stop) = remote(proxy.local_addr().unwrap(), false).await;
    let mut client = TcpStream::connect(at).await.unwrap();
    let (mut upstream, _) = proxy.accept().await.unwrap();
    client.write_all(b"ask").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut upstream).await, "ask");
    upstream.write_all(b"answer").await.unwrap();
    drop(upstream);
    assert_eq!(rest(&mut client).await, "answer");
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_an_answer() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for keyed in [false, true] {
        let (at, _stop) = remote(gone, keyed).await;
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n").await.unwrap();
        let answer = rest(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 502 Sandbox proxy could not be reached\r\n"), "{answer}");
        assert!(answer.contains("\"error\":\"proxy_unavailable\"") && answer.contains("refused"), "{answer}");
    }
}

#[tokio::test]
async fn what_a_proxy_has_forgotten_is_said_again_with_all_that_was_sent() {
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (at, _stop) = remote(proxy.local_addr().unwrap(), true).await;
    // Its first session, which it will not remember.
    let first = Verifier::new(key());
    let (mut session, _) = proxy.accept().await.unwrap();
    let (hello, _) = message(&mut session).await;
    let admission = first.admit(&mut session, &hello).await.unwrap();
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(b"POST http://a.example/ HTTP/1.1\r\n\r\nsome").await.unwrap();
    let (mut upstream, _) = proxy.accept().await.unwrap();
    let (preface, _) = message(&mut upstream).await;
    assert!(first.believe(&preface).is_ok(), "control: the session is known");
    // More of the body comes before the answer does.
    client.write_all(b" more").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = Verifier::new(key());
    upstream.write_all(&UNKNOWN_SESSION).await.unwrap();
    drop(upstream);
    // Another session is opened although the connection of the first still stands, and all is said again.
    let mut open = None;
    let mut repeated = loop {
        let (mut stream, _) = proxy.accept().await.unwrap();
        let (bytes, rest) = message(&mut stream).await;
        match begun(&bytes) {
            Begun::Hello(_) => {
                let admission = second.admit(&mut stream, &bytes).await.unwrap();
                open = Some((stream, admission));
            }
            _ => break (stream, bytes, rest),
        }
    };
    assert!(open.is_some());
    assert!(second.believe(&repeated.1).is_ok());
    let expected = "POST http://a.example/ HTTP/1.1\r\n\r\nsome more";
    while repeated.2.len() < expected.len() {
        repeated.0.read_buf(&mut repeated.2).await.unwrap();
    }
    assert_eq!(repeated.2, expected.as_bytes());
    repeated.0.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    drop(repeated);
    assert_eq!(rest(&mut client).await, "HTTP/1.1 200 OK\r\n\r\n");
    drop((admission, session));
}

#[tokio::test]
async fn a_proxy_that_closes_without_a_word_is_an_answer_too() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, _stop) = remote(proxy.local_addr().unwrap(), true).await;
    let verifier = Verifier::new(key());
    let (mut session, _) = proxy.accept().await.unwrap();
    let (hello, _) = message(&mut session).await;
    let _admission = verifier.admit(&mut session, &hello).await.unwrap();
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(b"GET http://a.example/ HTTP/1.1\r\n\r\n").await.unwrap();
    let (mut upstream, _) = proxy.accept().await.unwrap();
    message(&mut upstream).await;
    drop(upstream);
    let answer = rest(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("without an answer"), "{answer}");
}
