//! What an intercepting proxy costs without a policy: a relay of hyper and rustls, both legs, and nothing else. It is
//! the measure of what judging, attribution and recording add.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use openshell_supervisor::egress::tls::HTTP2;
use openshell_supervisor::egress::tls::authority::Authority;
use openshell_supervisor::egress::tls::upstream::Upstream;
use openshell_supervisor::policy::host::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Serves until it is killed: CONNECT to whatever is asked, its TLS ended by `authority`, origins trusted by `roots`.
pub fn main(address: SocketAddr, certificate: &Path, key: &Path, roots: &Path) {
    let authority = Arc::new(Authority::load(certificate, key).expect("authority"));
    let upstream = Arc::new(Upstream::new(&[roots.to_owned()]).expect("roots"));
    // As many threads as ours has.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.expect("bind");
        loop {
            let (stream, _) = listener.accept().await.expect("accept");
            stream.set_nodelay(true).expect("nodelay");
            tokio::spawn(serve(stream, authority.clone(), upstream.clone()));
        }
    });
}

async fn serve(mut client: TcpStream, authority: Arc<Authority>, upstream: Arc<Upstream>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let target = head.split(' ').nth(1)?.to_owned();
    let host = Host::parse(target.rsplit_once(':')?.0).ok()?;
    let origin = TcpStream::connect(&target).await.ok()?;
    origin.set_nodelay(true).ok()?;
    client.write_all(b"HTTP/1.1 200 Connection Established\r\n\r\n").await.ok()?;
    let mut hello = vec![0; 1024];
    let length = client.peek(&mut hello).await.ok()?;
    // All that it needs to know of the hello: whether HTTP/2 is offered.
    let offers_http2 = hello[..length].windows(3).any(|window| window == b"\x02h2");
    let offer: &[&[u8]] = if offers_http2 { &[HTTP2] } else { &[b"http/1.1"] };
    let (origin, chosen) = upstream.handshake(origin, &host, offer).await.ok()?;
    let http2 = chosen.as_deref() == Some(HTTP2);
    let config = authority.server_config(&host, if http2 { Some(HTTP2) } else { Some(b"http/1.1") }).ok()?;
    let client = TlsAcceptor::from(config).accept(client).await.ok()?;
    if http2 {
        let (sender, connection) =
            http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(origin)).await.ok()?;
        tokio::spawn(connection);
        let service = service_fn(move |request: Request<Incoming>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(TokioIo::new(client), service).await.ok()
    } else {
        let (sender, connection) = http1::handshake(TokioIo::new(origin)).await.ok()?;
        tokio::spawn(connection);
        let sender = Arc::new(tokio::sync::Mutex::new(sender));
        let service = service_fn(move |mut request: Request<Incoming>| {
            let sender = sender.clone();
            async move {
                *request.uri_mut() = request.uri().path().parse::<Uri>().expect("a path");
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await
            }
        });
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service).await.ok()
    }
}
