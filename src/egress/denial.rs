//! What a client is told when it does not get what it asked for: a status, and a body that an agent can act on. Every
//! failure ends here; none ends in silence.

use std::sync::Arc;

use serde::Serialize;

use super::intent::Intent;
use crate::event::Via;

/// What kind of failure, with the fixed parts of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The policy does not allow it.
    PolicyDenied,
    /// The policy allows the name, the guard refuses its address.
    DestinationDenied,
    /// No process owns the connection, or its program cannot be told.
    UnknownOwner,
    /// Several programs own the connection.
    AmbiguousOwner,
    /// The request is malformed.
    InvalidRequest,
    /// An absolute-form target that is not http.
    UnsupportedScheme,
    /// The head is too large.
    HeadTooLarge,
    /// The head took too long.
    RequestTimeout,
    /// The name has no address.
    Unresolvable,
    /// No address accepted.
    UpstreamUnreachable,
    /// The origin broke off, or answered with something else than HTTP.
    UpstreamFailed,
    /// The resolver, the network or the origin took too long.
    UpstreamTimeout,
    /// The upstream proxy does not take our credentials, or wants some.
    UpstreamProxyAuth,
    /// The upstream proxy refuses.
    UpstreamProxyRefused,
    /// The upstream proxy cannot be reached or understood.
    UpstreamProxyFailed,
    /// The sandbox's own proxy, in another pod, cannot be reached.
    ProxyUnavailable,
    /// The proxy is full.
    TooManyConnections,
    /// The request names another host than the tunnel it came through, in its target, Host, `:authority` or SNI.
    AuthorityMismatch,
    /// An endpoint with request rules, and a client that speaks neither TLS nor HTTP to it.
    UnsupportedProtocol,
    /// A body that must be read before it is judged, and is too large for that.
    BodyTooLarge,
    /// The origin's certificate, or its TLS, cannot be trusted.
    UpstreamTls,
}

impl Kind {
    /// The `error` of the body, the status, and the reason phrase: the only part that most clients show of an answer
    /// to CONNECT.
    pub(super) fn parts(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::PolicyDenied => ("policy_denied", 403, "Forbidden by sandbox policy"),
            Self::DestinationDenied => ("destination_denied", 403, "Forbidden destination address"),
            Self::UnknownOwner => ("unknown_owner", 403, "Forbidden to unidentified programs"),
            Self::AmbiguousOwner => ("ambiguous_owner", 403, "Forbidden to connections that several programs own"),
            Self::InvalidRequest => ("invalid_request", 400, "Bad Request"),
            Self::UnsupportedScheme => ("unsupported_proxy_scheme", 400, "Bad Request"),
            Self::HeadTooLarge => ("head_too_large", 431, "Request Header Fields Too Large"),
            Self::RequestTimeout => ("request_timeout", 408, "Request Timeout"),
            Self::Unresolvable => ("unresolvable", 502, "Host could not be resolved"),
            Self::UpstreamUnreachable => ("upstream_unreachable", 502, "Host could not be reached"),
            Self::UpstreamFailed => ("upstream_failed", 502, "Bad Gateway"),
            Self::UpstreamTimeout => ("upstream_timeout", 504, "Gateway Timeout"),
            Self::AuthorityMismatch => ("request_authority_mismatch", 403, "Forbidden host inside this tunnel"),
            Self::UnsupportedProtocol => ("unsupported_protocol", 403, "Forbidden protocol on an inspected endpoint"),
            Self::BodyTooLarge => ("body_too_large", 413, "Content Too Large"),
            Self::UpstreamTls => ("upstream_tls_failed", 502, "TLS of the host could not be verified"),
            Self::UpstreamProxyAuth => ("upstream_proxy_auth", 502, "Upstream proxy wants other credentials"),
            Self::UpstreamProxyRefused => ("upstream_proxy_refused", 502, "Upstream proxy refused"),
            Self::UpstreamProxyFailed => ("upstream_proxy_failed", 502, "Upstream proxy could not be used"),
            Self::ProxyUnavailable => ("proxy_unavailable", 502, "Sandbox proxy could not be reached"),
            Self::TooManyConnections => ("too_many_connections", 503, "Too many connections through the sandbox proxy"),
        }
    }

    /// Whether it is the request that is refused, by what it says: not its connection, and not for what became of it.
    pub(super) fn is_about_request(self) -> bool {
        matches!(
            self,
            Self::PolicyDenied
                | Self::InvalidRequest
                | Self::HeadTooLarge
                | Self::RequestTimeout
                | Self::AuthorityMismatch
                | Self::UnsupportedProtocol
                | Self::BodyTooLarge
        )
    }

    /// Status code.
    pub(super) fn status(self) -> u16 {
        self.parts().1
    }
}

