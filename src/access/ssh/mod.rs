//! The SSH protocol, version 2 (RFC 4251 to 4254), as far as a door that the kernel guards needs it, for both ends.
//!
//! Why not a library: the one there is (russh) grants a channel's window when data comes in rather than when somebody has
//! taken it, so that one channel nobody reads from stops all others of its connection; and it comes with a second set of
//! cryptography, 1.8 MB of it, where ring is here already. What is left out on purpose: compression, passwords, host-based
//! and certificate authentication, ciphers without authentication, X11, agents, and everything that listens outside.
//!
//! [`transport`] turns a byte stream into packets: key exchange (Curve25519 with SHA-256 and an Ed25519 host key), ciphers
//! with authentication ([`cipher`]), new keys in time. [`connection`] turns packets into channels with flow control of
//! their own.

pub mod channel;
pub mod cipher;
pub mod connection;
pub mod kex;
pub mod transport;
pub mod wire;

use wire::Malformed;

/// Message numbers (RFC 4250 §4.1).
pub(crate) mod number {
    pub const DISCONNECT: u8 = 1;
    pub const IGNORE: u8 = 2;
    pub const UNIMPLEMENTED: u8 = 3;
    pub const DEBUG: u8 = 4;
    pub const SERVICE_REQUEST: u8 = 5;
    pub const SERVICE_ACCEPT: u8 = 6;
    pub const EXT_INFO: u8 = 7;
    pub const KEXINIT: u8 = 20;
    pub const NEWKEYS: u8 = 21;
    pub const KEX_ECDH_INIT: u8 = 30;
    pub const KEX_ECDH_REPLY: u8 = 31;
    pub const USERAUTH_REQUEST: u8 = 50;
    pub const USERAUTH_FAILURE: u8 = 51;
    pub const USERAUTH_SUCCESS: u8 = 52;
    pub const USERAUTH_BANNER: u8 = 53;
    pub const GLOBAL_REQUEST: u8 = 80;
    pub const REQUEST_SUCCESS: u8 = 81;
    pub const REQUEST_FAILURE: u8 = 82;
    pub const CHANNEL_OPEN: u8 = 90;
    pub const CHANNEL_OPEN_CONFIRMATION: u8 = 91;
    pub const CHANNEL_OPEN_FAILURE: u8 = 92;
    pub const CHANNEL_WINDOW_ADJUST: u8 = 93;
    pub const CHANNEL_DATA: u8 = 94;
    pub const CHANNEL_EXTENDED_DATA: u8 = 95;
    pub const CHANNEL_EOF: u8 = 96;
    pub const CHANNEL_CLOSE: u8 = 97;
    pub const CHANNEL_REQUEST: u8 = 98;
    pub const CHANNEL_SUCCESS: u8 = 99;
    pub const CHANNEL_FAILURE: u8 = 100;
}

/// Why a connection ends otherwise than by both sides' wish.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// The stream under it failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer is gone.
    #[error("the peer has gone")]
    Gone,
    /// The peer said this in place of its identification, and closed.
    #[error("{0}")]
    Refused(String),
    /// The peer ends it.
    #[error("the peer disconnects: {0}")]
    Disconnected(String),
    /// What the peer sends is no SSH.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The peer does what the protocol does not allow at this point.
    #[error("{0}")]
    Protocol(&'static str),
    /// The two have no algorithm in common.
    #[error("no {what} in common: the peer offers {offered}, this side {ours}")]
    NoneInCommon {
        /// For what.
        what: &'static str,
        /// What it offers.
        offered: String,
        /// What there is here.
        ours: String,
    },
    /// Something was not done in time.
    #[error("the peer did not {0} in time")]
    TooSlow(&'static str),
    /// A packet that nobody who holds the keys has sent.
    #[error("a packet does not authenticate")]
    Forged,
}
