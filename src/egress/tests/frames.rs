//! HTTP/2 as nobody should speak it (RFC 9113): what is malformed costs its stream, what breaks the protocol or floods
//! us costs its connection and is recorded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::super::limits;
use super::intercept::{described, fixture};
use super::*;
use crate::contract::HOST_ALIAS;
use crate::event::{Disposition, Stage};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Codes of RFC 9113 §7.
const PROTOCOL_ERROR: u32 = 1;
/// What a breach of the protocol is answered with: FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR or COMPRESSION_ERROR where the
/// library looks closely, the general one otherwise.
const BREACH: &[u32] = &[PROTOCOL_ERROR, 3, 6, 9];
/// What floods are: ENHANCE_YOUR_CALM.
const CALM: &[u32] = &[11];

/// What comes of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It is answered with 200.
    Fine,
    /// It is answered with something else.
    Refused,
    /// It is reset, for this code.
    Reset(u32),
    /// Its connection ends, for this code.
    GoneAway(u32),
}

/// A client that speaks frames.
struct Frames {
    stream: TcpStream,
    buffer: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field as HPACK has it without an index or Huffman's code (RFC 7541 §6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    assert!(name.len() < 127 && value.len() < 127, "needs a longer integer");
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

impl Frames {
    async fn begin(fixture: &Fixture, port: u16) -> Self {
        let mut client = Self { stream: fixture.tunnel(port).await, buffer: Vec::new() };
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        client.send(&frame(SETTINGS, 0, 0, &[])).await;
        client
    }

