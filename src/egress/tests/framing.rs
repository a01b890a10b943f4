//! Whose message ends where: what origins answer in HTTP/1, told anew to clients of either version (RFC 9112 §6.3).

use super::super::tls::{HTTP1, HTTP2};
use super::intercept::{Speaker, answered, fixture, inside, raw_origin, request};
use super::*;
use crate::contract::HOST_ALIAS;
use http_body_util::BodyExt;

const FULL: &str = "protocol: rest, access: full";

/// An origin that answers every connection's first request with these bytes and closes.
async fn answering(bytes: &'static str) -> u16 {
    raw_origin(move |mut stream, _| async move {
        let _ = stream.write_all(bytes.as_bytes()).await;
        let _ = stream.shutdown().await;
    })
    .await
}

/// A head, what follows it, and the body and Content-Length that a client is to see.
type Case = (&'static str, &'static str, Option<(&'static str, Option<&'static str>)>);

#[tokio::test]
async fn a_response_says_once_how_long_it_is_or_is_502() {
    const CHUNKS: &str = "3\r\nabc\r\n0\r\n\r\n";
    let cases: &[Case] = &[
        ("200 OK\r\nContent-Length: 3", "abc", Some(("abc", Some("3")))),
        ("200 OK\r\nTransfer-Encoding: Chunked", CHUNKS, Some(("abc", None))),
        ("200 OK", "abc", Some(("abc", None))),
        // What is said twice is said once, and chunks are believed before a number.
        ("200 OK\r\nContent-Length: 3, 3", "abc", Some(("abc", Some("3")))),
        ("200 OK\r\nContent-Length: 3\r\nContent-Length: 3", "abc", Some(("abc", Some("3")))),
        ("200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", CHUNKS, Some(("abc", None))),
        ("200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1", CHUNKS, Some(("abc", None))),
        ("204 No Content\r\nContent-Length: 5", "", Some(("", None))),
        // What cannot be told anew without a change of meaning.
        ("200 OK\r\nTransfer-Encoding: gzip, chunked", CHUNKS, None),
        ("200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked", CHUNKS, None),
        ("200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", CHUNKS, None),
        ("200 OK\r\nTransfer-Encoding: chunked, gzip", "abc", None),
        ("200 OK\r\nTransfer-Encoding: gzip", "abc", None),
        ("200 OK\r\nTransfer-Encoding: xchunked", CHUNKS, None),
        // What is no message at all.
        ("200 OK\r\nContent-Length: 3, 4", "abc", None),
        ("200 OK\r\nContent-Length: 3\r\nContent-Length: 4", "abc", None),
        ("200 OK\r\nContent-Length: +3", "abc", None),
        ("200 OK\r\nContent-Length: -3", "abc", None),
        ("200 OK\r\nContent-Length: 0x3", "abc", None),
        ("200 OK\r\nContent-Length: 18446744073709551616", "abc", None),
        ("200 OK\r\nContent-Length : 3", "abc", None),
        ("200 OK\r\nX: a\0b", "abc", None),
        ("200 OK\r\nX\u{e9}: a", "abc", None),
        ("2000 OK", "abc", None),
    ];
    for alpn in [HTTP1, HTTP2] {
        for &(head, rest, expected) in cases {
            let bytes = format!("HTTP/1.1 {head}\r\n\r\n{rest}").leak();
            let port = answering(bytes).await;
            let fixture = fixture(port, FULL).await;
            let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap()).await;
            let (status, fields, body, _) = speaker.ask("GET", port, "/").await;
            let Some((text, length)) = expected else {
                assert_eq!(status, 502, "{head:?} {body}");
                let body: serde_json::Value = serde_json::from_str(&body).unwrap();
                assert_eq!(body["error"], "upstream_failed", "{head:?} {body}");
                continue;
            };
            assert_eq!(status, if head.starts_with("204") { 204 } else { 200 }, "{head:?} {body}");
            let told = fields.get("content-length").map(|length| length.to_str().unwrap());
            assert_eq!((body.as_str(), told), (text, length), "{head:?}");
            assert_eq!(fields.get_all("content-length").iter().count(), usize::from(length.is_some()), "{head:?}");
        }
    }
    let port = answering("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").await;
    let fixture = fixture(port, FULL).await;
    let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[HTTP1]).await.unwrap()).await;
    assert_eq!(speaker.ask("GET", port, "/").await.0, 502, "HTTP/1.0 knows no chunks (RFC 9112 §6.1)");
}

#[tokio::test]
async fn what_is_cut_short_is_not_made_whole() {
    for alpn in [HTTP1, HTTP2] {
        for (bytes, whole) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", true),
        ] {
            let port = answering(bytes).await;
            let fixture = fixture(port, FULL).await;
            let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap()).await;
            let response = speaker.send(request(speaker.version(), "GET", port, "/")).await;
            assert_eq!(response.status(), 200);
            let body = tokio::time::timeout(SOON, response.into_body().collect()).await.expect("an end in time");
            assert_eq!(body.is_ok(), whole, "{bytes:?}");
        }
    }
}

#[tokio::test]
async fn a_head_is_as_long_as_the_gate_allows_in_either_version() {
    use super::super::limits::HEAD_FIELDS;
    for alpn in [HTTP1, HTTP2] {
        for (name, more, expected) in [
            ("x-field", HEAD_FIELDS - 3, 200),
            ("x-field", HEAD_FIELDS + 1, 431),
            // One cookie in many pieces is one field (RFC 9113 §8.2.3).
            ("cookie", if alpn == HTTP2 { HEAD_FIELDS + 50 } else { 1 }, 200),
        ] {
            let port = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            let fixture = fixture(port, FULL).await;
            let mut speaker = Speaker::over(inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap()).await;
            let mut asked = request(speaker.version(), "GET", port, "/");
            for _ in 0..more {
                asked.headers_mut().append(name, "a=b".parse().unwrap());
            }
            let (status, _, body, _) = answered(speaker.send(asked).await).await;
            assert_eq!(status, expected, "{name} {more} {body}");
        }
    }
}
