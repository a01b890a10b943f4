//! Exchanges that are open: a request that was allowed, and whose response has not ended. Each policy generation must
//! allow it again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::{HeaderMap, Method, header};

use super::Session;
use super::fields::Wish;
use super::leg::Kept;
use crate::egress::Proxy;
use crate::egress::tunnel::{Permission, UNREADABLE};
use crate::event::HttpRequestFacts;
use crate::event::redact::redacted;
use crate::policy::request::{Head, Judgement, MessageRules, Pass};

/// What a request asked for, as far as rules look at heads.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub method: Method,
    /// Path and query, as sent.
    pub target: String,
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub accept: Option<String>,
    /// It asks for a WebSocket.
    pub websocket: bool,
    /// It asks for another protocol, that or any.
    pub upgrade: bool,
    /// A body follows.
    pub body: bool,
}

impl Asked {
    pub(super) fn new(method: &Method, target: &str, headers: &HeaderMap, wish: &Wish, body: bool) -> Self {
        let field = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        Self {
            method: method.clone(),
            target: target.to_owned(),
            content_type: field(header::CONTENT_TYPE),
            content_encoding: field(header::CONTENT_ENCODING),
            accept: field(header::ACCEPT),
            websocket: wish.is_websocket(),
            upgrade: *wish != Wish::Answer,
            body,
        }
    }

    /// The part of it that rules judge.
    pub(super) fn head(&self) -> Head<'_> {
        Head {
            method: self.method.as_str(),
            target: &self.target,
            content_type: self.content_type.as_deref(),
            content_encoding: self.content_encoding.as_deref(),
            accept: self.accept.as_deref(),
            websocket: self.websocket,
            body_expected: self.body,
        }
    }
}

/// Whether the client speaks gRPC, and must be answered in it.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// One of them.
#[derive(Debug)]
pub(in crate::egress) struct Exchange {
    permission: Mutex<Permission>,
    asked: Arc<Asked>,
    /// What messages may be sent where it has become a WebSocket.
    messages: Mutex<Option<Arc<MessageRules>>>,
    revoked: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Exchange {
    pub(super) fn new(permission: Permission, asked: Arc<Asked>, messages: Option<Arc<MessageRules>>) -> Arc<Self> {
        Arc::new(Self {
            permission: Mutex::new(permission),
            asked,
            messages: Mutex::new(messages),
            revoked: AtomicBool::new(false),
            waker: Mutex::default(),
        })
    }

    /// Ready once the policy has taken its permission back.
    pub(super) fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.revoked.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        // Once more: it may have happened before there was anybody to wake.
        if self.revoked.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// What messages may be sent by a new decision.
    fn judge_messages_by(&self, rules: Option<Arc<MessageRules>>) -> Result<(), String> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*messages, rules) {
            (Some(_), Some(rules)) => *messages = Some(rules),
            (None, Some(_)) => return Err(UNREADABLE.to_owned()),
            // Where messages are no longer judged, the rules that the socket was opened by still hold for it.
            (_, None) => {}
        }
        Ok(())
    }

    /// What messages may be sent now.
    pub(super) fn messages(&self) -> Option<Arc<MessageRules>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks another generation, and ends the exchange if it says no. Rules about bodies are not asked again: the body
    /// is gone.
    pub(super) fn renew(&self, proxy: &Proxy, generation: u64) -> bool {
        if self.revoked.load(Ordering::Acquire) {
            return false;
        }
        let mut permission = self.permission.lock().unwrap_or_else(PoisonError::into_inner);
        if permission.permit.generation == generation {
            return true;
        }
        let read = permission.permit.decision.is_inspected();
        let outcome = permission.renew(proxy, generation).and_then(|()| {
            let inspected = permission.permit.decision.is_inspected();
            match permission.permit.decision.judge(&self.asked.head()) {
                _ if self.asked.upgrade && inspected && !read => Err(UNREADABLE.to_owned()),
                Judgement::Refuse(refusal) => Err(refusal.reason),
                Judgement::Pass(Pass { messages, .. }) => self.judge_messages_by(messages),
                Judgement::Body { .. } => Ok(()),
            }
        });
        let Err(reason) = outcome else { return true };
        permission.record_revoked(proxy, reason);
        drop(permission);
        self.revoked.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
        false
    }
}

/// The open exchanges of one client connection.
#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<Vec<Arc<Exchange>>>);

impl Exchanges {
    /// Whether any is open.
    pub(super) fn any(&self) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Has each of them renewed; `false` when one was ended.
    pub(super) fn renew(&self, proxy: &Proxy, generation: u64) -> bool {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = true;
        for exchange in open {
            all &= exchange.renew(proxy, generation);
        }
        all
    }
}

/// An exchange for as long as it is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub session: Arc<Session>,
    pub exchange: Arc<Exchange>,
}

impl Opened {
    pub(super) fn new(session: Arc<Session>, exchange: Arc<Exchange>) -> Self {
        session.exchanges.0.lock().unwrap_or_else(PoisonError::into_inner).push(exchange.clone());
        Self { session, exchange }
    }

    /// The request that began it, for events about what follows.
    pub(super) fn request(&self) -> HttpRequestFacts {
        let Asked { method, target, .. } = &*self.exchange.asked;
        let secure = self.session.is_secure();
        HttpRequestFacts { method: method.to_string(), path: redacted(target), secure, status: None }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut open = self.session.exchanges.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|exchange| Arc::ptr_eq(exchange, &self.exchange)) {
            open.swap_remove(at);
        }
    }
}

/// An upstream connection while a response on it is open.
#[derive(Debug)]
pub(super) struct Lease {
    pub opened: Opened,
    pub kept: Kept,
}

impl Lease {
    /// Gives the connection back if its response has `ended` and it can carry another.
    pub(super) fn end(self, ended: bool) {
        if ended {
            let permission = self.opened.exchange.permission.lock().unwrap_or_else(PoisonError::into_inner);
            self.opened.session.give_back(&permission.intent, self.kept);
        }
    }
}
