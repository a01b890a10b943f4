//! Where a request goes, and whether it may: the name it gives is the tunnel's, and the rules of its endpoint let it
//! through, by its head or, where they look into bodies, by the whole of it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Version};

use super::exchange::Asked;
use super::fields::{self, Wish};
use super::{Body, Inside, Scope, Session};
use crate::egress::authorize::{Owner, Permit};
use crate::egress::denial::{Judged, Kind, Refusal};
use crate::egress::head::HeadError;
use crate::egress::intent::Intent;
use crate::egress::learn::Manner;
use crate::egress::{forward, limits};
use crate::event::redact::{PLACEHOLDER, credentials_in, redacted};
use crate::policy::request::{self, Judgement, Pass, RefusalKind};

/// Where a request wants to go.
///
/// # Errors
/// It names no destination, or another than the tunnel that it came through.
pub(super) fn destination(scope: &Scope, request: &Request<Body>) -> Result<Intent, Refusal> {
    if request.version() == Version::HTTP_2 && request.headers().len() > limits::HEAD_FIELDS {
        // HTTP/1 counts them at the gate. One cookie may come in any number of pieces (RFC 9113 §8.2.3).
        let crumbs = request.headers().get_all(header::COOKIE).iter().count();
        if request.headers().len() - crumbs.saturating_sub(1) > limits::HEAD_FIELDS {
            let error = HeadError::TooManyFields;
            return Err(Refusal::new(error.kind(), error.to_string()));
        }
    }
    match scope {
        Scope::Refused(refusal) => Err(refusal.clone()),
        Scope::Forward => forward::read(request),
        Scope::Tunnel(inside) => {
            names(request, inside)?;
            Ok(inside.intent.clone())
        }
    }
}

/// Checks that whatever names a host in the request names the tunnel's: the target, `:authority` and the Host field
/// (RFC 9110 §7.4 has a request that came to the wrong place refused).
fn names(request: &Request<Body>, inside: &Inside) -> Result<(), Refusal> {
    let Inside { intent, secure, own, .. } = inside;
    let secure = *secure;
    let default_port = if secure { 443 } else { 80 };
    let mismatch = |field: &str, named: &str| {
        Refusal::new(Kind::AuthorityMismatch, format!("the tunnel goes to {intent}, but {field} names {named}"))
            .about(intent)
            .advising(format!("open a tunnel to {named} for it, if the policy allows that"))
    };
    let malformed = |detail: String| Refusal::new(Kind::InvalidRequest, detail).about(intent);
    let uri = request.uri();
    let tunnel_in_tunnel =
        *request.method() == Method::CONNECT && request.extensions().get::<hyper::ext::Protocol>().is_none();
    if tunnel_in_tunnel {
        return Err(malformed("a CONNECT came through a tunnel; ask the sandbox's proxy itself".to_owned()));
    }
    let wanted_scheme = if secure { "https" } else { "http" };
    if let Some(scheme) = uri.scheme_str()
        && !scheme.eq_ignore_ascii_case(wanted_scheme)
    {
        let detail =
            format!("the target's scheme is {scheme}, but what is asked of {intent} here goes by {wanted_scheme}");
        return Err(Refusal::new(Kind::AuthorityMismatch, detail).about(intent).advising(if secure {
            "ask for it by https, or send what is http to the sandbox's proxy outside this tunnel"
        } else {
            "speak TLS inside the tunnel and ask for it by https there"
        }));
    }
    let mut named = false;
    let host = request.headers().get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
    for (field, text) in
        [("the target", uri.authority().map(|authority| authority.as_str())), ("the Host field", host.as_deref())]
    {
        let Some(text) = text else { continue };
        named = true;
        // Mostly it is written as we write it ourselves.
        if own.is(text) {
            continue;
        }
        let read = Intent::parse(text, Some(default_port)).map_err(|error| malformed(format!("{field}: {error}")))?;
        if read != *intent {
            return Err(mismatch(field, &read.to_string()));
        }
    }
    if request.headers().get_all(header::HOST).iter().nth(1).is_some() {
        return Err(malformed("there is more than one Host field".to_owned()));
    }
    if !named && request.version() >= Version::HTTP_2 {
        return Err(malformed("the request names no :authority".to_owned()));
    }
    Ok(())
}

