//! The proxy against origins on this host's loopback, which the host alias reaches: no namespace is needed, and the
//! guard is in force for every other name.

mod attestation;
mod connect;
mod forward;
mod frames;
mod framing;
mod intercept;
mod names;
mod owners;
mod parent;
mod refusals;
mod standing;
mod told;
mod tunnel;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::limits::Patience;
use super::tls::Termination;
use super::tls::authority::Authority;
use super::tls::upstream::Upstream;
use super::{ParentSettings, Proxy, Resolver, Settings};
use crate::attest::Verifier;
use crate::attribution::Attributor;
use crate::contract::HOST_ALIAS;
use crate::event::{Event, Events, NetworkActivity};
use crate::policy::{PolicySource, ReloadOutcome, Sources, Store};

/// Longest that a test waits for what should come at once.
const SOON: Duration = Duration::from_secs(5);

/// A running proxy.
struct Fixture {
    address: SocketAddr,
    store: Arc<Store>,
    recorded: Arc<Mutex<Vec<Event>>>,
    policy: tempfile::NamedTempFile,
    /// Whom clients of intercepted connections are to trust.
    authority: Arc<Authority>,
    _shutdown: watch::Sender<bool>,
}

/// An entry that lets every program reach these ports of `host`, which may be a glob.
fn entry(host: &str, ports: &[u16]) -> String {
    format!(
        "  to-{}:\n    endpoints: [{{host: \"{host}\", ports: {ports:?}}}]\n    binaries: [{{path: \"**\"}}]\n",
        host.replace(['*', '.'], "-")
    )
}

impl Fixture {
    /// A proxy that lets everyone reach these ports of the host's loopback.
    async fn with_ports(ports: &[u16]) -> Self {
        Self::new(vec![entry(HOST_ALIAS, ports)], Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53))
            .await
    }

    async fn new(network: Vec<String>, resolver: Resolver) -> Self {
        Self::with_patience(network, resolver, Patience::default()).await
    }

    /// A proxy with these entries.
    async fn with_entries(network: Vec<String>) -> Self {
        Self::new(network, Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53)).await
    }

    /// A proxy that loses patience after this many milliseconds.
    async fn hasty(ports: &[u16], milliseconds: u64) -> Self {
        Self::hasty_with(vec![entry(HOST_ALIAS, ports)], milliseconds).await
    }

    async fn hasty_with(network: Vec<String>, milliseconds: u64) -> Self {
        let wait = Duration::from_millis(milliseconds);
        let patience =
            Patience { head: wait, keep_alive: wait, body: wait, response: wait, tunnel: wait, parent: wait };
        Self::with_patience(network, Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53), patience)
            .await
    }

    async fn with_patience(network: Vec<String>, resolver: Resolver, patience: Patience) -> Self {
        Self::with_attributor(network, resolver, patience, None).await
    }

    async fn with_attributor(
        network: Vec<String>,
        resolver: Resolver,
        patience: Patience,
        attributor: Option<Arc<Attributor>>,
    ) -> Self {
        Self::with_parent(network, resolver, patience, attributor, None).await
    }

    async fn with_parent(
        network: Vec<String>,
        resolver: Resolver,
        patience: Patience,
        attributor: Option<Arc<Attributor>>,
        parent: Option<ParentSettings>,
    ) -> Self {
        Self::with_all(network, resolver, patience, attributor, parent, None).await
    }

    async fn with_all(
        network: Vec<String>,
        resolver: Resolver,
        patience: Patience,
        attributor: Option<Arc<Attributor>>,
        parent: Option<ParentSettings>,
        attestation: Option<Verifier>,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let policy = tempfile::NamedTempFile::new().unwrap();
        write_policy(policy.path(), &network);
        let store = Store::open(Sources {
            require_identity: attributor.is_some(),
            ..Sources::new(PolicySource::File(policy.path().to_owned()))
        })
        .unwrap();
        let (events, recorded) = Events::recorded();
        let authority = Arc::new(Authority::generate(Some("proxy")).unwrap());
        let root = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(root.path(), origins().certificate_pem()).unwrap();
        let upstream = Arc::new(Upstream::new(&[root.path().to_owned()]).unwrap());
        let settings = Settings {
            store: store.clone(),
            attributor,
            attestation,
            resolver,
            parent,
            own_addresses: vec![address],
            host_alias: true,
            events,
            termination: Arc::new(Termination { authority: authority.clone(), upstream }),
            learner: None,
            patience,
        };
        let (shutdown, ended) = watch::channel(false);
        tokio::spawn(Proxy::new(settings).serve(vec![listener], ended));
        Self { address, store, recorded, policy, authority, _shutdown: shutdown }
    }

    /// Puts another policy in force.
    fn swap(&self, network: &[String]) {
        write_policy(self.policy.path(), network);
        assert!(matches!(self.store.reload(), Ok(ReloadOutcome::Replaced { .. })));
    }

    /// A connection to the proxy.
    async fn client(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap(), buffer: Vec::new() }
    }

    /// A tunnel to a port of the host's loopback.
    async fn tunnel(&self, port: u16) -> TcpStream {
        let mut client = self.client().await;
        client.connect(port).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(client.buffer.is_empty());
        client.stream
    }

    /// Network events so far.
    fn events(&self) -> Vec<NetworkActivity> {
        let events = self.recorded.lock().unwrap();
        events
            .iter()
            .filter_map(|event| if let Event::Network(activity) = event { Some(activity.clone()) } else { None })
            .collect()
    }
}

