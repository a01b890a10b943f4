//! A stand-in for the Kubernetes API server: real connections, real TLS, real tokens and rights, and the answers of the
//! real one to what our roles ask. It holds pods, nodes and DaemonSets, records everything, and can be broken while it
//! runs in every way in which the real one breaks.
//!
//! ```ignore
//! let api = ApiServer::start();
//! api.put(&objects::node("n1", &[objects::taint("openshell.ai/cni-not-ready", "NoSchedule")]));
//! let token = api.token("system:serviceaccount:openshell:cni", &[rights::nodes(&["get", "patch"])]);
//! std::fs::write(&path, api.kubeconfig(&token)).unwrap();
//! ```

mod http;
pub mod objects;
mod patch;
mod pki;
pub mod rights;
mod serving;
mod status;
mod store;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, Shutdown, listen, shutdown};
use serde_json::Value;

use self::pki::Pki;
use self::rights::{Right, Rights};
use self::store::Store;

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As it should.
    Healthy,
    /// Connections are refused.
    Down,
    /// Connections are accepted, and nothing is ever said, not even TLS.
    Silent,
    /// Requests are read, and never answered.
    Stalled,
    /// Answers come so much later.
    Slow(Duration),
    /// 429, with or without `Retry-After` in seconds.
    TooMany(Option<u64>),
    /// Another status of failure: 500, 503.
    Failing(u16),
    /// 409: somebody else was quicker, again and again.
    Conflict,
    /// Half of the answer, and the connection is closed.
    Half,
    /// The connection is closed once it is accepted.
    Closing,
    /// What is said under TLS is no HTTP.
    Garbage,
    /// The answer is HTTP and no JSON.
    Page,
    /// The answer never ends.
    Endless,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Record {
    /// When.
    pub at: Instant,
    /// `GET`, `PATCH`; `SET` and `DELETE` for what a test did itself.
    pub method: String,
    /// What was called.
    pub path: String,
    /// Who called, where that was known.
    pub user: Option<String>,
    /// What was sent.
    pub body: String,
    /// What was answered; 0 where nothing was.
    pub status: u16,
    /// The object as it was then, where it is there.
    pub after: Option<Value>,
}

/// The server. It ends when this is dropped.
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
}

struct Shared {
    pki: Pki,
    state: Mutex<State>,
    /// That the mode has changed.
    changed: Condvar,
}

struct State {
    mode: Mode,
    /// Of the next connections, before `mode`.
    script: VecDeque<Mode>,
    ended: bool,
    /// Whether who comes without a certificate is sent away.
    certificates: bool,
    store: Store,
    rights: Rights,
    history: Vec<Record>,
}

impl ApiServer {
    /// On a free port of the loopback.
    pub fn start() -> Self {
        // A port that is asked for by its number is kept while the server is down; another may be quicker to take it.
        let mut tries = std::iter::repeat_with(|| {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        });
        Self::start_on(tries.by_ref().take(64).find_map(Result::ok).expect("a port of the loopback"))
    }

