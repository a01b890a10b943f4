//! Requests inside tunnels: TLS on both legs, HTTP/1.1 and HTTP/2, each judged by itself.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::tls::authority::Authority;
use super::super::tls::{HTTP1, HTTP2};
use super::{Client, Fixture, SOON, origin};
use crate::contract::HOST_ALIAS;
use crate::policy::Store;
use crate::policy::host::Host;

/// An entry that lets every program read, and nobody write, on this port of the host's loopback.
fn reading(port: u16) -> String {
    inspected(port, "protocol: rest, access: read-only")
}

fn inspected(port: u16, rules: &str) -> String {
    format!(
        "  api:\n    endpoints: [{{host: {HOST_ALIAS}, port: {port}, {rules}}}]\n    binaries: [{{path: \"**\"}}]\n"
    )
}

fn alias() -> Host {
    Host::parse(HOST_ALIAS).unwrap()
}

/// An origin whose certificate `authority` signs, and which chooses `alpn`.
async fn tls_origin<F, R>(authority: &Arc<Authority>, alpn: Option<&'static [u8]>, serve: F) -> u16
where
    F: Fn(tokio_rustls::server::TlsStream<TcpStream>) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(authority.server_config(&alias(), alpn).unwrap());
    origin(move |stream| {
        let (acceptor, serve) = (acceptor.clone(), serve.clone());
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        }
    })
    .await
}

/// Answers with what was asked, in trailers too.
async fn described(request: Request<Incoming>) -> Result<Response<http_body_util::combinators::BoxBody<Bytes, hyper::Error>>, hyper::Error> {
    let head = format!(
        "{} {} {:?} host={:?}",
        request.method(),
        request.uri().path(),
        request.version(),
        request.headers().get("host").map(|host| host.to_str().unwrap().to_owned()),
    );
    let body = request.into_body().collect().await?.to_bytes();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-length", body.len().to_string().parse().unwrap());
    let frames = [Ok(Frame::data(Bytes::from(head))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(Frames(frames.into_iter().collect()));
    Ok(Response::builder().header("trailer", "x-length").body(BodyExt::boxed(body)).unwrap())
}

struct Frames(std::collections::VecDeque<Result<Frame<Bytes>, hyper::Error>>);

impl futures_core_stream::Stream for Frames {
    type Item = Result<Frame<Bytes>, hyper::Error>;
}
