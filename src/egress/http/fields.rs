//! Header fields between the two legs: what belongs to one hop stays on it (RFC 9110 §7.6.1), and what one version of
//! HTTP says differently from the other is said in its way (RFC 9113 §8).

use hyper::body::Body;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri, Version};

use crate::egress::denial::{Kind, Refusal};
use crate::egress::intent::Intent;

/// What we call ourselves in Via: a pseudonym, since the real name would tell origins about the sandbox (RFC 9110
/// §7.6.3).
const VIA: HeaderValue = HeaderValue::from_static("1.1 openshell");

/// Fields that belong to one hop, besides those that Connection names (RFC 9110 §7.6.1). HTTP2-Settings goes with an
/// upgrade to h2c, which is not passed on.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// Fields that Connection may not take away: framing, routing and what a body is are not the client's to hide from the
/// next hop.
const NOT_NOMINABLE: [HeaderName; 6] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONNECTION,
    header::VIA,
];

/// What a request asks for beyond an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing.
    Answer,
    /// Another protocol on this connection: the value of Upgrade.
    Upgrade(HeaderValue),
    /// Another protocol on this stream (RFC 8441): the value of `:protocol`.
    Protocol(String),
}

impl Wish {
    /// Reads it off a request. An upgrade to h2c is not passed on: who knows that an origin speaks it begins with it
    /// (RFC 9113 §3.1 has given the upgrade up), and behind it requests would pass unread.
    pub(super) fn of<B: Body>(request: &Request<B>) -> Self {
        if let Some(protocol) = request.extensions().get::<hyper::ext::Protocol>() {
            return Self::Protocol(protocol.as_str().to_owned());
        }
        let Some(protocol) = upgrade(request.headers()) else { return Self::Answer };
        let is = |name: &[u8]| protocol.as_bytes().eq_ignore_ascii_case(name);
        // A WebSocket is asked for by a GET without a body (RFC 6455 §4.1). Whatever else says so is judged as what it
        // is, and its wish, which may be ignored (RFC 9110 §7.8), is.
        let opens = *request.method() == Method::GET && request.body().is_end_stream();
        if is(b"h2c") || is(b"websocket") && !opens { Self::Answer } else { Self::Upgrade(protocol) }
    }

    /// Whether it is a WebSocket (RFC 6455 §4.1, RFC 8441 §4).
    pub(super) fn is_websocket(&self) -> bool {
        match self {
            Self::Answer => false,
            Self::Upgrade(protocol) => protocol.as_bytes().eq_ignore_ascii_case(b"websocket"),
            Self::Protocol(protocol) => protocol == "websocket",
        }
    }
}

/// The protocol asked for, if Connection says so too.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE)?;
    options(headers, header::CONNECTION).any(|option| option.eq_ignore_ascii_case("upgrade")).then(|| protocol.clone())
}

/// Whether trailers are welcome.
pub(super) fn wants_trailers(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TE)
        && options(headers, header::TE).any(|coding| coding.eq_ignore_ascii_case("trailers"))
}

fn options(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(',').map(str::trim))
}

/// Takes out what belongs to one hop.
pub(super) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        // What most say, and are rid of below.
        let said = |option: &&str| !["keep-alive", "close"].iter().any(|known| option.eq_ignore_ascii_case(known));
        let nominated: Vec<HeaderName> = options(headers, header::CONNECTION)
            .filter(said)
            .filter_map(|option| HeaderName::from_bytes(option.as_bytes()).ok())
            .filter(|name| !NOT_NOMINABLE.contains(name))
            .collect();
        for name in nominated {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Leaves a response one way to say how long its body is, in words that both versions of HTTP take: what it says by
/// Transfer-Encoding stays on the origin's hop, and Content-Length would be believed in its stead.
///
/// # Errors
/// What cannot be passed on as it was meant.
pub(super) fn frame(status: StatusCode, headers: &mut HeaderMap) -> Result<(), &'static str> {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // The chunks are what counts (RFC 9112 §6.3, number 3).
        headers.remove(header::CONTENT_LENGTH);
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        let chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        // Another coding would be lost with the field that names it, and the body be taken for what it is not.
        return match (codings.next(), codings.next()) {
            (Some(coding), None) if chunked(coding) => Ok(()),
            _ => Err("has a Transfer-Encoding other than \"chunked\", which is not undone here"),
        };
    }
    if status == StatusCode::NO_CONTENT || status.is_informational() {
        // RFC 9110 §8.6 has none there, and some clients of HTTP/2 wait for what it promises.
        headers.remove(header::CONTENT_LENGTH);
        return Ok(());
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let single = |length: &HeaderValue| !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
    match (lengths.next(), lengths.next()) {
        (None, _) => return Ok(()),
        (Some(length), None) if single(length) => return Ok(()),
        _ => {}
    }
    // One number, said several times (RFC 9110 §8.6).
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter().flat_map(|length| {
        length.as_bytes().split(|&byte| byte == b',').map(|digits| std::str::from_utf8(digits.trim_ascii()))
    });
    let first = lengths.next().and_then(Result::ok).unwrap_or_default();
    let same = !first.is_empty()
        && first.bytes().all(|byte| byte.is_ascii_digit())
        && lengths.all(|length| length.is_ok_and(|length| length == first));
    let Some(length) = same.then(|| HeaderValue::from_str(first).ok()).flatten() else {
        return Err("has a Content-Length that is not one number");
    };
    headers.insert(header::CONTENT_LENGTH, length);
    Ok(())
}

