//! Loads inside TLS, for a client that trusts what SSL_CERT_FILE names: keep-alive requests, new connections, streams.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::HOST;
use hyper::http::request::Builder;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::Way;

/// A configuration that trusts the file, and offers this protocol.
fn trusting(protocol: &[u8], resumption: bool) -> Arc<ClientConfig> {
    let file = std::env::var("SSL_CERT_FILE").expect("SSL_CERT_FILE");
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).expect("SSL_CERT_FILE can be read");
    roots.add_parsable_certificates(certificates.flatten());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    if !resumption {
        config.resumption = rustls::client::Resumption::disabled();
    }
    Arc::new(config)
}

type Stream = StreamOwned<ClientConnection, std::net::TcpStream>;

fn open(way: &Way, config: &Arc<ClientConfig>) -> Stream {
    let stream = way.open();
    stream.set_nodelay(true).expect("nodelay");
    let name = ServerName::from(way.origin.ip());
    StreamOwned::new(ClientConnection::new(config.clone(), name).expect("a connection"), stream)
}

fn ask(stream: &mut Stream, way: &Way, buffer: &mut [u8]) {
    let line = format!("GET /1k HTTP/1.1\r\nHost: {}\r\n\r\n", way.origin);
    stream.write_all(line.as_bytes()).expect("ask");
    let mut filled = 0;
    let (head, mut have) = loop {
        filled += stream.read(&mut buffer[filled..]).expect("an answer");
        if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            break (end, filled - end - 4);
        }
    };
    assert!(buffer[..head].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..head]));
    while have < 1024 {
        have += stream.read(&mut buffer[..]).expect("a body");
    }
}

/// Keep-alive requests on `clients` connections; and the time of each on one, in between.
pub fn requests(way: &Way, clients: u64, length: Duration) {
    let config = trusting(b"http/1.1", true);
    let done = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let (way, config, done) = (way.clone(), config.clone(), done.clone());
            std::thread::spawn(move || {
                let mut stream = open(&way, &config);
                let (mut buffer, mut taken) = (vec![0; 16 * 1024], Vec::new());
                while !done.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    ask(&mut stream, &way, &mut buffer);
                    taken.push(started.elapsed().as_secs_f64() * 1e3);
                }
                taken
            })
        })
        .collect();
    let started = Instant::now();
    std::thread::sleep(length);
    done.store(true, Ordering::Relaxed);
    let mut taken: Vec<f64> = threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect();
    let elapsed = started.elapsed().as_secs_f64();
    taken.sort_by(f64::total_cmp);
    println!("{{\"per_second\":{:.0},\"p50_ms\":{:.4}}}", taken.len() as f64 / elapsed, taken[taken.len() / 2]);
}

