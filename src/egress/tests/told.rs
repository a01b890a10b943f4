//! What a refused request is told inside TLS: all that whoever reads it needs, and nothing that is a secret.

use tokio::io::AsyncWriteExt;

use super::super::http::Body;
use super::super::tls::{HTTP1, HTTP2};
use super::Client;
use super::intercept::{Speaker, answered, describing, fixture, inside, raw_inside, request, until};
use crate::contract::HOST_ALIAS;

/// What whoever reads a refusal needs, whatever it was that refused the request.
#[track_caller]
fn complete(body: &str, protocol: &str, method: &str, path: &str) -> serde_json::Value {
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let told =
        ["policy", "layer", "protocol", "method", "path", "host"].map(|key| body[key].as_str().unwrap_or("nothing"));
    assert_eq!(told, ["api", "l7", protocol, method, path, HOST_ALIAS], "{body}");
    body
}

#[tokio::test]
async fn every_refusal_of_a_request_names_entry_protocol_method_and_path() {
    for alpn in [HTTP1, HTTP2] {
        let port = describing(Some(alpn)).await;
        let fixture = fixture(port, "protocol: graphql, access: full, graphql_max_body_bytes: 64").await;
        let stream = inside(&fixture, port, HOST_ALIAS, &[alpn]).await.unwrap();
        let mut speaker = Speaker::over(stream).await;
        let mut ask = async |field: &'static str, value: &'static str, size: usize| {
            let mut asked = request(speaker.version(), "POST", port, "/graphql");
            asked.headers_mut().insert(field, value.parse().unwrap());
            let text = format!("{{\"query\": \"{{ a }}\"{}}}", " ".repeat(size));
            *asked.body_mut() = Body::bytes(text.into());
            let (status, fields, body, _) = answered(speaker.send(asked).await).await;
            (status, fields.get("x-openshell-policy").map(|policy| policy.to_str().unwrap().to_owned()), body)
        };
        // The control.
        assert_eq!(ask("content-type", "application/json", 0).await.0, 200);
        let (status, policy, body) = ask("content-type", "application/json", 100).await;
        assert_eq!((status, policy.as_deref()), (413, Some("api")));
        let body = complete(&body, "graphql", "POST", "/graphql");
        assert!(body["next_steps"][0].as_str().unwrap().contains("graphql_max_body_bytes"), "{body}");
        if alpn == HTTP2 {
            let (status, policy, body) = ask("host", "other.example.com", 0).await;
            assert_eq!((status, policy.as_deref()), (403, Some("api")));
            complete(&body, "graphql", "POST", "/graphql");
        }
        let (status, policy, body) = ask("x-http-method-override", "DELETE", 0).await;
        assert_eq!((status, policy.as_deref()), (400, Some("api")));
        complete(&body, "graphql", "POST", "/graphql");
    }
    let port = describing(Some(HTTP1)).await;
    let fixture = fixture(port, "protocol: rest, access: full").await;
    let head = "POST /a?token=abc HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
    for (chunks, expected) in [("1\r\nx\r\n0\r\n\r\n", 200), ("1 \r\nx\r\n0\r\n\r\n", 400)] {
        let mut stream = raw_inside(&fixture, port, head).await;
        stream.write_all(chunks.as_bytes()).await.unwrap();
        let answer = until(&mut stream, if expected == 200 { "0\r\n" } else { "}\n" }).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
        if expected == 400 {
            complete(answer.split_once("\r\n\r\n").unwrap().1, "rest", "POST", "/a?token=[CREDENTIAL]");
        }
    }
}

#[tokio::test]
async fn a_credential_in_a_path_is_in_no_sentence_about_it_however_it_is_spelt() {
    const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let port = describing(Some(HTTP1)).await;
    let fixture =
        fixture(port, "protocol: rest, allow_ambiguous_paths: true, rules: [{allow: {method: GET, path: /ok}}]").await;
    let stream = inside(&fixture, port, HOST_ALIAS, &[HTTP1]).await.unwrap();
    let mut speaker = Speaker::over(stream).await;
    let mut ask = async |path: String| {
        let (status, _, body, _) = answered(speaker.send(request(speaker.version(), "GET", port, &path)).await).await;
        (status, body)
    };
    let escaped = TOKEN.replacen('g', "%67", 1);
    for path in ["/{}/x", "/{}/%7ex", "/{}/x;y", "/{};v=1//x", "/x%20{}/y"] {
        for spelt in [TOKEN, &escaped] {
            let (status, body) = ask(path.replace("{}", spelt)).await;
            let secret = body.contains("0123456789abcdefghij");
            assert!(status == 403 && body.contains("[CREDENTIAL]") && !secret, "{path}: {body}");
        }
    }
    // Nor is a part of one that is longer than what is quoted.
    let (_, body) = ask(format!("/x/{}", format!("{TOKEN}aB3").repeat(8))).await;
    assert!(body.contains("[CREDENTIAL]") && !body.contains("0123456789abcdefghij"), "{body}");
    // A parameter is one by its name, whatever it looks like, in each spelling that a sentence could use.
    for path in ["/a;token=s%7ecret%2fs/x", "/a%3bt%6Fken=s%7ecret%2fs/x"] {
        let (status, body) = ask(path.to_owned()).await;
        assert!(
            matches!(status, 400 | 403) && body.contains("[CREDENTIAL]") && !body.contains("cret"),
            "{path}: {body}"
        );
    }
    let secrets = ["0123456789abcdefghij", "cret"];
    let events = fixture.events().iter().map(|event| format!("{event:?}")).collect::<Vec<_>>();
    assert!(events.iter().all(|event| !secrets.iter().any(|secret| event.contains(secret))), "{events:?}");
    // What only an audit lets through is told as little, as is a target that is none.
    let lenient = self::fixture(port, "protocol: rest, enforcement: audit, access: read-only").await;
    let mut speaker = Speaker::over(inside(&lenient, port, HOST_ALIAS, &[HTTP1]).await.unwrap()).await;
    let audited = format!("/x/{TOKEN}");
    let response = speaker.send(request(speaker.version(), "POST", port, &audited)).await;
    assert_eq!(answered(response).await.0, 200);
    let (_, answer) = Client::ask(&lenient, format!("GET {audited}?token=cret HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    assert_eq!(answer.status, 400);
    let events = lenient.events().iter().map(|event| format!("{event:?}")).collect::<Vec<_>>();
    assert!(events.iter().any(|event| event.contains("Audited")), "{events:?}");
    assert!(events.iter().all(|event| !secrets.iter().any(|secret| event.contains(secret))), "{events:?}");
    // Control: what is none is told whole, with the rule for it.
    let (_, body) = ask("/ordinary/%7ex".to_owned()).await;
    assert!(body.contains("/ordinary/~x") && body.contains("rule_missing"), "{body}");
}
