//! Refusals as responses, in the language of whoever asked: JSON for HTTP, a status for gRPC.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode, header};

use super::body::Body;
use crate::egress::denial::{self, Refusal};

/// The answer to a request that is refused.
pub(super) fn respond(refusal: &Refusal, grpc: bool) -> Response<Body> {
    let mut response = if grpc { in_grpc(refusal) } else { in_json(refusal) };
    if let Ok(policy) = HeaderValue::from_str(&refusal.policy_field()) {
        response.headers_mut().insert(HeaderName::from_static("x-openshell-policy"), policy);
    }
    response
}

fn in_json(refusal: &Refusal) -> Response<Body> {
    let mut response = Response::new(Body::bytes(refusal.body().into()));
    // The statuses of `Kind` are all valid.
    *response.status_mut() = StatusCode::from_u16(refusal.kind.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(denial::CONTENT_TYPE));
    response
}

/// A gRPC client prints the status and message of a response that ends with its head ("Trailers-Only" in the gRPC over
/// HTTP/2 protocol), and nothing of a body.
fn in_grpc(refusal: &Refusal) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers
        .insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static(grpc_status(refusal.kind.status())));
    let message = percent_encoded(&format!("{}: {}", refusal.kind.parts().0, refusal.explained()));
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    response
}

/// The status code of gRPC that says the same as one of HTTP.
fn grpc_status(status: u16) -> &'static str {
    match status {
        403 => "7",        // PERMISSION_DENIED
        413 | 431 => "8",  // RESOURCE_EXHAUSTED
        408 | 504 => "4",  // DEADLINE_EXCEEDED
        502 | 503 => "14", // UNAVAILABLE
        _ => "13",         // INTERNAL
    }
}

/// Everything but visible ASCII and spaces as %HH, the percent sign too.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        match byte {
            b'%' => encoded.push_str("%25"),
            b' '..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::denial::Kind;

    #[test]
    fn grpc_gets_a_status_and_http_a_body() {
        let refusal = Refusal::new(Kind::PolicyDenied, "x").because("100 % no\nmöglich");
        let response = respond(&refusal, true);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "7");
        assert_eq!(response.headers()["grpc-message"], "policy_denied: 100 %25 no%0Am%C3%B6glich");
        let response = respond(&refusal, false);
        assert_eq!(response.status(), 403);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["x-openshell-policy"], "none");
    }
}
