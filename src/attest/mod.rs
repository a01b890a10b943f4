//! What one supervisor says to another about whose a connection is, where the proxy is in another pod (design §10).
//!
//! [`crate::attribution`] finds out which program owns a connection, and can do so only where the workload's processes are.
//! [`crate::egress`] judges it, and is elsewhere. This room carries the finding from the one to the other: it neither
//! looks for owners nor decides, and both sides of it are here so that they cannot differ.
//!
//! - A *session* is opened by three messages over a connection of its own: [`open`] by `process`, [`Verifier::admit`] by the
//!   proxy. Each side shows that it holds the sandbox's [`Key`], over random numbers of both (RFC 2104; keys by RFC 5869),
//!   and a session key comes out of it. The session lives for as long as that connection: a proxy that was started again
//!   has none, which is seen at once.
//! - Each data connection then begins with a *preface*: the session, a counter, a [`Statement`] and a code over all of it.
//!   No answer is waited for. The counter may come out of order, since connections overtake each other, but only once
//!   ([`window`]).
//! - A preface of an unknown session is answered by [`UNKNOWN_SESSION`], which is no HTTP, so that `process` can open
//!   another one and say it again. Anything else that is wrong with one is nobody's honest mistake: the connection ends.
//!
//! What it rests on: the workload cannot read the key, though it is the same user (Landlock; the supervisor cannot be
//! traced or dumped), and cannot write into a connection of the supervisor's. The network between the pods is not
//! protected: who can rewrite packets there can put another request behind a genuine preface, as he could answer in the
//! proxy's place.

mod key;
mod session;
mod statement;
mod verifier;
mod window;
mod wire;

pub use key::{Key, KeyError};
pub use session::{OpenError, Session, open};
pub use statement::{Attested, Statement};
pub use verifier::{Admission, Refusal, Verifier};
pub use wire::{BEGIN, Begun, UNKNOWN_SESSION, begun};

#[cfg(test)]
mod tests;
