//! WebSocket frames (RFC 6455 §5) from a client whose messages rules must judge. A text message goes on when it is whole
//! and allowed, in the very bytes it came in; what the server sends is passed unread, frame by frame only so that a
//! close of ours never lands inside one of its frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::header::HeaderValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::egress::limits;
use crate::egress::splice::Traffic;
use crate::policy::request::{self, MessageRules};

/// What RFC 6455 §1.3 has appended to a key before it is digested.
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Longest reason of a close frame: a control frame's 125 bytes without its code (RFC 6455 §5.5).
const REASON_BYTES: usize = 123;

/// Why a client's stream of frames ends.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A rule refuses a message.
    Refused(Box<request::Refusal>),
    /// The frames are not what RFC 6455 has them be: the close code of §7.4.1, and what is wrong.
    Broken(u16, &'static str),
}

impl Verdict {
    fn code(&self) -> u16 {
        match self {
            Self::Refused(_) => 1008,
            Self::Broken(code, _) => *code,
        }
    }

    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Refused(refusal) => &refusal.reason,
            Self::Broken(_, what) => what,
        }
    }
}

/// A key for a handshake that the client's protocol has no key for.
pub(super) fn new_key() -> HeaderValue {
    let mut nonce = [0; 16];
    // Only the shape matters: the key keeps caches from answering, it hides nothing (RFC 6455 §10.8).
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut nonce);
    HeaderValue::from_str(&base64(&nonce)).unwrap_or_else(|_| HeaderValue::from_static("AAAAAAAAAAAAAAAAAAAAAA=="))
}

/// Whether `accept` is what a server that has read `key` answers.
pub(super) fn accepts(key: &HeaderValue, accept: &HeaderValue) -> bool {
    let input = [key.as_bytes(), KEY_SUFFIX.as_bytes()].concat();
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &input);
    accept.as_bytes() == base64(digest.as_ref()).as_bytes()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = group.iter().chain([0, 0].iter()).take(3).fold(0_usize, |word, &byte| word << 8 | usize::from(byte));
        for index in 0..4 {
            let digit = char::from(ALPHABET[word >> (18 - 6 * index) & 63]);
            text.push(if index <= group.len() { digit } else { '=' });
        }
    }
    text
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    last: bool,
    reserved: bool,
    opcode: u8,
    mask: Option<[u8; 4]>,
    /// Bytes of the head.
    head: usize,
    /// Bytes of the payload.
    length: u64,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;

impl Frame {
    /// Reads one; `None` while bytes are missing.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (&first, &second) = (bytes.first()?, bytes.get(1)?);
        let (length, mut head) = match second & 0x7f {
            126 => (u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
            127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?), 10),
            short => (u64::from(short), 2),
        };
        let mut mask = None;
        if second & 0x80 != 0 {
            mask = Some(bytes.get(head..head + 4)?.try_into().ok()?);
            head += 4;
        }
        Some(Self { last: first & 0x80 != 0, reserved: first & 0x70 != 0, opcode: first & 0x0f, mask, head, length })
    }

    fn is_control(&self) -> bool {
        self.opcode >= CLOSE
    }
}

/// Reads a client's frames and says what may go on.
#[derive(Default)]
struct Reader {
    /// Bytes that have come and not gone on; whole frames of an unfinished text message first.
    held: Vec<u8>,
    /// Where in `held` the next unread frame begins.
    next: usize,
    /// The text so far of a message that is not whole.
    text: Option<Vec<u8>>,
    /// A binary message is under way.
    binary: bool,
    /// Payload of the current frame that only has to pass.
    passing: u64,
    /// Messages that passed only because the endpoint asks for an audit.
    audited: Vec<request::Refusal>,
    /// Since when something is held that is not whole.
    since: Option<Instant>,
}

