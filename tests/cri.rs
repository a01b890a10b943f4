//! A client of the Container Runtime Interface (`runtime.v1.RuntimeService`), as far as the kubelet uses it for the
//! sandboxes of pods. Messages are few and small, so they are written and read here field by field.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::UnixStream;

/// How long one call may take; pods start in tenths of a second, and the plugin gives up on the API server after 20 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message of protocol buffers being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(mut self, field: u64, value: u64) -> Self {
        varint(&mut self.0, field << 3);
        varint(&mut self.0, value);
        self
    }

    fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        varint(&mut self.0, field << 3 | 2);
        varint(&mut self.0, value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }
}

fn varint(into: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Fields of a message that was received: of those of varying length what they hold, of numbers their eight bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let number = |message: &mut &[u8]| {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = message.split_first().expect("a whole message");
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    };
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message);
        let value = match key & 7 {
            0 => number(&mut message).to_le_bytes().to_vec(),
            2 => {
                let length = usize::try_from(number(&mut message)).expect("a length");
                let (value, rest) = message.split_at(length);
                message = rest;
                value.to_vec()
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn field(message: &[u8], wanted: u64) -> Option<Vec<u8>> {
    fields(message).into_iter().find(|(number, _)| *number == wanted).map(|(_, value)| value)
}

fn string(message: &[u8], wanted: u64) -> String {
    String::from_utf8(field(message, wanted).unwrap_or_default()).expect("UTF-8")
}

/// What a call was refused with.
#[derive(Debug)]
pub struct Refusal {
    /// The code of gRPC.
    pub code: String,
    /// What the runtime says, which the kubelet puts into the pod's events.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "code {}: {}", self.code, self.message)
    }
}

/// A pod as the kubelet tells a runtime of it.
#[derive(Clone, Copy, Debug)]
pub struct PodSandbox<'p> {
    pub namespace: &'p str,
    pub name: &'p str,
    pub uid: &'p str,
}

/// A runtime by its socket.
#[derive(Clone, Copy)]
pub struct Runtime<'s> {
    pub socket: &'s Path,
}

impl Runtime<'_> {
    /// Starts a pod's sandbox, and returns what the runtime calls it.
    pub fn run(&self, pod: PodSandbox<'_>) -> Result<String, Refusal> {
        let metadata = Message::default().bytes(1, pod.name).bytes(2, pod.uid).bytes(3, pod.namespace);
        // What is in here is the default of every field; that it is there says that this is a pod of Linux.
        let linux = Message::default().bytes(2, Message::default().bytes(1, []).0);
        let config = Message::default().bytes(1, metadata.0).bytes(3, "/dev/null").bytes(8, linux.0);
        let answer = self.call("RunPodSandbox", Message::default().bytes(1, config.0))?;
        Ok(string(&answer, 1))
    }

    /// Ends what runs in a sandbox, and its network.
    pub fn stop(&self, sandbox: &str) -> Result<(), Refusal> {
        self.call("StopPodSandbox", Message::default().bytes(1, sandbox)).map(drop)
    }

    /// Forgets a sandbox.
    pub fn remove(&self, sandbox: &str) -> Result<(), Refusal> {
        self.call("RemovePodSandbox", Message::default().bytes(1, sandbox)).map(drop)
    }

    /// The sandboxes there are, and whether each is ready.
    pub fn list(&self) -> Result<Vec<(String, bool)>, Refusal> {
        let answer = self.call("ListPodSandbox", Message::default())?;
        let items = fields(&answer).into_iter().filter(|(number, _)| *number == 1);
        Ok(items.map(|(_, item)| (string(&item, 1), field(&item, 3).is_none())).collect())
    }

    /// The process that a sandbox is held by.
    pub fn pid(&self, sandbox: &str) -> Result<u64, Refusal> {
        let answer = self.call("PodSandboxStatus", Message::default().bytes(1, sandbox).number(2, 1))?;
        let info = fields(&answer).into_iter().find(|(number, value)| *number == 2 && string(value, 1) == "info");
        let info: Value = serde_json::from_str(&string(&info.expect("what is told besides").1, 2)).expect("JSON");
        Ok(info["pid"].as_u64().expect("a pid"))
    }

    /// Whether pods get a network, and else why not.
    pub fn network(&self) -> Result<Result<(), String>, Refusal> {
        let status = field(&self.call("Status", Message::default())?, 1).expect("a status");
        let conditions = fields(&status).into_iter().filter(|(number, _)| *number == 1);
        let network =
            conditions.map(|(_, condition)| condition).find(|condition| string(condition, 1) == "NetworkReady");
        let network = network.expect("a condition of the network");
        Ok(field(&network, 2).map(drop).ok_or_else(|| string(&network, 4)))
    }

    fn call(&self, method: &str, message: Message) -> Result<Vec<u8>, Refusal> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let unreachable =
                |error: &dyn fmt::Display| Refusal { code: "unreachable".into(), message: error.to_string() };
            let stream = UnixStream::connect(self.socket).await.map_err(|error| unreachable(&error))?;
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await
                    .map_err(|error| unreachable(&error))?;
            tokio::spawn(connection);
            let mut body = vec![0];
            body.extend(u32::try_from(message.0.len()).expect("a short message").to_be_bytes());
            body.extend(message.0);
            let request = Request::post(format!("http://localhost/runtime.v1.RuntimeService/{method}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(Bytes::from(body)))
                .expect("a request");
            let answer = tokio::time::timeout(PATIENCE, async {
                let response = sender.send_request(request).await?;
                let (head, body) = response.into_parts();
                Ok::<_, hyper::Error>((head.headers, body.collect().await?))
            });
            let (headers, body) =
                answer.await.map_err(|error| unreachable(&error))?.map_err(|error| unreachable(&error))?;
            let told = |name: &str| {
                let value = body.trailers().and_then(|trailers| trailers.get(name)).or_else(|| headers.get(name));
                value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
            };
            match told("grpc-status").as_str() {
                // Five bytes before the message: that it is not compressed, and its length.
                "0" => Ok(body.to_bytes().get(5..).expect("a message").to_vec()),
                code => Err(Refusal { code: code.to_owned(), message: told("grpc-message") }),
            }
        })
    }
}
