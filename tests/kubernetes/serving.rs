//! One connection at a time: behaving as the mode says, and answering.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};
use serde_json::json;

use super::http::{Answer, Request};
use super::status::status;
use super::{Mode, Record, Shared, State, rights, store};

/// How long a connection may say nothing before its thread is taken back.
const SILENCE: Duration = Duration::from_secs(30);

/// Takes connections until the server ends, each for a thread of its own.
pub fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        let mut state = shared.state();
        if state.ended {
            return;
        }
        match accepted {
            Ok((stream, _)) => {
                let mode = state.script.pop_front().unwrap_or(state.mode);
                let certificates = state.certificates;
                let shared = shared.clone();
                thread::spawn(move || serve(&shared, stream, mode, certificates));
            }
            Err(_) => {
                while state.mode == Mode::Down && !state.ended {
                    state = shared.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
                drop(state);
                // Between the mode's change and listen(2).
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn serve(shared: &Shared, mut stream: TcpStream, mode: Mode, certificates: bool) {
    stream.set_read_timeout(Some(SILENCE)).expect("a time limit on a socket");
    stream.set_nodelay(true).expect("an option of a socket");
    match mode {
        Mode::Closing | Mode::Down => return,
        Mode::Silent => {
            // Until the other side has had enough.
            while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
            return;
        }
        _ => {}
    }
    let config = shared.pki.server(certificates);
    let mut tls = StreamOwned::new(ServerConnection::new(config).expect("a configuration that was checked"), stream);
    let Some(request) = Request::read(&mut tls) else { return };
    let certified = tls.conn.peer_certificates().and_then(|chain| shared.pki.user_of(chain.first()?));
    let bytes = match mode {
        Mode::Stalled => Vec::new(),
        Mode::Garbage => b"\x16\x03 this is no HTTP\r\n\r\n".to_vec(),
        Mode::Page => Answer::page().bytes(),
        Mode::Endless => Answer::endless(),
        _ => Vec::new(),
    };
    if let Mode::Slow(delay) = mode {
        thread::sleep(delay);
    }
    let mut state = shared.state();
    let user = certified.or_else(|| state.rights.user(request.token.as_deref()));
    let answer = match mode {
        Mode::TooMany(retry_after) => Answer::new(status(429, "TooManyRequests", "please try again later", None))
            .with("Retry-After", retry_after.map(|seconds| seconds.to_string())),
        Mode::Failing(code) => {
            Answer::new(status(code, "InternalError", "Internal error occurred: the stand-in fails", None))
        }
        Mode::Conflict if request.method != "GET" => {
            Answer::new(status(409, "Conflict", "the object has been modified", None))
        }
        _ if bytes.is_empty() && mode != Mode::Stalled => state.answer(&request, user.as_deref()),
        _ => Answer::none(),
    };
    let resource = store::split(&request.path).0;
    let after = state.store.get(resource).cloned();
    state.history.push(Record {
        at: Instant::now(),
        method: request.method.clone(),
        path: request.path.clone(),
        user,
        body: request.body.clone(),
        status: answer.status,
        after,
    });
    drop(state);
    let mut bytes = if bytes.is_empty() && mode != Mode::Stalled { answer.bytes() } else { bytes };
    if mode == Mode::Half {
        bytes.truncate(bytes.len() / 2);
    }
    if mode == Mode::Endless {
        while tls.write_all(&bytes).is_ok() {}
        return;
    }
    let _ = tls.write_all(&bytes);
    if mode == Mode::Stalled {
        while tls.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
        return;
    }
    if mode != Mode::Half {
        tls.conn.send_close_notify();
    }
    let _ = tls.flush();
}

impl State {
    fn answer(&mut self, request: &Request, user: Option<&str>) -> Answer {
        let Some(user) = user else {
            return Answer::new(status(401, "Unauthorized", "Unauthorized", None));
        };
        let Some(target) = store::Target::parse(&request.path) else {
            return Answer::new(status(404, "NotFound", "the server could not find the requested resource", None));
        };
        let verb = match request.method.as_str() {
            "GET" => "get",
            "PATCH" => "patch",
            _ => return Answer::new(status(405, "MethodNotAllowed", "the server does not allow this method", None)),
        };
        if !self.rights.allow(user, verb, &target) {
            return Answer::new(rights::forbidden(user, verb, &target));
        }
        let outcome = match verb {
            "get" => self.store.read(&target),
            _ => self.store.patch(&target, &request.content_type, &request.body),
        };
        match outcome {
            Ok(object) if request.accept.contains("as=PartialObjectMetadata") => Answer::new((
                200,
                json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
                }),
            )),
            Ok(object) => Answer::new((200, object)),
            Err(refusal) => Answer::new(refusal),
        }
    }
}
