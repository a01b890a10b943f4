//! Peers that do not keep to the protocol. Each meets a server whose channels echo, beside a peer that does.

use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;
use crate::access::ssh::channel::UNKNOWN_KIND;
use crate::access::ssh::cipher::{HEAD, Sealer};
use crate::access::ssh::kex::Exchange;

/// Cases of each property, where `PROPTEST_CASES` says nothing else: each costs some exchanges of keys.
const CASES: u32 = 96;

/// No peer may keep the server busy for longer than this after it has gone. Slow machines included.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server whose sessions send back what they are sent, and agree to every request.
async fn serve(stream: UnixStream) -> Result<(), SshError> {
    let key = Arc::new(HostKey::generate()?);
    let (connection, mut openings) = Connection::serve(stream, key).await?;
    tokio::spawn(async move {
        while let Some(Opening { kind, channel, .. }) = openings.recv().await {
            if kind != "session" {
                channel.refuse(&Refused { code: UNKNOWN_KIND, reason: "no such kind".into() });
                continue;
            }
            channel.confirm();
            tokio::spawn(async move {
                let obey = async {
                    while let Some(request) = channel.request().await {
                        channel.answer(&request, true);
                    }
                };
                let echo = async {
                    while let Some(data) = channel.take(Stream::Data).await {
                        if channel.send(Stream::Data, &data).await.is_err() {
                            return;
                        }
                    }
                    channel.eof();
                };
                tokio::join!(obey, echo);
            });
        }
    });
    connection.run().await
}

/// A peer that may send whatever it likes, once it is let in, and the server's end of it.
struct Raw {
    transport: Transport,
    server: JoinHandle<Result<(), SshError>>,
}

impl Raw {
    async fn connect() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = tokio::spawn(serve(theirs));
        let mut transport = Transport::begin(ours, Side::Client, None).await.unwrap();
        for words in [&["ssh-userauth"][..], &["user", "ssh-connection", "none"]] {
            let asks = words.len() > 1;
            let mut ask = message(if asks { number::USERAUTH_REQUEST } else { number::SERVICE_REQUEST });
            words.iter().for_each(|word| ask.put_string(word.as_bytes()));
            transport.outgoing.push(ask);
        }
        while transport.next().await.unwrap()[0] != number::USERAUTH_SUCCESS {}
        Self { transport, server }
    }

    fn send(&self, payload: &[u8]) {
        self.transport.outgoing.push([&[0; HEAD], payload].concat());
    }

    /// Reads until the server ends it, or has nothing more to say for a while; says whether it has ended.
    async fn listen(&mut self) -> bool {
        loop {
            match timeout(Duration::from_millis(20), self.transport.next()).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Goes, and returns how the server's end ended.
    async fn leave(self) -> Result<(), SshError> {
        let Self { transport, server } = self;
        drop(transport);
        timeout(PATIENCE, server).await.expect("the server has not noticed").expect("the server has panicked")
    }
}

/// One that keeps to the protocol, and must not notice the others.
struct Bystander {
    channel: Channel,
    _connection: JoinHandle<Result<(), SshError>>,
}

impl Bystander {
    async fn connect() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(serve(theirs));
        let (connection, opener) = Connection::connect(ours, "user").await.unwrap();
        let connection = tokio::spawn(connection.run());
        let channel = opener.open("session", b"").unwrap();
        channel.opened().await.unwrap();
        Self { channel, _connection: connection }
    }

    async fn is_well(&self) -> bool {
        let echo = async {
            self.channel.send(Stream::Data, b"word").await.unwrap();
            self.channel.take(Stream::Data).await.unwrap() == b"word"[..]
        };
        timeout(PATIENCE, echo).await.unwrap_or(false)
    }
}

fn payload(kind: u8, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![kind];
    fill(&mut bytes);
    bytes
}

fn opening(kind: &str, [peer, window, packet]: [u32; 3], details: &[u8]) -> Vec<u8> {
    payload(number::CHANNEL_OPEN, |bytes| {
        bytes.put_string(kind.as_bytes());
        [peer, window, packet].into_iter().for_each(|value| bytes.put_u32(value));
        bytes.extend_from_slice(details);
    })
}

fn request(channel: u32, name: &str, details: &[u8]) -> Vec<u8> {
    payload(number::CHANNEL_REQUEST, |bytes| {
        bytes.put_u32(channel);
        bytes.put_string(name.as_bytes());
        bytes.put_boolean(true);
        bytes.extend_from_slice(details);
    })
}

fn data(channel: u32, data: &[u8]) -> Vec<u8> {
    payload(number::CHANNEL_DATA, |bytes| {
        bytes.put_u32(channel);
        bytes.put_string(data);
    })
}

