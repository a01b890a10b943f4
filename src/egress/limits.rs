//! Every bound of the proxy, with its reason. A bound that is reached always ends in an answer or an orderly close.

use std::time::Duration;

/// Connections served at once. An agent with a few hundred parallel downloads stays far below; a tunnel needs two
/// descriptors, so this fits the usual hard limit of open files with room for pipes, pooled connections and lookups.
pub const CONNECTIONS: usize = 4096;

/// Connections that are being told that there are too many. More wait in the kernel's backlog.
pub const TURNED_AWAY: usize = 64;

/// Bytes of a request head, and of a chunked body's trailers: four times what common servers take for one field, so
/// that large cookies pass and a flood does not.
pub const HEAD_BYTES: usize = 32 * 1024;

/// Fields of a head: the default of most servers.
pub const HEAD_FIELDS: usize = 100;

/// Bytes of a response head: origins send longer ones than clients (content security policies, cookies).
pub const RESPONSE_HEAD_BYTES: usize = 128 * 1024;

/// Bytes of a chunk's size line, extensions included; nobody uses extensions, attackers aside.
pub const CHUNK_LINE_BYTES: usize = 256;

/// The waits that a silent peer can bring about, together so that they can be shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// See [`HEAD_TIME`].
    pub head: Duration,
    /// See [`KEEP_ALIVE_IDLE`].
    pub keep_alive: Duration,
    /// See [`BODY_STALL`].
    pub body: Duration,
    /// See [`RESPONSE_TIME`].
    pub response: Duration,
    /// See [`TUNNEL_IDLE`].
    pub tunnel: Duration,
    /// See [`PARENT_TIME`].
    pub parent: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: HEAD_TIME,
            keep_alive: KEEP_ALIVE_IDLE,
            body: BODY_STALL,
            response: RESPONSE_TIME,
            tunnel: TUNNEL_IDLE,
            parent: PARENT_TIME,
        }
    }
}

/// From a head's first byte to its last. A client on the same machine needs milliseconds.
pub const HEAD_TIME: Duration = Duration::from_secs(15);

/// A kept-alive client connection without a request. Longer than the pools of common clients keep theirs.
pub const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(120);

/// A request body that we are ready to take and of which nothing comes.
pub const BODY_STALL: Duration = Duration::from_secs(300);

/// One name, all its families, search domains and retries.
pub const RESOLVE_TIME: Duration = Duration::from_secs(10);

/// Longest that an answer is remembered whatever its TTL says: a changed record should not need a restart.
pub const RESOLVE_CACHE_TIME: Duration = Duration::from_secs(30);

/// Names whose answers are remembered.
pub const RESOLVE_CACHE_ENTRIES: u64 = 256;

/// Largest hosts or resolv.conf file that is read; the real ones have a few lines, block lists some megabytes.
pub const RESOLVE_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Connecting, all addresses together: below the 15 to 30 s that clients give a proxy to answer.
pub const DIAL_TIME: Duration = Duration::from_secs(10);

/// Head start of an address over the next (RFC 8305 §5, "Connection Attempt Delay").
pub const DIAL_STAGGER: Duration = Duration::from_millis(250);

/// Addresses of one name that are tried; each must have passed the guard.
pub const DIAL_ADDRESSES: usize = 16;

/// One address that is waited for, to accept: more than the two retransmissions of a SYN, at 1 and 3 s, that a busy
/// machine may need.
pub const REACH_CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long it must then keep the connection. Balancers that accept before they know whether anything stands behind
/// them close within a round trip.
pub const REACH_SETTLE_TIME: Duration = Duration::from_millis(100);

/// From a request's last byte to the response's first. Models think for minutes before they answer.
pub const RESPONSE_TIME: Duration = Duration::from_secs(15 * 60);

/// An upstream connection kept for reuse: below the 60 s after which common origins close theirs.
pub const POOL_IDLE: Duration = Duration::from_secs(30);

/// How often connections kept too long are closed.
pub const POOL_SWEEP: Duration = Duration::from_secs(10);