/// Has the rules of the endpoint judge a request, and answers it with the body that goes on.
///
/// # Errors
/// The refusal to answer with.
pub(super) async fn request(
    session: &Session,
    intent: &Intent,
    owner: &Owner,
    permit: &Permit,
    request: Request<Body>,
    wish: &Wish,
) -> Result<(Arc<Asked>, Pass, Request<Body>), Refusal> {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let asked = Arc::new(Asked::new(&parts.method, target, &parts.headers, wish, !body.is_end_stream()));
    if let Some(learner) = &session.proxy.learner {
        let manner = if wish.is_websocket() { Manner::WebSocket } else { Manner::Plain };
        learner.request(owner, intent, manner, asked.method.as_str(), &asked.target);
        let pass = Pass { policy: "learn".into(), rule: None, audited: None, messages: None };
        return Ok((asked, pass, Request::from_parts(parts, body)));
    }
    for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        if permit.decision.is_inspected() && parts.headers.get_all(&name).iter().nth(1).is_some() {
            let detail = format!("there is more than one {name} field, and servers differ in which they read");
            return Err(Refusal::new(Kind::InvalidRequest, detail).about(intent));
        }
    }
    if permit.decision.is_inspected()
        && let Some(name) = fields::overriding(&parts.headers)
    {
        let detail = format!("the field {name} asks the server for something else than the rules would judge");
        return Err(Refusal::new(Kind::InvalidRequest, detail)
            .about(intent)
            .advising("make the request itself with the method and path that are meant"));
    }
    let refused = |refusal| explain(refusal, &asked, intent, owner);
    let (pass, body) = match permit.decision.judge(&asked.head()) {
        Judgement::Pass(pass) => (pass, body),
        Judgement::Refuse(refusal) => return Err(refused(refusal)),
        Judgement::Body { limit, then } => {
            let (bytes, trailers) = match gather(session, body, limit).await {
                Ok(whole) => whole,
                Err(Ungathered::TooLarge) => return Err(refused(then.too_large())),
                Err(Ungathered::Broken(refusal)) => return Err(refusal.about(intent)),
            };
            match then.judge(&bytes) {
                Judgement::Pass(pass) => (pass, Body::whole(bytes, trailers)),
                Judgement::Refuse(refusal) => return Err(refused(refusal)),
                // A body that was read is judged; nothing asks for it twice.
                Judgement::Body { .. } => {
                    return Err(
                        Refusal::new(Kind::InvalidRequest, "the request body could not be judged").about(intent)
                    );
                }
            }
        }
    };
    Ok((asked, pass, Request::from_parts(parts, body)))
}

/// Why there is no body to judge.
enum Ungathered {
    TooLarge,
    /// It never ended.
    Broken(Refusal),
}

/// Reads a whole body that has to be judged.
async fn gather(session: &Session, mut body: Body, limit: usize) -> Result<(Bytes, Option<HeaderMap>), Ungathered> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Ungathered::TooLarge);
    }
    let broken = |kind, detail: String| Ungathered::Broken(Refusal::new(kind, detail));
    // It waits in memory, so the patience is for the whole of it.
    let deadline = tokio::time::Instant::now() + session.proxy.patience.body;
    let mut bytes = BytesMut::new();
    let mut trailers = None;
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Ok(None) => return Ok((bytes.freeze(), trailers)),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                let fault = session.fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
                let detail = fault.unwrap_or_else(|| format!("the request body broke off: {error}"));
                return Err(broken(Kind::InvalidRequest, detail));
            }
            Err(_) => {
                return Err(broken(
                    Kind::RequestTimeout,
                    "the request body, which has to be judged whole, took too long".to_owned(),
                ));
            }
        };
        match frame.into_data() {
            Ok(data) if bytes.len() + data.len() > limit => return Err(Ungathered::TooLarge),
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
}

/// Fills in what a refusal leaves open, so that whoever reads it knows whom, what and which entry it is about, whoever
/// refused: `request` is the method and target, where they could be read. Asked only when something has been refused.
pub(super) fn complete(session: &Session, refusal: &mut Refusal, request: Option<(&Method, &str)>) {
    // Whoever was not looked for is told nothing of policies.
    let Some(owner) = session.client.found_owner() else { return };
    if refusal.intent.is_none() {
        refusal.intent = match &session.scope {
            Scope::Tunnel(inside) => Some(inside.intent.clone()),
            Scope::Refused(known) => known.intent.clone(),
            Scope::Forward => None,
        };
    }
    if refusal.binary.is_none() {
        refusal.binary = owner.binary();
    }
    let Some(intent) = &refusal.intent else { return };
    let Ok(permit) = session.proxy.decide(&owner, intent) else { return };
    if refusal.policy.is_none() {
        refusal.policy.clone_from(&permit.decision.policy);
    }
    if let (None, true, Some((method, target))) = (&refusal.request, refusal.kind.is_about_request(), request) {
        refusal.request = Some(Box::new(Judged {
            layer: "l7",
            protocol: permit.decision.protocol(),
            method: method.to_string(),
            path: redacted(target),
            call: None,
            rule_missing: None,
        }));
    }
}

/// The rules' refusal as the answer to a client.
pub(super) fn explain(refusal: request::Refusal, asked: &Asked, intent: &Intent, owner: &Owner) -> Refusal {
    let kind = match refusal.kind {
        RefusalKind::Denied => Kind::PolicyDenied,
        RefusalKind::Malformed => Kind::InvalidRequest,
        RefusalKind::TooLarge => Kind::BodyTooLarge,
    };
    // What looks like a credential in the path is no more to be read in the sentence about it.
    let path = asked.target.split('?').next().unwrap_or_default();
    let canonical = request::canonical_path(path);
    let secrets = credentials_in([path].into_iter().chain(canonical.as_deref()));
    let shown = |text: String| secrets.iter().fold(text, |text, secret| text.replace(secret, PLACEHOLDER));
    let mut answer = Refusal::new(kind, shown(refusal.detail)).about(intent).because(shown(refusal.reason));
    answer.binary = owner.binary();
    answer.policy = Some(refusal.policy.to_string());
    answer.rule = Some(shown(refusal.rule));
    answer.next_steps = refusal.next_steps.into_iter().map(shown).collect();
    // MCP and JSON-RPC send calls by POST; whoever sends anything else waits for no answer in their language.
    let call = (matches!(refusal.protocol, "mcp" | "json-rpc") && asked.method == Method::POST).then_some(refusal.id);
    answer.request = Some(Box::new(Judged {
        layer: "l7",
        protocol: Some(refusal.protocol),
        method: asked.method.to_string(),
        path: redacted(&asked.target),
        call,
        // A rule would hold it whole.
        rule_missing: refusal.rule_missing.filter(|_| secrets.is_empty()),
    }));
    answer
}
