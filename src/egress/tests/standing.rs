//! What is open, or under way, is allowed by each policy anew; and connections are kept for those alone who may use them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::tls::HTTP2;
use super::intercept::{Speaker, answered, describing, fixture, inside, inspected, request};
use super::*;
use crate::contract::HOST_ALIAS;
use crate::event::Disposition;

/// An origin that agrees to any WebSocket and sends back what comes on it.
async fn agreeing() -> u16 {
    origin(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await
}

/// `hi`, as text under a mask of zeros (RFC 6455 §5.2).
const HI: [u8; 8] = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];

/// What comes back of a message: its bytes, or those of whatever ended the socket.
async fn say(stream: &mut TcpStream) -> Vec<u8> {
    let _ = stream.write_all(&HI).await;
    let mut back = vec![0; HI.len()];
    let mut filled = 0;
    while filled < back.len() {
        match tokio::time::timeout(SOON, stream.read(&mut back[filled..])).await.expect("an answer in time") {
            Ok(count @ 1..) => filled += count,
            _ => break,
        }
    }
    back.truncate(filled);
    back
}

#[tokio::test]
async fn an_open_web_socket_is_held_to_the_rules_of_each_policy() {
    let port = agreeing().await;
    let open = "{allow: {method: GET, path: /ws}}";
    let text = "{allow: {method: WEBSOCKET_TEXT, path: /ws}}";
    let rules = format!("protocol: websocket, rules: [{open}, {text}]");
    for (other, ends) in [
        (format!("protocol: websocket, rules: [{open}]"), true),
        (format!("protocol: websocket, rules: [{open}, {text}], deny_rules: [{{method: GET, path: /ws}}]"), true),
        ("protocol: rest, access: read-only".to_owned(), true),
        // Control: what still allows both changes nothing.
        (format!("protocol: websocket, rules: [{open}, {text}, {{allow: {{method: GET, path: /other}}}}]"), false),
    ] {
        let fixture = fixture(port, &rules).await;
        let mut stream = fixture.tunnel(port).await;
        let ask = format!(
            "GET /ws HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(tokio::time::timeout(SOON, stream.read_u8()).await.expect("in time").unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        assert_eq!(say(&mut stream).await, HI);
        fixture.swap(&[inspected(port, &other)]);
        // The proxy hears of it in its own time, and the control must have had as much.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(say(&mut stream).await != HI, ends, "{other}");
        let denied = fixture.events().iter().filter(|event| event.disposition == Disposition::Denied).count();
        assert_eq!(denied, usize::from(ends), "{other}: {:?}", fixture.events());
    }
}

#[tokio::test]
async fn a_request_whose_policy_changes_while_its_body_comes_is_asked_again() {
    static REACHED: AtomicUsize = AtomicUsize::new(0);
    let port = origin(|mut stream| async move {
        let mut seen = Vec::new();
        while !seen.ends_with(b"}") {
            let Ok(byte) = stream.read_u8().await else { return };
            seen.push(byte);
        }
        REACHED.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 200 Fine\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    })
    .await;
    let rules = "protocol: json-rpc, rules: [{allow: {method: ping}}]";
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let more = "protocol: json-rpc, rules: [{allow: {method: ping}}, {allow: {method: pong}}]";
    for (other, status, reached) in [(vec![], 403, 0), (vec![inspected(port, more)], 200, 1)] {
        let fixture = fixture(port, rules).await;
        let mut client = fixture.client().await;
        let length = body.len();
        let head = format!(
            "POST http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        client.send(head + &body[..length / 2]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.swap(&other);
        client.send(&body[length / 2..]).await;
        assert_eq!(client.answer().await.status, status);
        assert_eq!(REACHED.load(Ordering::Relaxed), reached);
    }
}

#[tokio::test]
async fn a_connection_that_is_kept_is_no_way_around_the_guard() {
    let port = describing(Some(HTTP2)).await;
    let rules = "protocol: rest, access: read-only";
    let fixture = fixture(port, rules).await;
    let stream = inside(&fixture, port, HOST_ALIAS, &[HTTP2]).await.unwrap();
    let mut speaker = Speaker::over(stream).await;
    let mut ask = async || answered(speaker.send(request(speaker.version(), "GET", port, "/a")).await).await;
    assert_eq!(ask().await.0, 200);
    // Of the host's own loopback only the alias itself may be named, and by its name.
    let (_, parent) = HOST_ALIAS.split_once('.').unwrap();
    fixture.swap(&[inspected(port, rules).replace(HOST_ALIAS, &format!("\"*.{parent}\""))]);
    let (status, _, body, _) = ask().await;
    assert!(status != 200 && body.contains("error"), "{status} {body}");
    // Control: named again, it is reached again.
    fixture.swap(&[inspected(port, rules)]);
    assert_eq!(ask().await.0, 200);
}

#[tokio::test]
async fn a_connection_that_carried_chunks_is_used_again() {
    let port = origin(|mut stream| async move {
        let connection = stream.peer_addr().unwrap().port();
        let mut seen = Vec::new();
        while let Ok(byte) = stream.read_u8().await {
            seen.push(byte);
            if seen.ends_with(b"\r\n\r\n") {
                let answer = format!(
                    "HTTP/1.1 200 Fine\r\nX-Connection: {connection}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    let mut used = Vec::new();
    for _ in 0..3 {
        client.send(format!("GET http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n")).await;
        used.push(client.answer().await.field("x-connection").unwrap().to_owned());
    }
    used.dedup();
    assert_eq!(used.len(), 1, "{used:?}");
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_interim_response() {
    let port = origin(|mut stream| async move {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            seen.push(byte);
        }
        let answers = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 Fine\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answers.as_bytes()).await.unwrap();
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    for (version, status) in [("1.0", 200), ("1.1", 103)] {
        let ask = format!("GET http://{HOST_ALIAS}:{port}/ HTTP/{version}\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n");
        let (_, answer) = Client::ask(&fixture, ask).await;
        assert_eq!(answer.status, status, "HTTP/{version}: {answer:?}");
    }
}