impl Reader {
    /// Takes bytes in, and puts those that may go on by `rules` into `out`.
    fn take(&mut self, rules: &MessageRules, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Verdict> {
        let outcome = self.take_frames(rules, bytes, out);
        let unfinished = self.text.is_some() || self.held.len() > self.next;
        self.since = if unfinished { self.since.or_else(|| Some(Instant::now())) } else { None };
        outcome
    }

    fn take_frames(&mut self, rules: &MessageRules, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Verdict> {
        if self.passing > 0 {
            let count = bytes.len().min(usize::try_from(self.passing).unwrap_or(usize::MAX));
            out.extend_from_slice(&bytes[..count]);
            self.passing -= count as u64;
            bytes = &bytes[count..];
        }
        self.held.extend_from_slice(bytes);
        while let Some(frame) = Frame::read(&self.held[self.next..]) {
            self.check(&frame)?;
            if frame.opcode == BINARY {
                // What is in it no rule reads.
                self.audited.extend(rules.judge_binary().map_err(Verdict::Refused)?.map(|refusal| *refusal));
            }
            if !frame.is_control() && (frame.opcode == BINARY || frame.opcode == CONTINUATION && self.binary) {
                self.binary = !frame.last;
                self.since = None;
                self.pass(&frame, out);
                if self.passing > 0 {
                    return Ok(());
                }
                continue;
            }
            let end = self.next + frame.head + usize::try_from(frame.length).unwrap_or(usize::MAX);
            if self.held.len() < end {
                return Ok(());
            }
            if frame.is_control() {
                // Control frames may stand between the fragments of a message (§5.4), and are not kept back with them.
                out.extend(self.held.drain(self.next..end));
                if self.text.is_none() {
                    self.since = None;
                }
                continue;
            }
            self.gather(rules, &frame, end)?;
            if frame.last {
                self.since = None;
                out.extend(self.held.drain(..self.next));
                self.next = 0;
            }
        }
        Ok(())
    }

    fn check(&self, frame: &Frame) -> Result<(), Verdict> {
        let broken = |what| Err(Verdict::Broken(1002, what));
        let within = self.text.is_some() || self.binary;
        match frame.opcode {
            _ if frame.reserved => broken("a frame sets a bit of an extension that was not agreed on"),
            _ if frame.mask.is_none() => broken("a frame of the client is not masked"),
            CONTINUATION if !within => broken("a fragment continues no message"),
            TEXT | BINARY if within => broken("a message begins inside another"),
            CONTINUATION | TEXT | BINARY => {
                let gathered = self.text.as_ref().map_or(0, Vec::len) as u64;
                let judged = frame.opcode == TEXT || frame.opcode == CONTINUATION && !self.binary;
                if judged && gathered.saturating_add(frame.length) > limits::MESSAGE_BYTES as u64 {
                    return Err(Verdict::Broken(1009, "the message is too large to be judged"));
                }
                Ok(())
            }
            CLOSE..=10 if frame.last && frame.length <= 125 => Ok(()),
            CLOSE..=10 => broken("a control frame is long or in pieces"),
            _ => broken("a frame has an opcode that means nothing"),
        }
    }

    /// Lets a frame go on whose payload nobody reads.
    fn pass(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        let there = self.held.len() - self.next - frame.head;
        let count = there.min(usize::try_from(frame.length).unwrap_or(usize::MAX));
        self.passing = frame.length - count as u64;
        out.extend(self.held.drain(self.next..self.next + frame.head + count));
    }

    /// Takes a whole frame of a text message, which ends at `end`, and judges the message if it was the last.
    fn gather(&mut self, rules: &MessageRules, frame: &Frame, end: usize) -> Result<(), Verdict> {
        let payload = &self.held[self.next + frame.head..end];
        let mask = frame.mask.unwrap_or_default();
        let text = self.text.get_or_insert_default();
        text.extend(payload.iter().enumerate().map(|(index, byte)| byte ^ mask[index % 4]));
        self.next = end;
        // Empty fragments cost their heads, and a message is held with them.
        if self.held.len() > 2 * limits::MESSAGE_BYTES {
            return Err(Verdict::Broken(1009, "the message comes in too many pieces"));
        }
        if frame.last {
            let text = self.text.take().unwrap_or_default();
            let text = String::from_utf8(text).map_err(|_| Verdict::Broken(1007, "a text message is not UTF-8"))?;
            self.audited.extend(rules.judge_text(&text).map_err(Verdict::Refused)?.map(|refusal| *refusal));
        }
        Ok(())
    }
}

/// Follows a server's frames, to know when one is whole.
#[derive(Debug, Default)]
struct Follower {
    head: Vec<u8>,
    left: u64,
}

impl Follower {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let count = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= count as u64;
                bytes = &bytes[count..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            if let Some(frame) = Frame::read(&self.head) {
                self.left = frame.length;
                self.head.clear();
            }
        }
    }

    fn between_frames(&self) -> bool {
        self.left == 0 && self.head.is_empty()
    }
}

fn close_frame(code: u16, reason: &str, masked: bool) -> Vec<u8> {
    let mut end = reason.len().min(REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let payload = [&code.to_be_bytes()[..], &reason.as_bytes()[..end]].concat();
    let mask_bit = if masked { 0x80 } else { 0 };
    let mut frame = vec![0x80 | CLOSE, mask_bit | payload.len() as u8];
    if masked {
        // A mask of zeros leaves the bytes as they are: it protects intermediaries from scripts, and this is none.
        frame.extend([0; 4]);
    }
    frame.extend(payload);
    frame
}

/// Relays until both sides are done or the client breaks a rule; then both are told by a close frame. `audited` hears of
/// what passes only because the endpoint asks for an audit. `rules` are those of the moment: a policy may change them.
pub(super) async fn relay(
    client: impl AsyncRead + AsyncWrite + Send + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Send + Unpin,
    rules: impl Fn() -> Arc<MessageRules>,
    traffic: &Traffic,
    audited: impl Fn(&request::Refusal),
) -> Option<Verdict> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_upstream, mut to_upstream) = tokio::io::split(upstream);
    let mut whole = true;
    let verdict = {
        let outgoing = outgoing(&mut from_client, &mut to_upstream, rules, traffic, audited);
        let incoming = incoming(&mut from_upstream, &mut to_client, traffic, &mut whole);
        tokio::pin!(outgoing, incoming);
        tokio::select! {
            verdict = &mut outgoing => {
                if verdict.is_none() {
                    incoming.await;
                }
                verdict
            }
            () = &mut incoming => outgoing.await,
        }
    }?;
    if whole {
        let _ = to_client.write_all(&close_frame(verdict.code(), verdict.reason(), false)).await;
        let _ = to_client.shutdown().await;
    }
    let _ = to_upstream.write_all(&close_frame(verdict.code(), "closed by the sandbox's policy", true)).await;
    let _ = to_upstream.shutdown().await;
    Some(verdict)
}

