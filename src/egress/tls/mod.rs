//! TLS, terminated: what the client says first ([`hello`]), the certificates it is shown ([`authority`]), and the
//! origin's, which are verified ([`upstream`]).
//!
//! The two legs are independent connections. What the origin presents is judged here, before the client is answered:
//! the client trusts our CA for every name, so that nobody else could refuse an origin on its behalf.

pub mod authority;
pub mod hello;
pub mod roots;
pub mod upstream;
mod x509;

#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

/// What it takes to stand between a client and an origin.
#[derive(Debug)]
pub struct Termination {
    /// Who the client is shown.
    pub authority: Arc<authority::Authority>,
    /// How the origin is verified.
    pub upstream: Arc<upstream::Upstream>,
}

/// HTTP/2 over TLS, as ALPN names it (RFC 9113 §3.2).
pub const HTTP2: &[u8] = b"h2";

/// HTTP/1.1, as ALPN names it (RFC 7301 §6).
pub const HTTP1: &[u8] = b"http/1.1";

/// The one provider of cryptography, said explicitly: a process-wide default could be somebody else's.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}