/// A client that speaks bytes.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer of the proxy.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.head, String::from_utf8_lossy(&self.body))
    }
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    async fn connect(&mut self, port: u16) {
        self.send(format!("CONNECT {HOST_ALIAS}:{port} HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n")).await;
    }

    async fn more(&mut self) -> usize {
        tokio::time::timeout(SOON, self.stream.read_buf(&mut self.buffer))
            .await
            .expect("an answer in time")
            .unwrap_or(0)
    }

    /// Reads one whole answer, its body by Content-Length or by chunks.
    async fn answer(&mut self) -> Answer {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            assert_ne!(self.more().await, 0, "the connection ended instead of an answer: {:?}", self.buffer);
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        if let Some(length) = answer.field("content-length").map(|length| length.parse::<usize>().unwrap()) {
            while self.buffer.len() < length {
                assert_ne!(self.more().await, 0, "the body is short");
            }
            answer.body = self.buffer.drain(..length).collect();
        } else if answer.field("transfer-encoding").is_some() {
            loop {
                let mut chunks = super::chunk::Chunks::new();
                if let (length, true) = chunks.take(&self.buffer).unwrap() {
                    answer.body = self.buffer.drain(..length).collect();
                    break;
                }
                assert_ne!(self.more().await, 0, "the body is short");
            }
        }
        answer
    }

    /// Whether the proxy closes the connection.
    async fn ends(&mut self) -> bool {
        self.buffer.is_empty() && self.more().await == 0
    }

    /// Sends bytes on a fresh connection, and reads the answer.
    async fn ask(fixture: &Fixture, bytes: impl AsRef<[u8]>) -> (Self, Answer) {
        let mut client = fixture.client().await;
        client.send(bytes).await;
        let answer = client.answer().await;
        (client, answer)
    }
}

/// Who signs the certificates of origins, and is trusted to by every fixture's proxy.
fn origins() -> &'static Authority {
    static ORIGINS: LazyLock<Authority> = LazyLock::new(|| Authority::generate(Some("origins")).unwrap());
    &ORIGINS
}

/// An origin: every connection is given to `serve`.
async fn origin<F, R>(serve: F) -> u16
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

/// An origin that sends back what it gets, and its end.
async fn echo() -> u16 {
    origin(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

/// A port at which nothing listens.
fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A directory with a hosts file and a resolv.conf.
fn files(hosts: &str, servers: &str) -> (tempfile::TempDir, impl Fn(u16) -> Resolver + use<>) {
    let directory = tempfile::tempdir().unwrap();
    let (hosts_path, servers_path) = (directory.path().join("hosts"), directory.path().join("resolv.conf"));
    write(&hosts_path, hosts);
    write(&servers_path, servers);
    (directory, move |port| Resolver::new(&hosts_path, &servers_path, port))
}

fn write_policy(path: &Path, network: &[String]) {
    let entries = if network.is_empty() { " {}\n".to_owned() } else { format!("\n{}", network.concat()) };
    write(path, &format!("version: 1\nnetwork_policies:{entries}"));
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