/// Fields that no trailer may carry (RFC 9110 §6.5.1): what frames, routes, authenticates or says what a body is has
/// been read by then.
const NOT_TRAILERS: [HeaderName; 11] = [
    header::CONNECTION,
    header::PROXY_AUTHORIZATION,
    header::UPGRADE,
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::AUTHORIZATION,
    header::COOKIE,
    header::TRAILER,
];

/// Takes out of trailers what belongs into a head, and what some servers would merge into it.
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    let strange = |name: &&HeaderName| {
        NOT_TRAILERS.iter().any(|other| reads_as(name, other.as_str()))
            || OVERRIDES.iter().any(|other| reads_as(name, other))
    };
    let strange: Vec<HeaderName> = trailers.keys().filter(strange).cloned().collect();
    for name in strange {
        trailers.remove(name);
    }
}

/// Fields by which servers and frameworks have a request mean another method or path than it shows.
const OVERRIDES: [&str; 5] =
    ["x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url"];

/// Fields that say what a body is and where it ends.
const FRAMING: [HeaderName; 5] =
    [header::HOST, header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING, header::TRANSFER_ENCODING];

/// A field of a request by which its server could do something else than the request says; in names `_` is read as `-` by
/// whoever makes variables of them (RFC 3875 §4.1.18), and what is framed by such a name is framed twice.
pub(super) fn overriding(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| {
        OVERRIDES.iter().any(|other| reads_as(name, other))
            || name.as_str().contains('_') && FRAMING.iter().any(|other| reads_as(name, other.as_str()))
    })
}

fn reads_as(name: &HeaderName, other: &str) -> bool {
    let (name, other) = (name.as_str().bytes(), other.bytes());
    name.len() == other.len() && name.zip(other).all(|(byte, other)| byte == other || byte == b'_' && other == b'-')
}

/// Names this proxy as one that the message came through. Inside a tunnel nobody does: the ends speak to each other,
/// and some origins withhold compression from requests that name a proxy.
pub(super) fn sign(headers: &mut HeaderMap) {
    headers.append(header::VIA, VIA);
}

/// Where a request goes, as the next hop needs it.
pub(super) struct Next<'a> {
    pub intent: &'a Intent,
    /// The origin speaks HTTP/2.
    pub http2: bool,
    /// The connection is a TLS one.
    pub secure: bool,
    pub wish: &'a Wish,
    /// Requests of this kind name the proxy.
    pub signed: bool,
}

/// Makes the client's request ours. The path goes out byte for byte as it came.
///
/// # Errors
/// A target that cannot be written for the next hop.
pub(super) fn rewrite<B>(request: &mut Request<B>, next: &Next<'_>) -> Result<(), Refusal> {
    let from_http2 = request.version() == Version::HTTP_2;
    let trailers = wants_trailers(request.headers());
    // What the client wrote is what the origin gets; without either there is only the tunnel's own name.
    let named = |request: &Request<B>| {
        let host = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let named = request.uri().authority().map(|authority| authority.as_str()).or_else(host);
        named.map_or_else(|| default_authority(next.intent, next.secure), str::to_owned)
    };
    let path = |request: &Request<B>| request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let unwritable = |error: &dyn std::fmt::Display| {
        Refusal::new(Kind::InvalidRequest, format!("the target cannot be forwarded: {error}")).about(next.intent)
    };
    strip(request.headers_mut());
    // Credentials for this proxy, which asks for none.
    request.headers_mut().remove(header::PROXY_AUTHORIZATION);
    if next.signed {
        sign(request.headers_mut());
    }
    if next.http2 {
        let scheme = if next.secure { "https" } else { "http" };
        let target = Uri::builder().scheme(scheme).authority(named(request)).path_and_query(path(request)).build();
        *request.uri_mut() = target.map_err(|error| unwritable(&error))?;
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().remove(header::HOST);
        if trailers {
            request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        }
        return Ok(());
    }
    if !request.headers().contains_key(header::HOST) {
        let named = HeaderValue::from_str(&named(request)).map_err(|error| unwritable(&error))?;
        request.headers_mut().insert(header::HOST, named);
    }
    // Inside a tunnel it mostly is what it has to be.
    if request.uri().authority().is_some() || request.uri().path_and_query().is_none() {
        *request.uri_mut() = path(request).parse::<Uri>().map_err(|error| unwritable(&error))?;
    }
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    if from_http2 {
        join_cookies(headers);
    }
    if let Wish::Upgrade(protocol) = next.wish {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    } else if trailers {
        headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// RFC 9113 §8.2.3: HTTP/2 may cut a cookie field in pieces, HTTP/1.1 knows one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let joined: Vec<u8> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, joined);
    }
}

