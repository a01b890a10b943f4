//! A byte stream as a stream of messages: identification, keys, and new keys in time (RFC 4253).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::cipher::{Opener, Sealer};
use super::kex::{Exchange, HostKey, Side, Versions, message};
use super::wire::{Malformed, Reader, Writer};
use super::{SshError, number};

/// How this side names itself (RFC 4253 §4.2).
const IDENTIFICATION: &str = concat!("SSH-2.0-openshell_", env!("CARGO_PKG_VERSION"));

/// Longest identification line (RFC 4253 §4.2).
const LINE_LIMIT: usize = 255;

/// Most that a server may say before its identification line.
const BANNER_LIMIT: usize = 8 << 10;

/// What is read at a time: two of the largest data packets that this side asks for.
const READ_SIZE: usize = 64 << 10;

/// Keys are renewed after so many bytes, or so long (RFC 4253 §9).
const REKEY_BYTES: u64 = 1 << 30;
/// See above.
const REKEY_TIME: Duration = Duration::from_secs(3600);

/// How long a peer may take to take in what was sent before the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Data waits while this much waits to be written.
pub(super) const DATA_QUEUED: usize = 256 << 10;

/// Nothing more is read while this much waits to be written: answers too are bounded, when somebody asks and does not read.
const QUEUED_LIMIT: usize = 1 << 20;

/// While keys are exchanged, nothing is written and reading must go on. A peer may still ask for things until it has heard
/// of the exchange; one that has as much to be answered does not mean to take part in it.
const HELD_LIMIT: usize = 2 * QUEUED_LIMIT;

/// What a message that waits costs beside its bytes: its place in the queue, and what the allocator adds.
const MESSAGE_COST: usize = 64;

/// What goes out.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    /// There is something to write.
    some: Notify,
    /// There is less to write.
    pub(super) room: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Key exchange, and what else comes first.
    urgent: VecDeque<Urgent>,
    normal: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Only what is urgent may go: keys are being exchanged.
    held: bool,
    /// Nothing more comes; what there is still goes.
    finished: bool,
    /// Nothing more goes.
    broken: bool,
    sealed: u64,
}

#[derive(Debug)]
struct Urgent {
    message: Vec<u8>,
    /// Keys for what comes after, and whether packets are numbered anew with them.
    then: Option<(Sealer, bool)>,
}

impl Outgoing {
    fn new() -> Self {
        let queue = Mutex::new(Queue { held: true, ..Queue::default() });
        Self { queue, some: Notify::new(), room: Notify::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message, however much there is.
    pub(super) fn push(&self, message: Vec<u8>) {
        let mut queue = self.queue();
        queue.bytes += cost(&message);
        queue.normal.push_back(message);
        drop(queue);
        self.some.notify_one();
    }

    fn push_urgent(&self, message: Vec<u8>, then: Option<(Sealer, bool)>) {
        let mut queue = self.queue();
        queue.bytes += cost(&message);
        // After new keys, what waited may go; before them, what follows must wait.
        queue.held = then.is_none();
        queue.urgent.push_back(Urgent { message, then });
        drop(queue);
        self.some.notify_one();
    }

    /// Whether data may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.queue().bytes < DATA_QUEUED
    }

    /// Ends it, after what has been queued.
    pub(super) fn finish(&self) {
        self.queue().finished = true;
        self.some.notify_one();
    }

    /// Waits until something may be read, and answered.
    async fn below_limit(&self) -> Result<(), SshError> {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            {
                let queue = self.queue();
                if queue.held && queue.bytes >= HELD_LIMIT {
                    return Err(SshError::Protocol("more to answer than one key exchange lasts"));
                }
                // What ends the exchange has yet to be read.
                if queue.bytes < QUEUED_LIMIT || queue.broken || queue.held {
                    return Ok(());
                }
            }
            notified.await;
        }
    }

