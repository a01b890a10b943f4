use super::*;
use crate::event::{Disposition, Stage};

#[tokio::test]
async fn a_tunnel_opens_and_carries_both_ways() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.connect(port).await;
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 200 Connection Established\r\n"), "{answer:?}");
    assert_eq!(answer.field("content-length"), None);
    client.send("ping").await;
    while client.buffer.len() < 4 {
        client.more().await;
    }
    assert_eq!(client.buffer, b"ping");
    let events = fixture.events();
    assert_eq!((events[0].disposition, events[0].stage, events[0].port), (Disposition::Allowed, Stage::Connect, port));
    assert_eq!(events[0].policy.as_deref(), Some("to-host-openshell-internal"));
}

#[tokio::test]
async fn bytes_sent_ahead_of_the_answer_are_not_lost() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.send(format!("CONNECT {HOST_ALIAS}:{port} HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\nearly")).await;
    assert_eq!(client.answer().await.status, 200);
    while client.buffer.len() < 5 {
        client.more().await;
    }
    assert_eq!(client.buffer, b"early");
}

#[tokio::test]
async fn the_target_of_a_connect_counts_and_not_the_host_field() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    // Node's `http.request` names the proxy there.
    let mut client = fixture.client().await;
    client.send(format!("CONNECT {HOST_ALIAS}:{port} HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 200);
    // And nobody is let through for what is there.
    let mut client = fixture.client().await;
    client.send(format!("CONNECT api.example.com:443 HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 403);
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard_at_once() {
    let port = origin(|mut stream| async move {
        stream.write_all(b"SSH-2.0-test\r\n").await.unwrap();
        tokio::time::sleep(SOON).await;
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let start = std::time::Instant::now();
    let mut client = fixture.client().await;
    client.connect(port).await;
    assert_eq!(client.answer().await.status, 200);
    while client.buffer.len() < 14 {
        client.more().await;
    }
    // OpenShell waits 100 ms for the client to speak.
    assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_denial_is_readable_and_the_connection_can_ask_again() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.send("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 403);
    assert!(answer.head.starts_with("HTTP/1.1 403 Forbidden by sandbox policy\r\n"), "{answer:?}");
    assert_eq!(answer.field("x-openshell-policy"), Some("none"));
    let json = answer.json();
    assert_eq!((json["error"].as_str(), json["host"].as_str()), (Some("policy_denied"), Some("api.example.com")));
    assert_eq!(json["port"], 443);
    assert!(!json["next_steps"].as_array().unwrap().is_empty());
    // A wrong port of an allowed host, then what is allowed, on the same connection.
    client.connect(1).await;
    assert_eq!(client.answer().await.status, 403);
    client.connect(port).await;
    assert_eq!(client.answer().await.status, 200);
    let events = fixture.events();
    assert_eq!(events[0].disposition, Disposition::Denied);
    assert_eq!((events[0].stage, events[0].host.as_str()), (Stage::Connect, "api.example.com"));
}

#[tokio::test]
async fn bytes_behind_a_denied_connect_are_not_read_as_a_request() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let smuggled = format!(
        "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n\
         CONNECT {HOST_ALIAS}:{port} HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n"
    );
    let (mut client, answer) = Client::ask(&fixture, smuggled).await;
    assert_eq!((answer.status, answer.field("connection")), (403, Some("close")));
    assert!(client.ends().await);
}

#[tokio::test]
async fn bad_targets_are_answered_with_400() {
    let fixture = Fixture::with_ports(&[443]).await;
    for head in [
        "CONNECT api.example.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT api.example.com:0 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT api.example.com:70000 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT http://api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT /path HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT user@api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT api.example.com%00.github.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nContent-Length: 5\r\n\r\n",
        "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let (_, answer) = Client::ask(&fixture, head).await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (400, Some("invalid_request")),
            "{head:?} {answer:?}"
        );
    }
    // The control: the same request, well formed, is judged.
    let (_, answer) = Client::ask(&fixture, "CONNECT api.example.com:443 HTTP/1.0\r\n\r\n").await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn a_port_where_nothing_listens_is_502() {
    let port = closed_port();
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.connect(port).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("upstream_unreachable")));
    assert!(answer.json()["detail"].as_str().unwrap().contains(&format!("127.0.0.1:{port}: ")), "{answer:?}");
}

#[tokio::test]
async fn the_proxy_does_not_connect_to_itself() {
    let fixture = Fixture::with_ports(&[1]).await;
    let own = fixture.address.port();
    fixture.swap(&[entry(HOST_ALIAS, &[own]), entry("127.0.0.1", &[own])]);
    for host in [HOST_ALIAS, "127.0.0.1"] {
        let (_, answer) = Client::ask(&fixture, format!("CONNECT {host}:{own} HTTP/1.0\r\n\r\n")).await;
        assert_eq!((answer.status, answer.json()["error"].as_str()), (403, Some("destination_denied")), "{answer:?}");
    }
}

#[tokio::test]
async fn five_hundred_connections_at_once() {
    let port = echo().await;
    let fixture = Arc::new(Fixture::with_ports(&[port]).await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..500_u32 {
        let fixture = fixture.clone();
        tasks.spawn(async move {
            let mut stream = fixture.tunnel(port).await;
            stream.write_all(&number.to_be_bytes()).await.unwrap();
            assert_eq!(stream.read_u32().await.unwrap(), number);
            stream
        });
    }
    assert_eq!(tasks.join_all().await.len(), 500);
}
