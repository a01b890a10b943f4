//! Absolute-form HTTP: which destination a forward request names. What becomes of it is [`super::http`]'s.

use hyper::{Request, header};

use super::denial::{Kind, Refusal};
use super::http::Body;
use super::intent::Intent;
use crate::event::redact::redacted;

/// Reads where a request wants to go.
pub(super) fn read(request: &Request<Body>) -> Result<Intent, Refusal> {
    let uri = request.uri();
    let invalid = |detail: String| {
        Refusal::new(Kind::InvalidRequest, detail)
            .advising("send an absolute http:// target with the same host in the Host field, or CONNECT HOST:PORT")
    };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(invalid(format!(
            "{} {} names no host in its target; this is the sandbox's HTTP proxy, not a web server",
            request.method(),
            redacted(&uri.to_string())
        )));
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Refusal::new(
            Kind::UnsupportedScheme,
            format!("the target's scheme is {scheme}, and only http can be forwarded"),
        )
        .advising(format!(
            "open a tunnel instead: CONNECT {authority}, with the port, then speak {scheme} through it"
        )));
    }
    let intent = Intent::parse(authority.as_str(), Some(80)).map_err(|error| invalid(error.to_string()))?;
    if let Some(host) = request.headers().get(header::HOST) {
        // Identical bytes need no second reading.
        if host.as_bytes() != authority.as_str().as_bytes() {
            let host = String::from_utf8_lossy(host.as_bytes());
            let named = Intent::parse(&host, Some(80)).map_err(|error| invalid(error.to_string()))?;
            if named != intent {
                return Err(invalid(format!("the target is {intent} but the Host field says {named}")).about(&intent));
            }
        }
    }
    Ok(intent)
}