    /// Writes until it is finished, or the stream ends.
    async fn write(self: Arc<Self>, mut stream: OwnedWriteHalf) {
        let mut sealer = Sealer::clear();
        let mut packets = Vec::new();
        loop {
            let notified = self.some.notified();
            let finished = {
                let mut queue = self.queue();
                while packets.len() < DATA_QUEUED {
                    let (mut message, then) = match queue.urgent.pop_front() {
                        Some(urgent) => (urgent.message, urgent.then),
                        None if queue.held => break,
                        None => match queue.normal.pop_front() {
                            Some(message) => (message, None),
                            None => break,
                        },
                    };
                    queue.bytes -= cost(&message);
                    sealer.seal(&mut message);
                    packets.extend_from_slice(&message);
                    if let Some((mut next, restart)) = then {
                        next.follow(&sealer, restart);
                        sealer = next;
                    }
                }
                queue.sealed = sealer.sealed;
                queue.finished
            };
            if packets.is_empty() {
                if finished {
                    break;
                }
                notified.await;
                continue;
            }
            if stream.write_all(&packets).await.is_err() {
                break;
            }
            packets.clear();
            self.room.notify_waiters();
        }
        self.queue().broken = true;
        self.room.notify_waiters();
        let _ = stream.shutdown().await;
    }
}

/// One end of a connection's transport.
#[derive(Debug)]
pub(super) struct Transport {
    side: Side,
    key: Option<Arc<HostKey>>,
    stream: OwnedReadHalf,
    buffer: BytesMut,
    opener: Opener,
    next_opener: Option<Opener>,
    versions: Versions,
    session: Option<Vec<u8>>,
    exchange: Option<Exchange>,
    strict: bool,
    pass_over: bool,
    renewed: Instant,
    /// What goes out.
    pub(super) outgoing: Arc<Outgoing>,
    writer: JoinHandle<()>,
}

impl Drop for Transport {
    /// What has been queued still goes, if the peer takes it.
    fn drop(&mut self) {
        self.outgoing.finish();
        if self.writer.is_finished() {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) => {
                let writer = self.writer.abort_handle();
                runtime.spawn(async move {
                    tokio::time::sleep(FAREWELL).await;
                    writer.abort();
                });
            }
            Err(_) => self.writer.abort(),
        }
    }
}

impl Transport {
    /// Exchanges identifications and begins to exchange keys. A server has a key.
    pub(super) async fn begin(mut stream: UnixStream, side: Side, key: Option<Arc<HostKey>>) -> Result<Self, SshError> {
        let written = stream.write_all(format!("{IDENTIFICATION}\r\n").as_bytes()).await;
        let mut buffer = BytesMut::with_capacity(READ_SIZE);
        // A server that refuses says why and closes, perhaps before anything could be written.
        let theirs = identification(&mut stream, &mut buffer, side).await;
        let theirs = match (theirs, written) {
            (Err(refused @ SshError::Refused(_)), _) => return Err(refused),
            (theirs, written) => written.map_err(SshError::from).and(theirs)?,
        };
        let ours = IDENTIFICATION.as_bytes().to_vec();
        let versions = match side {
            Side::Server => Versions { client: theirs, server: ours },
            Side::Client => Versions { client: ours, server: theirs },
        };
        let (stream, writer) = stream.into_split();
        let outgoing = Arc::new(Outgoing::new());
        let writer = tokio::spawn(outgoing.clone().write(writer));
        let mut transport = Self {
            side,
            key,
            stream,
            buffer,
            opener: Opener::clear(),
            next_opener: None,
            versions,
            session: None,
            exchange: None,
            strict: false,
            pass_over: false,
            renewed: Instant::now(),
            outgoing,
            writer,
        };
        transport.begin_exchange()?;
        Ok(transport)
    }

    fn begin_exchange(&mut self) -> Result<(), SshError> {
        let (exchange, hello) = Exchange::begin(self.side)?;
        self.exchange = Some(exchange);
        self.outgoing.push_urgent(hello, None);
        Ok(())
    }

    fn renew_keys_in_time(&mut self) -> Result<(), SshError> {
        let busy = self.exchange.is_some() || self.next_opener.is_some();
        let worn = self.opener.opened > REKEY_BYTES
            || self.outgoing.queue().sealed > REKEY_BYTES
            || self.renewed.elapsed() > REKEY_TIME;
        if worn && !busy { self.begin_exchange() } else { Ok(()) }
    }