    /// On a listener, of whichever network namespace; it must have been bound to a port by its number, or
    /// [`Mode::Down`] would lose it. The certificate is for its address, 127.0.0.1 and `kubernetes`.
    pub fn start_on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            pki: Pki::new(address.ip()),
            state: Mutex::new(State {
                mode: Mode::Healthy,
                script: VecDeque::new(),
                ended: false,
                certificates: false,
                store: Store::default(),
                rights: Rights::default(),
                history: Vec::new(),
            }),
            changed: Condvar::new(),
        });
        let listener = Arc::new(listener);
        let (accepting, accepted) = (shared.clone(), listener.clone());
        thread::spawn(move || serving::accept(&accepting, &accepted));
        Self { address, shared, listener }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Its CA, in PEM.
    pub fn ca(&self) -> String {
        self.shared.pki.ca()
    }

    /// A certificate and key of a user, in PEM, by the same CA.
    pub fn client_certificate(&self, user: &str) -> (String, String) {
        self.shared.pki.client(user)
    }

    /// Whether clients must show a certificate, on connections from now on.
    pub fn demand_certificates(&self, demanded: bool) {
        self.state().certificates = demanded;
    }

    /// A new token of a user who may do this; users keep what they may, tokens come and go.
    pub fn token(&self, user: &str, rights: &[Right]) -> String {
        self.state().rights.token(user, rights)
    }

    /// Gives a user other rights.
    pub fn grant(&self, user: &str, rights: &[Right]) {
        self.state().rights.grant(user, rights);
    }

    /// A token that is not known any longer.
    pub fn expire(&self, token: &str) {
        self.state().rights.expire(token);
    }

    /// A kubeconfig, as kubectl writes it, with this token.
    pub fn kubeconfig(&self, token: &str) -> String {
        self.kubeconfig_for(&format!("token: {token}"))
    }

    /// The same, with any fields of a user: `tokenFile: /path`.
    pub fn kubeconfig_for(&self, user: &str) -> String {
        let (ca, url) = (pki::base64(self.ca().as_bytes()), self.url());
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {url}\n  name: \
             stand-in\ncontexts:\n- context:\n    cluster: stand-in\n    namespace: openshell\n    user: someone\n  name: \
             default\ncurrent-context: default\nkind: Config\npreferences: {{}}\nusers:\n- name: someone\n  user:\n    \
             {user}\n"
        )
    }

    /// Behaves so on the next connections, one after the other, and then as it did.
    pub fn set_script(&self, modes: &[Mode]) {
        assert!(!modes.contains(&Mode::Down), "connections that are refused cannot be counted");
        self.state().script = modes.iter().copied().collect();
    }

    /// Behaves so for that many connections.
    pub fn set_mode_for(&self, mode: Mode, connections: usize) {
        self.set_script(&vec![mode; connections]);
    }

    /// Behaves so from now on, on new connections.
    pub fn set_mode(&self, mode: Mode) {
        let mut state = self.state();
        state.mode = mode;
        state.script.clear();
        drop(state);
        self.shared.changed.notify_all();
        if mode == Mode::Down {
            // Makes it a socket that is bound and does not listen (tcp_disconnect in net/ipv4/tcp.c); whoever waits in
            // accept(2) gets EINVAL.
            shutdown(self.listener.as_raw_fd(), Shutdown::Read).expect("a listener is shut");
        } else {
            listen(&*self.listener, Backlog::new(128).expect("a backlog below the limit"))
                .expect("the listener listens again");
        }
    }

    /// Puts an object there, new or in the place of another of its name.
    pub fn put(&self, object: &Value) {
        let mut state = self.state();
        let path = store::path_of(object);
        let after = state.store.put(&path, object.clone());
        state.note("SET", &path, Some(after));
    }

    /// Changes an object as somebody else would.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let mut object = state.store.get(path).expect("there is such an object").clone();
        change(&mut object);
        let after = state.store.put(path, object);
        state.note("SET", path, Some(after));
    }

    /// Takes an object away.
    pub fn delete(&self, path: &str) {
        let mut state = self.state();
        state.store.remove(path);
        state.note("DELETE", path, None);
    }

    /// An object as it is now.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.state().store.get(path).cloned()
    }

    /// All that happened, in order.
    pub fn history(&self) -> Vec<Record> {
        self.state().history.clone()
    }

    /// Requests that were answered or should have been: the history without what the test did.
    pub fn calls(&self) -> Vec<Record> {
        let calls = |record: &Record| !["SET", "DELETE"].contains(&record.method.as_str());
        self.history().into_iter().filter(calls).collect()
    }

    /// Forgets the history.
    pub fn forget(&self) {
        self.state().history.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.state().ended = true;
        self.shared.changed.notify_all();
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Read);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn note(&mut self, method: &str, path: &str, after: Option<Value>) {
        self.history.push(Record {
            at: Instant::now(),
            method: method.to_owned(),
            path: path.to_owned(),
            user: None,
            body: String::new(),
            status: 0,
            after,
        });
    }
}