/// Any message: well formed, lying about a length, cut short, of a kind that there is not, or of no kind at all.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    // Numbers of channels that there are, mostly.
    let channel = || prop_oneof![4 => 0..3_u32, 1 => any::<u32>()];
    let size = || prop_oneof![Just(0), Just(1), Just(u32::MAX), Just(1 << 20), any::<u32>()];
    let bytes = |most: usize| vec(any::<u8>(), 0..most);
    let well_formed = prop_oneof![
        4 => ("(session|direct-tcpip|x11|.{0,80})", [size(), size(), size()], bytes(300))
            .prop_map(|(kind, numbers, details)| opening(&kind, numbers, &details)),
        3 => (channel(), bytes(2000)).prop_map(|(number, bytes)| data(number, &bytes)),
        1 => (channel(), Just(vec![7; 40_000])).prop_map(|(number, bytes)| data(number, &bytes)),
        1 => (channel(), size(), size()).prop_map(|(number, kind, length)| {
            payload(number::CHANNEL_EXTENDED_DATA, |bytes| [number, kind, length].iter().for_each(|&v| bytes.put_u32(v)))
        }),
        2 => (channel(), size()).prop_map(|(number, more)| {
            payload(number::CHANNEL_WINDOW_ADJUST, |bytes| [number, more].iter().for_each(|&v| bytes.put_u32(v)))
        }),
        3 => (channel(), 96..=100_u8).prop_map(|(number, kind)| payload(kind, |bytes| bytes.put_u32(number))),
        3 => (channel(), "(exec|shell|pty-req|env|window-change|.{0,80})", bytes(3000))
            .prop_map(|(number, name, details)| request(number, &name, &details)),
        1 => (".{0,100}", any::<bool>()).prop_map(|(name, answer)| payload(number::GLOBAL_REQUEST, |bytes| {
            bytes.put_string(name.as_bytes());
            bytes.put_boolean(answer);
        })),
        1 => (bytes(2000)).prop_map(|bytes| payload(number::IGNORE, |message| message.put_string(&bytes))),
        1 => Just(()).prop_map(|()| Exchange::begin(Side::Client).unwrap().1.split_off(HEAD)),
        1 => bytes(40).prop_map(|key| payload(number::KEX_ECDH_INIT, |bytes| bytes.put_string(&key))),
        1 => Just(vec![number::NEWKEYS]),
    ];
    let cut = (well_formed.clone(), any::<proptest::sample::Index>()).prop_map(|(message, at)| {
        let length = 1 + at.index(message.len());
        message[..length].to_vec()
    });
    let nonsense = vec(any::<u8>(), 1..600);
    prop_oneof![8 => well_formed.boxed(), 1 => cut.boxed(), 1 => nonsense.boxed()]
}

/// Tries `property` on what `strategy` makes, with one runtime for all.
fn holds<S: Strategy>(strategy: S, property: impl AsyncFn(&Bystander, S::Value)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bystander = runtime.block_on(Bystander::connect());
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let held = runner.run(&strategy, |value| {
        runtime.block_on(async {
            property(&bystander, value).await;
            assert!(bystander.is_well().await, "somebody else's connection suffers");
        });
        Ok(())
    });
    held.unwrap();
}

#[test]
fn whatever_a_peer_says_ends_its_own_connection_at_most() {
    let said = (vec(messages(), 0..40), any::<bool>());
    holds(said, async |_: &Bystander, (messages, reads)| {
        let mut peer = Raw::connect().await;
        // One channel is there for sure.
        peer.send(&opening("session", [9, 1 << 20, 1 << 15], b""));
        for message in messages {
            peer.send(&message);
            if reads && peer.listen().await {
                break;
            }
        }
        let _ = peer.leave().await;
    });
}

#[test]
fn whatever_comes_before_the_keys_lets_nobody_in() {
    let hello = || Exchange::begin(Side::Client).unwrap().1.split_off(HEAD);
    let part = prop_oneof![
        2 => Just(()).prop_map(move |()| hello()),
        2 => Just(payload(number::KEX_ECDH_INIT, |bytes| bytes.put_string(&[9; 32]))),
        1 => Just(payload(number::KEX_ECDH_INIT, |bytes| bytes.put_string(&[0; 32]))),
        2 => Just(vec![number::NEWKEYS]),
        1 => Just(payload(number::SERVICE_REQUEST, |bytes| bytes.put_string(b"ssh-userauth"))),
        3 => messages(),
    ];
    let said = (vec(part, 0..8), any::<proptest::sample::Index>(), any::<bool>());
    holds(said, async |_: &Bystander, (payloads, at, cut)| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let server = tokio::spawn(serve(theirs));
        let mut sealer = Sealer::clear();
        let mut bytes = b"SSH-2.0-peer\r\n".to_vec();
        for payload in payloads {
            let mut packet = [&[0; HEAD], &*payload].concat();
            sealer.seal(&mut packet);
            bytes.extend(packet);
        }
        if cut {
            bytes.truncate(at.index(bytes.len()));
        }
        let _ = ours.write_all(&bytes).await;
        let _ = ours.shutdown().await;
        let mut said = Vec::new();
        let _ = timeout(PATIENCE, ours.read_to_end(&mut said)).await.expect("the server has not noticed");
        assert!(said.starts_with(b"SSH-2.0-"));
        drop(ours);
        let ended = timeout(PATIENCE, server).await.expect("the server has not noticed");
        assert!(ended.expect("the server has panicked").is_err(), "it was let in");
    });
}