/// The destination as a request names it.
pub(super) fn default_authority(intent: &Intent, secure: bool) -> String {
    let text = intent.to_string();
    let port = if secure { ":443" } else { ":80" };
    text.strip_suffix(port).map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::host::Host;

    fn intent() -> Intent {
        Intent { host: Host::Name("api.example.com".into()), port: 443 }
    }

    fn request(version: Version, uri: &str, fields: &[(&str, &str)]) -> Request<String> {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(String::new()).unwrap()
    }

    fn next<'a>(intent: &'a Intent, http2: bool, wish: &'a Wish) -> Next<'a> {
        Next { intent, http2, secure: true, wish, signed: false }
    }

    #[test]
    fn what_belongs_to_one_hop_stays_on_it() {
        let mut request = request(
            Version::HTTP_11,
            "/a%2Fb?c",
            &[
                ("host", "api.example.com"),
                ("connection", "keep-alive, x-mine, host, content-length"),
                ("x-mine", "1"),
                ("content-length", "0"),
                ("te", "gzip, trailers"),
                ("upgrade", "h2c"),
                ("http2-settings", "AAMAAABk"),
                ("proxy-authorization", "Basic eDp5"),
                ("authorization", "Bearer z"),
            ],
        );
        rewrite(&mut request, &next(&intent(), false, &Wish::Answer)).unwrap();
        let names: Vec<_> = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(request.uri(), "/a%2Fb?c");
        for (name, value) in
            [("host", "api.example.com"), ("authorization", "Bearer z"), ("te", "trailers"), ("connection", "te")]
        {
            assert!(names.contains(&(name, value.as_bytes())), "{names:?}");
        }
        assert_eq!(names.len(), 5, "{names:?}");
    }

    #[test]
    fn what_would_override_a_request_is_found_in_either_spelling() {
        for (name, found) in [
            ("X-HTTP-Method-Override", true),
            ("x_http_method_override", true),
            ("X-Original_URL", true),
            ("content_length", true),
            ("transfer_encoding", true),
            ("content-length", false),
            ("x-http-methods", false),
            ("x_request_id", false),
        ] {
            let request = request(Version::HTTP_11, "/", &[(name, "1")]);
            assert_eq!(overriding(request.headers()).is_some(), found, "{name}");
        }
        let fields = [("x_http_method_override", "DELETE"), ("content_length", "1"), ("host", "x"), ("x-sum", "1")];
        let mut trailers = request(Version::HTTP_11, "/", &fields).headers().clone();
        strip_trailers(&mut trailers);
        assert_eq!(trailers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
    }

    #[test]
    fn each_version_says_it_in_its_way() {
        let mut up = request(Version::HTTP_11, "/x", &[("host", "API.example.com"), ("connection", "close")]);
        rewrite(&mut up, &next(&intent(), true, &Wish::Answer)).unwrap();
        assert_eq!((up.uri().to_string().as_str(), up.version()), ("https://API.example.com/x", Version::HTTP_2));
        assert!(up.headers().is_empty());
        let mut down = request(Version::HTTP_2, "https://api.example.com/x", &[("cookie", "a=1"), ("cookie", "b=2")]);
        rewrite(&mut down, &next(&intent(), false, &Wish::Answer)).unwrap();
        assert_eq!(down.uri(), "/x");
        assert_eq!(down.headers()["host"], "api.example.com");
        assert_eq!(down.headers().get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }

    #[test]
    fn an_upgrade_needs_connection_to_name_it_and_is_never_h2c() {
        let asked = |fields| Wish::of(&request(Version::HTTP_11, "/", fields));
        assert!(asked(&[("upgrade", "websocket"), ("connection", "Upgrade")]).is_websocket());
        assert_eq!(asked(&[("upgrade", "websocket")]), Wish::Answer);
        assert_eq!(asked(&[("upgrade", "h2c"), ("connection", "upgrade, http2-settings")]), Wish::Answer);
        assert!(!asked(&[("upgrade", "tcp"), ("connection", "upgrade")]).is_websocket());
        // Nor is it anything but a GET without a body.
        let fields = [("upgrade", "websocket"), ("connection", "upgrade")];
        for (method, body, expected) in [("GET", "", true), ("DELETE", "", false), ("GET", "x", false)] {
            let mut request = request(Version::HTTP_11, "/", &fields).map(|_| body.to_owned());
            *request.method_mut() = method.parse().unwrap();
            assert_eq!(Wish::of(&request).is_websocket(), expected, "{method} {body:?}");
        }
    }
}