    /// The next message that is not the transport's own business. May be cancelled; nothing is lost.
    pub(super) async fn next(&mut self) -> Result<BytesMut, SshError> {
        loop {
            self.outgoing.below_limit().await?;
            let first_exchange = self.opener.is_clear();
            let sequence = self.opener.sequence();
            let message = self.packet().await?;
            match message[0] {
                number::DISCONNECT => return Err(SshError::Disconnected(disconnect_reason(&message))),
                number::IGNORE | number::DEBUG | number::UNIMPLEMENTED | number::EXT_INFO => {
                    if first_exchange && self.strict {
                        return Err(SshError::Protocol("a message that has no place in a strict key exchange"));
                    }
                }
                number::KEXINIT => self.hear(&message, sequence)?,
                number::KEX_ECDH_INIT | number::KEX_ECDH_REPLY if std::mem::take(&mut self.pass_over) => {}
                number::KEX_ECDH_INIT if self.side == Side::Server => self.answer(&message)?,
                number::KEX_ECDH_REPLY if self.side == Side::Client => self.conclude(&message)?,
                number::NEWKEYS => {
                    let mut opener =
                        self.next_opener.take().ok_or(SshError::Protocol("new keys that were not exchanged"))?;
                    opener.follow(&self.opener, self.strict);
                    self.opener = opener;
                    self.renewed = Instant::now();
                }
                // The peer may send no other message between its KEXINIT and its NEWKEYS (RFC 4253 §7.1), nor any before
                // the first keys.
                _ if self.session.is_none()
                    || self.next_opener.is_some()
                    || self.exchange.as_ref().is_some_and(Exchange::is_answered) =>
                {
                    return Err(SshError::Protocol("a message amid a key exchange"));
                }
                _ => {
                    self.renew_keys_in_time()?;
                    return Ok(message);
                }
            }
        }
    }

    fn hear(&mut self, hello: &[u8], sequence: u32) -> Result<(), SshError> {
        if self.next_opener.is_some() {
            return Err(SshError::Protocol("a KEXINIT before the new keys"));
        }
        if self.exchange.is_none() {
            self.begin_exchange()?;
        }
        let exchange = self.exchange.as_mut().ok_or(SshError::Protocol("no key exchange"))?;
        let (agreed, initiation) = exchange.hear(hello)?;
        self.pass_over = agreed.wrong_guess;
        if self.session.is_none() {
            self.strict = agreed.strict;
            if self.strict && sequence != 0 {
                return Err(SshError::Protocol("a KEXINIT that is not the first packet of a strict key exchange"));
            }
        }
        if let Some(initiation) = initiation {
            self.outgoing.push_urgent(initiation, None);
        }
        Ok(())
    }

    fn answered(&mut self) -> Result<Exchange, SshError> {
        let answered = self.exchange.take().filter(Exchange::is_answered);
        answered.ok_or(SshError::Protocol("a key exchange that was not begun"))
    }

    fn answer(&mut self, initiation: &[u8]) -> Result<(), SshError> {
        let key = self.key.clone().ok_or(SshError::Protocol("no host key"))?;
        let (reply, keys) = self.answered()?.answer(initiation, &self.versions, &key, &mut self.session)?;
        self.outgoing.push_urgent(reply, None);
        self.outgoing.push_urgent(message(number::NEWKEYS), Some((keys.sealer, self.strict)));
        self.next_opener = Some(keys.opener);
        Ok(())
    }

    fn conclude(&mut self, reply: &[u8]) -> Result<(), SshError> {
        let keys = self.answered()?.conclude(reply, &self.versions, &mut self.session)?;
        self.outgoing.push_urgent(message(number::NEWKEYS), Some((keys.sealer, self.strict)));
        self.next_opener = Some(keys.opener);
        Ok(())
    }

    /// Waits until what has been queued has gone, if the peer takes it.
    pub(super) async fn farewell(&mut self) {
        self.outgoing.finish();
        if timeout(FAREWELL, &mut self.writer).await.is_err() {
            self.writer.abort();
        }
    }