/// Connections made, used once and closed, a whole handshake each.
pub fn connections(way: &Way, clients: u64, length: Duration) {
    let config = trusting(b"http/1.1", false);
    let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let (way, config, done, count) = (way.clone(), config.clone(), done.clone(), count.clone());
            std::thread::spawn(move || {
                let mut buffer = vec![0; 16 * 1024];
                while !done.load(Ordering::Relaxed) {
                    ask(&mut open(&way, &config), &way, &mut buffer);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let started = Instant::now();
    std::thread::sleep(length);
    done.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a client"));
    println!("{{\"per_second\":{:.0}}}", count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64());
}

/// One body of so many megabytes, towards the client.
pub fn download(way: &Way, megabytes: u64) {
    let mut stream = open(way, &trusting(b"http/1.1", true));
    let size = megabytes << 20;
    let range = format!("Range: bytes=0-{}", size - 1);
    let head = format!("GET /big HTTP/1.1\r\nHost: {}\r\n{range}\r\nConnection: close\r\n\r\n", way.origin);
    let started = Instant::now();
    stream.write_all(head.as_bytes()).expect("ask");
    let mut buffer = vec![0; 256 << 10];
    let mut have = 0;
    while have < size {
        // The head is counted too: some hundred bytes.
        have += match stream.read(&mut buffer).expect("a body") {
            0 => panic!("the body ends after {have} bytes"),
            length => length as u64,
        };
    }
    told(size, started);
}

/// The same, towards the origin.
pub fn upload(way: &Way, megabytes: u64) {
    let mut stream = open(way, &trusting(b"http/1.1", true));
    let size = megabytes << 20;
    let head = format!("POST /sink HTTP/1.1\r\nHost: {}\r\nContent-Length: {size}\r\n\r\n", way.origin);
    let started = Instant::now();
    stream.write_all(head.as_bytes()).expect("ask");
    let piece = vec![b'x'; 256 << 10];
    for _ in 0..size / piece.len() as u64 {
        stream.write_all(&piece).expect("a body");
    }
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    told(size, started);
}

fn told(size: u64, started: Instant) {
    println!("{{\"mb_per_second\":{:.0}}}", size as f64 / 1e6 / started.elapsed().as_secs_f64());
}

/// Requests over HTTP/2, `streams` at a time on one connection.
pub fn streams(way: &Way, streams: u64, length: Duration) {
    alone(async {
        let stream = connect(way, b"h2").await;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        let senders = (0..streams).map(|_| sender.clone()).collect();
        let request = Request::get(format!("https://{}/1k", way.origin));
        over_and_over(request, senders, length, async |sender, request| sender.send_request(request).await).await;
    });
}

/// The same by the same library, on a connection each.
pub fn kept(way: &Way, connections: u64, length: Duration) {
    alone(async {
        let mut senders = Vec::new();
        for _ in 0..connections {
            let (sender, connection) = http1::handshake(connect(way, b"http/1.1").await).await.expect("HTTP/1.1");
            tokio::spawn(connection);
            senders.push(sender);
        }
        let request = Request::get("/1k").header(HOST, way.origin.to_string());
        over_and_over(request, senders, length, async |sender, request| sender.send_request(request).await).await;
    });
}

/// In one thread.
fn alone(load: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime").block_on(load);
}

async fn connect(way: &Way, protocol: &[u8]) -> TokioIo<TlsStream<tokio::net::TcpStream>> {
    let stream = way.open();
    stream.set_nodelay(true).expect("nodelay");
    stream.set_nonblocking(true).expect("nonblocking");
    let stream = tokio::net::TcpStream::from_std(stream).expect("stream");
    let connector = TlsConnector::from(trusting(protocol, true));
    TokioIo::new(connector.connect(ServerName::from(way.origin.ip()), stream).await.expect("TLS"))
}

type Asked = Request<Empty<Bytes>>;

/// The same request by each of the senders, one after the other.
async fn over_and_over<S: 'static>(
    request: Builder,
    senders: Vec<S>,
    length: Duration,
    ask: impl AsyncFn(&mut S, Asked) -> hyper::Result<Response<Incoming>> + Copy + 'static,
) {
    let request = request.body(Empty::new()).expect("a request");
    let (started, end) = (Instant::now(), Instant::now() + length);
    let tasks = tokio::task::LocalSet::new();
    let all: Vec<_> = senders
        .into_iter()
        .map(|mut sender| {
            let request = request.clone();
            tasks.spawn_local(async move {
                let mut count = 0_u64;
                while Instant::now() < end {
                    let response = ask(&mut sender, request.clone()).await.expect("an answer");
                    assert_eq!(response.status(), 200);
                    response.into_body().collect().await.expect("a body");
                    count += 1;
                }
                count
            })
        })
        .collect();
    let total = tasks.run_until(async {
        let mut total = 0;
        for task in all {
            total += task.await.expect("a client");
        }
        total
    });
    println!("{{\"per_second\":{:.0}}}", total.await as f64 / started.elapsed().as_secs_f64());
}
