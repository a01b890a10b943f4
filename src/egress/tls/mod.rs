//! stub
use std::sync::Arc;
use std::path::PathBuf;
use tokio::net::TcpStream;
use crate::policy::host::Host;
pub(super) const HTTP_2: &[u8] = b"h2";
pub(super) const HTTP_11: &[u8] = b"http/1.1";
pub(super) const PROTOCOLS: [&[u8]; 2] = [HTTP_2, HTTP_11];
pub(super) fn known(protocol: &[u8]) -> Option<&'static [u8]> { PROTOCOLS.into_iter().find(|k| *k == protocol) }
pub(super) type Leg = tokio_rustls::client::TlsStream<TcpStream>;
#[derive(Debug)] pub struct Authority;
impl Authority { pub fn server_config(&self, _: &Host, _: Option<&'static [u8]>) -> Result<Arc<rustls::ServerConfig>, std::io::Error> { todo!() } }
#[derive(Debug)] pub struct Upstream;
#[derive(Debug, thiserror::Error)] pub enum TlsError { #[error("a")] NoCommonProtocol, #[error("b")] TimedOut }
impl Upstream { pub fn new(_: &[PathBuf]) -> Self { Self }
 pub async fn handshake(&self, _: TcpStream, _: &Host, _: &[&'static [u8]]) -> Result<(Leg, Option<Vec<u8>>), TlsError> { todo!() } }
pub struct Hello { pub server_name: Option<String>, pub alpn: Vec<Vec<u8>> }
pub enum Sniff { More, Tls(Hello), Http1, Http2, Other(&'static str) }
pub fn sniff(_: &[u8]) -> Sniff { Sniff::More }