/// A failure and all that is known about it.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub kind: Kind,
    /// What happened, as a sentence.
    pub detail: String,
    /// Why, in the words of what decided.
    pub reason: Option<String>,
    /// What was asked for, once it could be read.
    pub intent: Option<Intent>,
    /// The program that asked.
    pub binary: Option<String>,
    /// The policy entry that decided or came closest.
    pub policy: Option<String>,
    /// The part of that entry.
    pub rule: Option<String>,
    /// The upstream proxy on the way, where there is one.
    pub via: Option<Arc<Via>>,
    /// What the reader can do.
    pub next_steps: Vec<String>,
    /// The request that was refused, where it was that and not its connection.
    pub request: Option<Box<Judged>>,
}

/// A request as the rules of its endpoint saw it, or would have seen it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    /// Always `l7`: the connection was allowed, the request was not.
    pub layer: &'static str,
    /// The endpoint's protocol, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    /// Method, as sent.
    pub method: String,
    /// Path, with what looks like a credential left out.
    pub path: String,
    /// Whom the answer is for where it has to be JSON-RPC: the call's id.
    #[serde(skip)]
    pub call: Option<serde_json::Value>,
    /// The rule that would allow it, and where it belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_missing: Option<serde_json::Value>,
}

/// The body on the wire: its keys are an interface.
#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    detail: &'a str,
    reason: &'a str,
    host: Option<String>,
    port: Option<u16>,
    binary: Option<&'a str>,
    policy: Option<&'a str>,
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    next_steps: &'a [String],
    #[serde(flatten)]
    request: Option<&'a Judged>,
}

/// The body where a client of JSON-RPC waits for it: an error response (JSON-RPC 2.0 §5.1), since anything else is "an
/// error" to it, and what the body says is lost.
#[derive(Serialize)]
struct RpcBody<'a> {
    jsonrpc: &'static str,
    id: &'a serde_json::Value,
    error: RpcError<'a>,
}

#[derive(Serialize)]
struct RpcError<'a> {
    /// That of HTTP: beyond those that JSON-RPC keeps for itself, and known.
    code: u16,
    message: String,
    data: Body<'a>,
}

/// Media type of the body.
pub(super) const CONTENT_TYPE: &str = "application/json";

/// Field that names the deciding policy entry, for clients that show fields and no bodies.
pub(super) const POLICY_FIELD: &str = "X-OpenShell-Policy";