/// Upstream connections kept for one destination.
pub const POOL_PER_DESTINATION: usize = 32;

/// Upstream connections kept in all.
pub const POOL_TOTAL: usize = 256;

/// A tunnel through which nothing flows. An interactive session may rest over a meeting; what is dead is found by
/// [`KEEPALIVE_IDLE`] long before.
pub const TUNNEL_IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// Seconds of silence before TCP asks whether the peer is there, then between probes, and how many go unanswered.
pub const KEEPALIVE_IDLE: u32 = 60;
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_INTERVAL: u32 = 15;
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_PROBES: u32 = 4;

/// Capacity of a pipe between two sockets: the largest that an unprivileged process may ask for is 1 MiB
/// (/proc/sys/fs/pipe-max-size); a quarter of it already moves data as fast and stays in the processor's cache.
pub const PIPE_BYTES: usize = 256 * 1024;

/// Pipes kept for the next burst. One is in use only while bytes are in flight in one direction.
pub const PIPES_KEPT: usize = 32;

/// Bytes that one direction of a tunnel moves before it lets other tasks run.
pub const TUNNEL_TURN_BYTES: usize = 4 * 1024 * 1024;

/// Buffer of a tunnel whose sockets cannot be spliced, allocated only while bytes are in flight.
pub const COPY_BYTES: usize = 64 * 1024;

/// From looking for the upstream proxy to its answer, all addresses of the destination together: such proxies resolve,
/// dial and authenticate before they answer, and clients give up after about as long.
pub const PARENT_TIME: Duration = Duration::from_secs(30);

/// Bytes of all heads with which the upstream proxy answers a CONNECT: they hold a handful of fields.
pub const PARENT_HEAD_BYTES: usize = 8 * 1024;

/// Bytes of the file with the credentials for the upstream proxy: a user and a password, or a token in its place.
pub const PARENT_AUTH_BYTES: u64 = 4096;

/// Buffer of a tunnel inside TLS to the upstream proxy: a record holds no more (RFC 8446 §5.1).
pub const PARENT_COPY_BYTES: usize = 16 * 1024;

/// Pause after an accept that failed for want of descriptors or memory; doubles up to [`ACCEPT_PAUSE_MOST`].
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// See [`ACCEPT_PAUSE`]. Descriptors come back as connections end; a second late is soon enough.
pub const ACCEPT_PAUSE_MOST: Duration = Duration::from_secs(1);

/// After a last answer, how long and how much more is read, so that unread bytes do not make the kernel send a reset
/// that destroys the answer on its way (RFC 9112 §9.6).
pub const LINGER_TIME: Duration = Duration::from_secs(1);
/// See [`LINGER_TIME`].
pub const LINGER_BYTES: usize = 256 * 1024;

/// How long a client that turned up above [`CONNECTIONS`] may take to send the head it will be refused for.
pub const TURN_AWAY_TIME: Duration = Duration::from_secs(2);

/// Connections that wait to be accepted. A program that opens hundreds at once must not meet a reset or a delay of a
/// second; 4096 (`net.core.somaxconn`) is the kernel's own bound.
pub const LISTEN_BACKLOG: i32 = 1024;

/// How long a body waits for the origin's 100 before it goes without: what curl waits for, and too short to be a
/// deadlock's cause (RFC 9110 §10.1.1: "should not wait for an indefinite period").
pub const CONTINUE_TIME: Duration = Duration::from_secs(1);

/// Bytes of interim responses (RFC 9110 §15.2) that one request may cause; origins send a few links.
pub const INTERIM_BYTES: usize = 32 * 1024;

/// Interim responses to one request. An origin that works for long may send one every few seconds (102, RFC 2518
/// §10.1); each costs all other connections a little.
pub const INTERIM_RESPONSES: u64 = 256;

/// Streams that one HTTP/2 client may have open: what browsers and gRPC use at most by default is 100.
pub const STREAMS: u32 = 128;