    async fn packet(&mut self) -> Result<BytesMut, SshError> {
        loop {
            if let Some(message) = self.opener.open(&mut self.buffer)? {
                return Ok(message);
            }
            self.buffer.reserve(READ_SIZE);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(SshError::Gone);
            }
        }
    }
}

fn cost(message: &[u8]) -> usize {
    message.len() + MESSAGE_COST
}

/// The peer's identification line, without its end. A server may say other things before (RFC 4253 §4.2); where it closes
/// after that, the last of them is why.
async fn identification(stream: &mut UnixStream, buffer: &mut BytesMut, side: Side) -> Result<Vec<u8>, SshError> {
    let mut said = 0;
    let mut last = Vec::new();
    loop {
        while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
            let line = buffer.split_to(end + 1);
            let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
            if line.starts_with(b"SSH-2.0-") && line.len() <= LINE_LIMIT {
                return Ok(line.to_vec());
            }
            said += end + 1;
            if side == Side::Server || line.starts_with(b"SSH-") || said > BANNER_LIMIT {
                return Err(Malformed("no identification of SSH 2.0").into());
            }
            last = line.to_vec();
        }
        // What a server says before may be as long as it likes, within the bound of all of it.
        let limit = if side == Side::Server { LINE_LIMIT } else { BANNER_LIMIT };
        if buffer.len() > limit {
            return Err(Malformed("an identification that is too long").into());
        }
        let ended = match stream.read_buf(buffer).await {
            Ok(0) => SshError::Gone,
            Ok(_) => continue,
            Err(error) => error.into(),
        };
        return Err(refusal(&last).unwrap_or(ended));
    }
}

/// What a server that closes has said; our own kind begins with its name, as the client's own messages do.
pub(in crate::access) fn refusal(line: &[u8]) -> Option<SshError> {
    let line = line.strip_prefix(b"openshell-supervisor: ").unwrap_or(line);
    (!line.is_empty()).then(|| SshError::Refused(String::from_utf8_lossy(line).into_owned()))
}

fn disconnect_reason(message: &[u8]) -> String {
    let mut reader = Reader::new(&message[1..]);
    let reason = reader.u32().and_then(|_| reader.text());
    reason.unwrap_or("for no reason that can be read").to_owned()
}

/// DISCONNECT, by protocol error (2) or by the application (11) (RFC 4253 §11.1).
pub(super) fn disconnect(reason: u32, why: &str) -> Vec<u8> {
    let mut goodbye = message(number::DISCONNECT);
    goodbye.put_u32(reason);
    goodbye.put_string(why.as_bytes());
    goodbye.put_string(b"");
    goodbye
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether reading goes on at once.
    async fn reads_on(outgoing: &Outgoing) -> Option<bool> {
        match timeout(Duration::from_millis(20), outgoing.below_limit()).await {
            Ok(may) => Some(may.is_ok()),
            Err(_) => None,
        }
    }

    #[test]
    fn keys_are_exchanged_however_much_waits_but_not_without_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let outgoing = Outgoing::new();
            let fill = |bytes: usize| (0..bytes / 1024).for_each(|_| outgoing.push(vec![0; 1024]));
            fill(QUEUED_LIMIT);
            assert_eq!(reads_on(&outgoing).await, Some(true), "what ends the exchange has yet to be read");
            outgoing.queue().held = false;
            assert_eq!(reads_on(&outgoing).await, None, "control: otherwise it waits for the writer");
            outgoing.queue().held = true;
            fill(HELD_LIMIT - QUEUED_LIMIT);
            assert_eq!(reads_on(&outgoing).await, Some(false), "it ends");
        });
    }

    #[test]
    fn small_messages_count_for_what_they_cost() {
        let outgoing = Outgoing::new();
        (0..=QUEUED_LIMIT / MESSAGE_COST).for_each(|_| outgoing.push(message(number::REQUEST_FAILURE)));
        assert!(outgoing.queue().bytes > QUEUED_LIMIT);
    }
}