impl Refusal {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            reason: None,
            intent: None,
            binary: None,
            policy: None,
            rule: None,
            via: None,
            next_steps: Vec::new(),
            request: None,
        }
    }

    pub(super) fn about(mut self, intent: &Intent) -> Self {
        self.intent = Some(intent.clone());
        self
    }

    pub(super) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Why, and what helps first: for readers who never see the body, since clients hide what a CONNECT was answered.
    pub(super) fn explained(&self) -> String {
        let reason = self.reason.as_ref().unwrap_or(&self.detail);
        match self.next_steps.first() {
            Some(step) => format!("{reason}; {step}"),
            None => reason.clone(),
        }
    }

    pub(super) fn advising(mut self, step: impl Into<String>) -> Self {
        self.next_steps.push(step.into());
        self
    }

    /// The JSON body, or that of an error in JSON-RPC with all of it as `data`.
    pub(super) fn body(&self) -> Vec<u8> {
        let (error, ..) = self.kind.parts();
        let body = Body {
            error,
            detail: &self.detail,
            reason: self.reason.as_deref().unwrap_or(&self.detail),
            host: self.intent.as_ref().map(|intent| intent.host.to_string()),
            port: self.intent.as_ref().map(|intent| intent.port),
            binary: self.binary.as_deref(),
            policy: self.policy.as_deref(),
            rule: self.rule.as_deref(),
            via: self.via.as_ref().map(ToString::to_string),
            next_steps: &self.next_steps,
            request: self.request.as_deref(),
        };
        // Strings and numbers always serialise; an empty body would still be an answer.
        let mut bytes = match self.request.as_ref().and_then(|request| request.call.as_ref()) {
            None => serde_json::to_vec(&body),
            Some(id) => {
                let error = RpcError { code: self.kind.status(), message: self.explained(), data: body };
                serde_json::to_vec(&RpcBody { jsonrpc: "2.0", id, error })
            }
        }
        .unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// The value of [`POLICY_FIELD`]: a policy's key is free text, a field's value is not.
    pub(super) fn policy_field(&self) -> String {
        let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        self.policy.as_deref().unwrap_or("none").chars().take(128).map(shown).collect()
    }

    /// The whole answer, for a connection that no HTTP library speaks on.
    pub(super) fn wire(&self, keep_alive: bool) -> Vec<u8> {
        let (_, status, phrase) = self.kind.parts();
        let body = self.body();
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let mut answer = format!(
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n{POLICY_FIELD}: {}\r\n\
             Connection: {connection}\r\n\r\n",
            body.len(),
            self.policy_field(),
        )
        .into_bytes();
        answer.extend_from_slice(&body);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::host::Host;

    #[test]
    fn an_answer_is_complete_and_readable() {
        let intent = Intent { host: Host::Name("api.example.com".into()), port: 443 };
        let mut refusal = Refusal::new(Kind::PolicyDenied, "CONNECT api.example.com:443 is not allowed")
            .about(&intent)
            .because("no endpoint names it")
            .advising("ask for it");
        refusal.policy = Some("git\r\nX-Evil: é".to_owned());
        let answer = String::from_utf8(refusal.wire(true)).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden by sandbox policy\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("\r\nX-OpenShell-Policy: git??X-Evil: ?\r\n"), "{head}");
        assert!(head.ends_with("\r\nConnection: keep-alive"), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        for (key, value) in [
            ("error", "policy_denied"),
            ("detail", "CONNECT api.example.com:443 is not allowed"),
            ("reason", "no endpoint names it"),
            ("host", "api.example.com"),
        ] {
            assert_eq!(body[key], value);
        }
        assert_eq!(body["port"], 443);
        assert_eq!(body["next_steps"][0], "ask for it");
        assert!(body["binary"].is_null());
        // The same as an error of JSON-RPC.
        refusal.request = Some(Box::new(Judged {
            layer: "l7",
            protocol: Some("mcp"),
            method: "POST".to_owned(),
            path: "/mcp".to_owned(),
            call: Some("x".into()),
            rule_missing: None,
        }));
        let error: serde_json::Value = serde_json::from_slice(&refusal.body()).unwrap();
        assert_eq!(
            (&error["jsonrpc"], &error["id"], &error["error"]["code"]),
            (&"2.0".into(), &"x".into(), &403.into())
        );
        assert_eq!(error["error"]["message"], "no endpoint names it; ask for it");
        assert_eq!(error["error"]["data"]["error"], "policy_denied");
        assert_eq!(error["error"]["data"]["protocol"], "mcp");
        refusal.request = None;
        assert!(String::from_utf8(refusal.wire(false)).unwrap().contains("\r\nConnection: close\r\n"));
    }
}
