//! Loads inside TLS, for a client that trusts what SSL_CERT_FILE names: keep-alive requests, new connections, streams.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio_rustls::TlsConnector;

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

/// Requests over HTTP/2, `streams` at a time on one connection.
pub fn streams(way: &Way, streams: u64, length: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let stream = way.open();
        stream.set_nonblocking(true).expect("nonblocking");
        let stream = tokio::net::TcpStream::from_std(stream).expect("stream");
        let connector = TlsConnector::from(trusting(b"h2", true));
        let stream = connector.connect(ServerName::from(way.origin.ip()), stream).await.expect("TLS");
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        let end = Instant::now() + length;
        let started = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..streams {
            let (mut sender, uri) = (sender.clone(), format!("https://{}/1k", way.origin));
            tasks.spawn(async move {
                let mut count = 0_u64;
                while Instant::now() < end {
                    let request = Request::get(&uri).body(Empty::<Bytes>::new()).expect("a request");
                    let response = sender.send_request(request).await.expect("an answer");
                    assert_eq!(response.status(), 200);
                    response.into_body().collect().await.expect("a body");
                    count += 1;
                }
                count
            });
        }
        let total: u64 = tasks.join_all().await.into_iter().sum();
        println!("{{\"per_second\":{:.0}}}", total as f64 / started.elapsed().as_secs_f64());
    });
}