#[test]
fn bytes_that_are_no_packets_end_it_and_are_not_kept() {
    holds((vec(any::<u8>(), 0..5000), any::<bool>()), async |_: &Bystander, (bytes, named)| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let server = tokio::spawn(serve(theirs));
        if named {
            let _ = ours.write_all(b"SSH-2.0-peer\r\n").await;
        }
        let _ = ours.write_all(&bytes).await;
        drop(ours);
        let ended = timeout(PATIENCE, server).await.expect("the server has not noticed");
        assert!(ended.expect("the server has panicked").is_err());
    });
}

/// What the server says to a peer that does `act` once it is in.
fn verdict(act: impl AsyncFnOnce(&mut Raw)) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut peer = Raw::connect().await;
        act(&mut peer).await;
        peer.leave().await.map_err(|error| error.to_string())
    })
}

const SESSION: [u32; 3] = [0, 1 << 20, 1 << 15];

#[test]
fn what_is_said_twice_or_too_late_is_noticed() {
    let after = |messages: &[Vec<u8>]| {
        verdict(async |peer| {
            peer.send(&opening("session", SESSION, b""));
            messages.iter().for_each(|message| peer.send(message));
            peer.listen().await;
        })
    };
    let short = |kind| payload(kind, |bytes| bytes.put_u32(0));
    let (eof, close) = (short(number::CHANNEL_EOF), short(number::CHANNEL_CLOSE));
    assert_eq!(after(&[data(0, b"word"), eof.clone()]), Ok(()), "control");
    assert_eq!(after(&[eof.clone(), eof.clone(), close.clone()]), Ok(()), "an end twice is an end");
    let late = after(&[eof.clone(), data(0, b"word")]);
    assert!(late.unwrap_err().contains("more data than was granted"));
    for messages in [[close.clone(), close.clone()], [close.clone(), data(0, b"word")]] {
        let error = after(&messages).unwrap_err();
        assert!(error.contains("a channel that is not open") || error.contains("that there is not"), "{error}");
    }
    assert!(after(&[data(5, b"word")]).unwrap_err().contains("that there is not"));
    let name = "x".repeat(65);
    assert!(after(&[request(0, &name, b"")]).unwrap_err().contains("64 characters"));
    assert_eq!(after(&[request(0, &name[1..], b"")]), Ok(()), "control");
}

#[test]
fn a_window_is_all_that_may_be_sent() {
    let flood = |bytes: usize| {
        verdict(async |peer| {
            // It sends nothing back, for its own window is empty, and so takes in no more than one piece.
            peer.send(&opening("session", [0, 0, 1 << 15], b""));
            let mut left = bytes;
            while left > 0 {
                let chunk = left.min(32 << 10);
                peer.send(&data(0, &vec![0; chunk]));
                left -= chunk;
                if peer.transport.outgoing.has_room() {
                    continue;
                }
                peer.listen().await;
            }
            peer.listen().await;
        })
    };
    assert_eq!(flood(WINDOW as usize), Ok(()), "control");
    assert!(flood(2 * WINDOW as usize).unwrap_err().contains("more data than was granted"));
}

#[test]
fn requests_that_nobody_answers_are_bounded_in_bytes_too() {
    let waiting = State::new();
    let ask = |length: usize| {
        let details = vec![0; length].into();
        waiting.inner().ask(Request { name: "env".into(), wants_answer: false, details })
    };
    assert!(ask(256 << 10) && ask(200 << 10), "a command and its environment");
    assert!(!ask(100 << 10));
    assert!(ask(1), "control: it is the bytes");
}

#[test]
fn channels_are_refused_beyond_the_limit_and_the_connection_goes_on() {
    let ended = verdict(async |peer| {
        let mut refused = 0;
        for index in 0..2 * CHANNELS_LIMIT as u32 {
            peer.send(&opening("session", [index, 0, 1], b""));
        }
        while let Ok(Ok(answer)) = timeout(Duration::from_millis(200), peer.transport.next()).await {
            refused += usize::from(answer[0] == number::CHANNEL_OPEN_FAILURE);
        }
        assert_eq!(refused, CHANNELS_LIMIT);
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn whoever_asks_and_does_not_listen_is_no_longer_heard() {
    let question = payload(number::GLOBAL_REQUEST, |bytes| {
        bytes.put_string(b"anything");
        bytes.put_boolean(true);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let peer = Raw::connect().await;
        let outgoing = peer.transport.outgoing.clone();
        // Many times what the socket takes, and what the server queues.
        let started = Instant::now();
        let mut sent = 0;
        while started.elapsed() < Duration::from_secs(2) && sent < 2_000_000 {
            if outgoing.has_room() {
                (0..100).for_each(|_| peer.send(&question));
                sent += 100;
            } else {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert!(!outgoing.has_room() && sent < 1_000_000, "{sent} questions were taken in");
        // What the server has for it is still bounded, and somebody else is served.
        assert!(Bystander::connect().await.is_well().await);
        let _ = peer.leave().await;
    });
}