/// Streams reset by a client and not yet forgotten, before its connection ends (CVE-2023-44487, "rapid reset").
pub const RESET_STREAMS: usize = 32;

/// Streams that we had to reset for a client's errors, before its connection ends (CVE-2025-8671).
pub const ERROR_STREAMS: usize = 128;

/// Bytes of one stream on their way that nobody has taken yet: a gigabit over 8 ms, and what one stalled stream costs
/// at most.
pub const STREAM_WINDOW: u32 = 1024 * 1024;

/// The same for all streams of a connection: what one client costs at most.
pub const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// Largest HTTP/2 frame taken: four times the least (RFC 9113 §4.2), which saves calls on bulk data.
pub const FRAME_BYTES: u32 = 64 * 1024;

/// Bytes of one stream that wait to be sent: times [`STREAMS`] this is what a client can make us hold that takes nothing.
pub const STREAM_SEND_BYTES: usize = 64 * 1024;

/// Header list of a request in HTTP/2, counted by RFC 9113 §6.5.2 (32 bytes more a field), as [`HEAD_BYTES`].
pub const HEAD_LIST: u32 = 32 * 1024;

/// The same of a response, as [`RESPONSE_HEAD_BYTES`].
pub const RESPONSE_HEAD_LIST: u32 = 128 * 1024;

/// Silence after which HTTP/2 asks whether the peer is there.
pub const PING_INTERVAL: Duration = Duration::from_secs(60);

/// How long it may take to say so.
pub const PING_TIME: Duration = Duration::from_secs(20);

/// Buffer of one direction of a connection that has changed its protocol: a TLS record (RFC 8446 §5.1).
pub const UPGRADE_BYTES: usize = 16 * 1024;

/// Text of one WebSocket message that rules must read, all its fragments together: what chat and GraphQL clients send
/// is kilobytes.
pub const MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// How long a message may take from its first fragment to its last.
pub const MESSAGE_TIME: Duration = Duration::from_secs(120);

/// What a client may take to say something while a policy is learned; after that the server is taken to speak first.
pub const LEARN_TIME: Duration = Duration::from_millis(500);

/// How long an HTTP/2 origin's settings are waited for by a request that depends on them, and how often they are looked
/// at: the HTTP library tells what they say, and not when they have come.
pub const SETTINGS_TIME: Duration = Duration::from_millis(500);
/// See [`SETTINGS_TIME`].
pub const SETTINGS_LOOK: Duration = Duration::from_millis(5);

/// First bytes of a client's that are sent to a proxy in another pod together with what is attested of it: most heads, whole.
pub const AHEAD_BYTES: usize = 16 * 1024;

/// Bytes of a client's that are kept until that proxy has said something, to be sent again should it not know the session.
/// It says so at once, and a client sends no more within a round trip.
pub const RETAINED_BYTES: usize = 64 * 1024;

/// How long a session with that proxy may take to open, and how long a connection waits for one.
pub const SESSION_TIME: Duration = Duration::from_secs(5);

/// Sessions by which one connection is tried: a proxy that was started again between two looks at it takes two.
pub const SESSIONS_TRIED: usize = 3;

/// Pause after a session that could not be opened; doubles up to [`SESSION_PAUSE_MOST`].
pub const SESSION_PAUSE: Duration = Duration::from_millis(50);
/// See [`SESSION_PAUSE`]. What comes back is used within a second.
pub const SESSION_PAUSE_MOST: Duration = Duration::from_secs(1);

/// How long the address is tried by which the proxy was last reached, before its name is looked up again: pods of one
/// cluster answer within milliseconds, and a pod that is gone answers never.
pub const REMOTE_STALE_TIME: Duration = Duration::from_secs(1);

/// Between two look-ups of the proxy's name, however many connections find it gone.
pub const REMOTE_RESOLVE_PAUSE: Duration = Duration::from_millis(500);

/// Between two events about prefaces that are not believed; those in between are counted.
pub const ATTESTATION_REPORT: Duration = Duration::from_secs(1);