/// From the client, message by message, to its end or to the first that may not pass.
async fn outgoing(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    rules: impl Fn() -> Arc<MessageRules>,
    traffic: &Traffic,
    audited: impl Fn(&request::Refusal),
) -> Option<Verdict> {
    let mut reader = Reader::default();
    let mut buffer = vec![0; limits::UPGRADE_BYTES];
    let mut out = Vec::new();
    loop {
        let deadline = match reader.since {
            Some(since) => since + limits::MESSAGE_TIME,
            None => Instant::now() + limits::TUNNEL_IDLE,
        };
        let arrived = match timeout_at(deadline, from.read(&mut buffer)).await {
            Ok(Ok(arrived @ 1..)) => arrived,
            Err(_) if reader.since.is_some() => {
                return Some(Verdict::Broken(1002, "a message was not finished in time"));
            }
            Err(_) => continue,
            Ok(_) => {
                let _ = to.shutdown().await;
                return None;
            }
        };
        let verdict = reader.take(&rules(), &buffer[..arrived], &mut out);
        reader.audited.drain(..).for_each(|refusal| audited(&refusal));
        traffic.sent.fetch_add(out.len() as u64, Ordering::Relaxed);
        if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
            return None;
        }
        out.clear();
        if let Err(verdict) = verdict {
            return Some(verdict);
        }
    }
}

/// From the server, unread; `whole` says whether what has been written ends with a frame.
async fn incoming(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    traffic: &Traffic,
    whole: &mut bool,
) {
    let mut follower = Follower::default();
    let mut buffer = vec![0; limits::UPGRADE_BYTES];
    while let Ok(arrived @ 1..) = from.read(&mut buffer).await {
        follower.take(&buffer[..arrived]);
        // If the write is given up half-way, it stays so.
        *whole = false;
        if to.write_all(&buffer[..arrived]).await.is_err() || to.flush().await.is_err() {
            return;
        }
        *whole = follower.between_frames();
        traffic.received.fetch_add(arrived as u64, Ordering::Relaxed);
    }
    *whole = false;
    let _ = to.shutdown().await;
}