    /// Sends what the proxy may not want to read any more.
    async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    async fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            if let Some((head, rest)) = self.buffer.split_at_checked(9) {
                let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                if rest.len() >= length {
                    let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
                    let found = (head[3], stream, rest[..length].to_vec());
                    self.buffer.drain(..9 + length);
                    return Some(found);
                }
            }
            let read = tokio::time::timeout(SOON, self.stream.read_buf(&mut self.buffer)).await;
            if read.expect("a frame in time").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    async fn outcome(&mut self, of: u32) -> Outcome {
        let code = |payload: &[u8], at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        while let Some((kind, stream, payload)) = self.next().await {
            match kind {
                // `:status: 200` has an index of its own (RFC 7541, Appendix A).
                HEADERS if stream == of => return if payload[0] == 0x88 { Outcome::Fine } else { Outcome::Refused },
                RST_STREAM if stream == of => return Outcome::Reset(code(&payload, 0)),
                GOAWAY => return Outcome::GoneAway(code(&payload, 4)),
                _ => {}
            }
        }
        panic!("the connection ended without a word")
    }
}

/// An origin that counts whom it serves.
async fn counting() -> (u16, Arc<AtomicUsize>) {
    let served = Arc::new(AtomicUsize::new(0));
    let seen = served.clone();
    let port = origin(move |stream| {
        let seen = seen.clone();
        async move {
            let service = service_fn(move |request| {
                seen.fetch_add(1, Ordering::Relaxed);
                described(request)
            });
            let io = TokioIo::new(stream);
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
        }
    })
    .await;
    (port, served)
}

#[tokio::test]
async fn a_malformed_request_costs_its_stream_and_reaches_nobody() {
    let (port, served) = counting().await;
    let fixture = fixture(port, "protocol: rest, access: full").await;
    let authority = format!("{HOST_ALIAS}:{port}");
    let get = [(":method", "GET"), (":scheme", "http"), (":authority", authority.as_str()), (":path", "/x")];
    let with = |more: &[(&str, &str)]| fields(&[&get[..], more].concat());
    let without = |name: &str| fields(&get.iter().copied().filter(|(key, _)| *key != name).collect::<Vec<_>>());
    let other = |name: &str, value: &str| {
        let changed = get.iter().map(|&(key, old)| (key, if key == name { value } else { old }));
        fields(&changed.collect::<Vec<_>>())
    };
    let cases: BTreeMap<&str, Vec<u8>> = [
        // RFC 9113 §8.2.1: what fields may not hold.
        ("a name in upper case", with(&[("X-Upper", "1")])),
        ("a name with a space", with(&[("x y", "1")])),
        ("a name with a colon", with(&[("x:y", "1")])),
        ("no name", with(&[("", "1")])),
        ("a line feed in a value", with(&[("x", "a\nb: c")])),
        ("a carriage return in a value", with(&[("x", "a\r\nb: c")])),
        ("a NUL in a value", with(&[("x", "a\0")])),
        // §8.2.2: what belongs to a connection of HTTP/1.
        ("connection", with(&[("connection", "close")])),
        ("keep-alive", with(&[("keep-alive", "5")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "h2c")])),
        ("te that is not trailers", with(&[("te", "gzip")])),
        // §8.3: pseudo-fields.
        ("one that is unknown", with(&[(":other", "x")])),
        ("one of responses", with(&[(":status", "200")])),
        ("one twice", with(&[(":path", "/y")])),
        ("one behind a field", fields(&[&get[..3], &[("x", "1")], &get[3..]].concat())),
        ("no method", without(":method")),
        ("no path", without(":path")),
        ("no authority", without(":authority")),
        ("an empty path", other(":path", "")),
        ("a path without a slash", other(":path", "x")),
        ("a path with a space", other(":path", "/x HTTP/1.1")),
        ("a method with a space", other(":method", "GET /y")),
        ("an authority with a user", other(":authority", &format!("u@{authority}"))),
        ("another scheme", other(":scheme", "https")),
        ("another authority", other(":authority", "other.example.com")),
        ("another host", with(&[("host", "other.example.com")])),
        ("two hosts", with(&[("host", &authority), ("host", &authority)])),
        ("a tunnel in the tunnel", fields(&[(":method", "CONNECT"), (":authority", &authority)])),
        // §8.1.1: a length that the body has not.
        ("a length without a body", with(&[("content-length", "5")])),
        ("two lengths", with(&[("content-length", "0"), ("content-length", "5")])),
        ("a signed length", with(&[("content-length", "+0")])),
        ("a list of lengths", with(&[("content-length", "0, 0")])),
    ]
    .into();
    let mut client = Frames::begin(&fixture, port).await;
    let mut stream = 1;
    for (name, block) in &cases {
        client.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, block)).await;
        match client.outcome(stream).await {
            Outcome::Refused | Outcome::Reset(PROTOCOL_ERROR) => stream += 2,
            // What is no field at all is taken for broken HPACK, and costs the connection.
            Outcome::GoneAway(PROTOCOL_ERROR) => (client, stream) = (Frames::begin(&fixture, port).await, 1),
            outcome => panic!("{name}: {outcome:?}"),
        }
    }
    assert_eq!(served.load(Ordering::Relaxed), 0);
    // The control: the same connection serves what is well-formed.
    for block in [with(&[]), with(&[("te", "trailers"), ("content-length", "0"), ("host", &authority)])] {
        client.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)).await;
        assert_eq!(client.outcome(stream).await, Outcome::Fine);
        stream += 2;
    }
    assert_eq!(served.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn what_breaks_http_2_or_floods_us_ends_its_connection_and_is_recorded() {
    let (port, served) = counting().await;
    let fixture = fixture(port, "protocol: rest, access: full").await;
    let authority = format!("{HOST_ALIAS}:{port}");
    let get = fields(&[(":method", "GET"), (":scheme", "http"), (":authority", &authority), (":path", "/x")]);
    let open = |stream: u32| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get);
    let upload = |stream: u32| frame(HEADERS, END_HEADERS, stream, &get);
    let malformed = [get.clone(), field("connection", "close")].concat();
    let reset = |stream: u32| frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
    let cases: Vec<(&str, &[u32], Vec<u8>)> = vec![
        ("a frame that is too long", BREACH, frame(DATA, 0, 1, &vec![0; limits::FRAME_BYTES as usize + 1])),
        ("a PING of seven bytes", BREACH, frame(PING, 0, 0, &[0; 7])),
        ("a PING on a stream", BREACH, frame(PING, 0, 1, &[0; 8])),
        ("SETTINGS on a stream", BREACH, frame(SETTINGS, 0, 1, &[])),
        ("an ACK with settings", BREACH, frame(SETTINGS, ACK, 0, &[0, 2, 0, 0, 0, 0])),
        ("half a setting", BREACH, frame(SETTINGS, 0, 0, &[0, 2, 0])),
        ("a window beyond 2^31", BREACH, frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        ("HEADERS on the connection", BREACH, open(0)),
        ("HEADERS on a server's stream", BREACH, open(2)),
        ("DATA on no stream", BREACH, frame(DATA, 0, 1, b"x")),
        ("CONTINUATION of nothing", BREACH, frame(CONTINUATION, END_HEADERS, 1, &get)),
        ("a frame amid a head", BREACH, [frame(HEADERS, 0, 1, &get), frame(PING, 0, 0, &[0; 8])].concat()),
        ("an index of nothing", BREACH, frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0x80, 0x01])),
        ("a window of nothing", BREACH, frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a window that overflows", BREACH, frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes())),
        // CVE-2023-44487.
        ("rapid reset", CALM, (0..2000).flat_map(|n| [open(2 * n + 1), reset(2 * n + 1)].concat()).collect()),
        // CVE-2024-27316 and its kin.
        (
            "a head without end",
            CALM,
            [
                frame(HEADERS, 0, 1, &get),
                frame(CONTINUATION, 0, 1, &field("x", &"y".repeat(100)).repeat(100)).repeat(1000),
            ]
            .concat(),
        ),
        // CVE-2025-8671: what we are made to reset ourselves.
        (
            "streams that we must reset",
            CALM,
            (0..2000).flat_map(|n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &malformed)).collect(),
        ),
    ];
    for (name, expected, bytes) in cases {
        let before = fixture.events().len();
        let client = Frames::begin(&fixture, port).await;
        let outcome = {
            let (mut read, mut write) = client.stream.into_split();
            // What floods is sent while the answer is awaited: neither side may wait for the other.
            let flood = tokio::spawn(async move {
                let _ = write.write_all(&bytes).await;
                write
            });
            let mut told = Vec::new();
            let ended = tokio::time::timeout(SOON, read.read_to_end(&mut told)).await;
            assert!(ended.is_ok(), "{name}: the connection goes on");
            drop(flood);
            told
        };
        let codes = gone_away(&outcome);
        assert!(codes.last().is_some_and(|code| expected.contains(code)), "{name}: {codes:?}");
        let refused: Vec<_> = fixture.events()[before..]
            .iter()
            .filter(|event| event.stage == Stage::Parse && event.disposition == Disposition::Denied)
            .cloned()
            .collect();
        assert_eq!(refused.len(), 1, "{name}: {refused:?}");
        assert_eq!((&*refused[0].host, refused[0].policy.as_deref()), (HOST_ALIAS, Some("api")), "{name}");
        assert!(refused[0].reason.as_deref().unwrap().contains("HTTP/2 connection was ended"), "{refused:?}");
    }
    // The control: who asks in good order is served, also when it takes something back, and nothing is recorded when
    // it leaves.
    let (before, asked) = (fixture.events().len(), served.load(Ordering::Relaxed));
    let mut client = Frames::begin(&fixture, port).await;
    client
        .send(&[upload(1), reset(1), frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 16]), frame(PING, 0, 0, &[0; 8])].concat())
        .await;
    client.send(&open(3)).await;
    assert_eq!(client.outcome(3).await, Outcome::Fine);
    assert!(served.load(Ordering::Relaxed) > asked);
    client.send(&frame(GOAWAY, 0, 0, &[0; 8])).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = fixture.events();
    assert!(after[before..].iter().all(|event| event.stage != Stage::Parse), "{:?}", &after[before..]);
}

/// The codes of all GOAWAY frames in what was received.
fn gone_away(mut bytes: &[u8]) -> Vec<u32> {
    let mut codes = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        if head[3] == GOAWAY {
            codes.push(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        bytes = rest;
    }
    codes
}
