use super::*;
use crate::event::{Disposition, Stage};

/// Reads one request without a body.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(_) => return None,
        }
    }
    Some(String::from_utf8(seen).unwrap())
}

/// An origin that answers every request with the head it saw.
async fn mirror() -> u16 {
    origin(|mut stream| async move {
        let connection = stream.peer_addr().unwrap().port();
        while let Some(head) = request(&mut stream).await {
            let answer = format!(
                "HTTP/1.1 200 Fine\r\nX-Connection: {connection}\r\nX-CaSe: kept\r\nKeep-Alive: timeout=5\r\n\
                 Connection: X-Hop\r\nX-Hop: gone\r\nContent-Length: {}\r\n\r\n{head}",
                head.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

fn get(port: u16, rest: &str) -> String {
    format!("GET http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n{rest}\r\n")
}

#[tokio::test]
async fn both_legs_are_kept_alive_and_every_request_is_decided() {
    let port = mirror().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    let mut upstream = Vec::new();
    for _ in 0..3 {
        client.send(get(port, "")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        upstream.push(answer.field("x-connection").unwrap().to_owned());
        client.send("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.json()["error"].as_str()), (403, Some("policy_denied")));
    }
    assert!(upstream.iter().all(|port| *port == upstream[0]), "{upstream:?}");
    // Another client connection takes over the upstream one.
    let (_, answer) = Client::ask(&fixture, get(port, "")).await;
    assert_eq!(answer.field("x-connection"), Some(upstream[0].as_str()));
    let events = fixture.events();
    assert_eq!((events[0].disposition, events[0].stage), (Disposition::Allowed, Stage::Forward));
    let http = events[0].http.as_ref().unwrap();
    assert_eq!((http.status, http.secure), (Some(200), false));
    assert_eq!((events[1].disposition, events[1].http.as_ref().unwrap().status), (Disposition::Denied, Some(403)));
    // What a new policy takes away is gone with the next request, pooled connection or not.
    fixture.swap(&[]);
    client.send(get(port, "")).await;
    assert_eq!(client.answer().await.status, 403);
}

#[tokio::test]
async fn requests_go_out_as_they_came_but_for_what_belongs_to_one_hop() {
    let port = mirror().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let request = format!(
        "GET http://{HOST_ALIAS}:{port}/a//b/../%2e%2E/c%2Fd;p=1?q=%zz&q={{}}|\\^`~' HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\
         X-MiXed: A\r\nx-lower: b\r\nConnection: X-Secret, Host, close\r\nX-Secret: s\r\nProxy-Authorization: Basic eA==\r\n\
         Proxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nTE: trailers\r\nVia: 1.0 other\r\n\r\n"
    );
    let (mut client, answer) = Client::ask(&fixture, request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = String::from_utf8(answer.body.clone()).unwrap();
    assert!(seen.starts_with("GET /a//b/../%2e%2E/c%2Fd;p=1?q=%zz&q={}|\\^`~' HTTP/1.1\r\n"), "{seen}");
    for kept in ["X-MiXed: A\r\n", "x-lower: b\r\n", &format!("Host: {HOST_ALIAS}:{port}\r\n"), "TE: trailers\r\n"] {
        assert!(seen.to_ascii_lowercase().contains(&kept.to_ascii_lowercase()), "{kept} {seen}");
    }
    assert!(seen.contains("X-MiXed: A\r\n") && seen.contains("x-lower: b\r\n"), "{seen}");
    assert!(seen.contains("1.0 other") && seen.contains("1.1 openshell"), "{seen}");
    for gone in ["x-secret", "proxy-", "keep-alive", "close"] {
        assert!(!seen.to_ascii_lowercase().contains(gone), "{gone}: {seen}");
    }
    assert!(answer.head.starts_with("HTTP/1.1 200 Fine\r\n"), "{answer:?}");
    assert!(answer.head.contains("X-CaSe: kept\r\n"), "{answer:?}");
    assert_eq!((answer.field("x-hop"), answer.field("keep-alive")), (None, None));
    assert_eq!(answer.field("via"), Some("1.1 openshell"));
    assert!(client.ends().await);
}

#[tokio::test]
async fn http_1_0_clients_are_served() {
    let port = mirror().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let (mut client, answer) =
        Client::ask(&fixture, format!("GET http://{HOST_ALIAS}:{port}/x HTTP/1.0\r\n\r\n")).await;
    assert_eq!(answer.status, 200);
    let seen = String::from_utf8(answer.body.clone()).unwrap();
    assert!(seen.starts_with("GET /x HTTP/1.1\r\n"), "{seen}");
    assert!(seen.to_ascii_lowercase().contains(&format!("host: {HOST_ALIAS}:{port}\r\n")), "{seen}");
    assert!(client.ends().await);
}

#[tokio::test]
async fn a_client_that_ends_its_half_still_gets_the_answer() {
    let port = origin(|mut stream| async move {
        request(&mut stream).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").await.unwrap();
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.send(get(port, "")).await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.answer().await.body, b"late");
    assert!(client.ends().await);
}

#[tokio::test]
async fn bodies_stream_with_their_framing_and_trailers() {
    let port = origin(|mut stream| async move {
        let head = request(&mut stream).await.unwrap().to_ascii_lowercase();
        assert!(head.contains("transfer-encoding: chunked\r\n") && head.contains("trailer: x-sum\r\n"), "{head}");
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n").await.unwrap();
        // Answers every chunk as it comes.
        let mut seen = Vec::new();
        loop {
            let mut part = [0; 1024];
            let count = stream.read(&mut part).await.unwrap();
            assert_ne!(count, 0, "{:?}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&part[..count]);
            stream.write_all(b"2\r\nok\r\n").await.unwrap();
            if seen.ends_with(b"\r\n\r\n") {
                break;
            }
        }
        let seen = String::from_utf8(seen).unwrap().to_ascii_lowercase();
        assert!(seen.ends_with("0\r\nx-sum: 7\r\n\r\n"), "{seen:?}");
        stream.write_all(b"0\r\nX-End: 1\r\n\r\n").await.unwrap();
        tokio::time::sleep(SOON).await;
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client
        .send(format!(
            "POST http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\nTransfer-Encoding: chunked\r\n\
             Trailer: X-Sum\r\nTE: trailers\r\n\r\n"
        ))
        .await;
    client.send("5\r\nhello\r\n").await;
    // The first part of the answer comes while the request is still open: nothing is buffered.
    while !client.buffer.ends_with(b"2\r\nok\r\n") {
        assert_ne!(client.more().await, 0);
    }
    client.send("5\r\nworld\r\n0\r\nX-Sum: 7\r\n\r\n").await;
    let answer = client.answer().await;
    let body = String::from_utf8(answer.body).unwrap().to_ascii_lowercase();
    assert!(body.ends_with("0\r\nx-end: 1\r\n\r\n"), "{body:?}");
}

#[tokio::test]
async fn a_request_behind_a_body_is_a_request_and_one_inside_is_not() {
    let port = origin(|mut stream| async move {
        while let Some(head) = request(&mut stream).await {
            if head.starts_with("POST") {
                let mut body = [0; 35];
                stream.read_exact(&mut body).await.unwrap();
                assert!(body.starts_with(b"GET http://api.example.com/ HTTP/1."));
            }
            let line = head.lines().next().unwrap();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    let post = format!(
        "POST http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\nContent-Length: 35\r\n\r\n\
         GET http://api.example.com/ HTTP/1."
    );
    // Two requests and a tunnel in one write: three answers in order.
    let connect = "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    client.send(format!("{post}{}{connect}", get(port, ""))).await;
    assert_eq!(client.answer().await.body, b"POST / HTTP/1.1");
    assert_eq!(client.answer().await.body, b"GET / HTTP/1.1");
    assert_eq!(client.answer().await.status, 403);
    // And after the tunnel was denied, forwarding goes on.
    client.send(get(port, "")).await;
    assert_eq!(client.answer().await.body, b"GET / HTTP/1.1");
}

#[tokio::test]
async fn a_tunnel_opens_on_a_connection_that_forwarded_before() {
    let (port, echo) = (mirror().await, echo().await);
    let fixture = Fixture::with_ports(&[port, echo]).await;
    let (mut client, _) = Client::ask(&fixture, get(port, "")).await;
    client.connect(echo).await;
    assert_eq!(client.answer().await.status, 200);
    client.send("ping").await;
    while client.buffer.len() < 4 {
        client.more().await;
    }
    assert_eq!(client.buffer, b"ping");
}

#[tokio::test]
async fn head_responses_keep_their_length_and_have_no_body() {
    let port = origin(|mut stream| async move {
        while request(&mut stream).await.is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    for _ in 0..2 {
        client.send(get(port, "").replacen("GET", "HEAD", 1)).await;
        while !client.buffer.ends_with(b"\r\n\r\n") {
            client.more().await;
        }
        let head = String::from_utf8(std::mem::take(&mut client.buffer)).unwrap();
        assert!(head.to_ascii_lowercase().contains("content-length: 12345\r\n"), "{head}");
    }
}

#[tokio::test]
async fn another_protocol_passes_through_after_101() {
    let port = origin(|mut stream| async move {
        let head = request(&mut stream).await.unwrap().to_ascii_lowercase();
        if head.contains("upgrade: websocket\r\n") {
            assert!(head.contains("connection: upgrade\r\n"), "{head}");
            // Its first frame travels with the answer.
            stream
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi")
                .await
                .unwrap();
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
        }
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let (mut client, answer) = Client::ask(&fixture, get(port, "Connection: Upgrade\r\nUpgrade: websocket\r\n")).await;
    assert_eq!((answer.status, answer.field("upgrade")), (101, Some("websocket")), "{answer:?}");
    client.send("\x01binary\0\r\n\r\n").await;
    while client.buffer.len() < 2 + 12 {
        assert_ne!(client.more().await, 0);
    }
    assert_eq!(client.buffer, b"hi\x01binary\0\r\n\r\n");
    // An origin that declines leaves the connection as it was.
    let (mut client, answer) = Client::ask(&fixture, get(port, "Connection: Upgrade\r\nUpgrade: h2c\r\n")).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, b"no".as_slice()));
    client.send(get(port, "")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn an_origin_that_answers_101_unasked_is_refused() {
    let port = origin(|mut stream| async move {
        request(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
            .await
            .unwrap();
        tokio::time::sleep(SOON).await;
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let (_, answer) = Client::ask(&fixture, get(port, "")).await;
    assert_eq!(answer.status, 502, "{answer:?}");
}

#[tokio::test]
async fn an_origin_that_breaks_off_or_speaks_no_http_is_502() {
    for reply in
        ["", "SSH-2.0-test\r\n\r\n", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"]
    {
        let port = origin(move |mut stream| async move {
            request(&mut stream).await;
            let _ = stream.write_all(reply.as_bytes()).await;
        })
        .await;
        let fixture = Fixture::with_ports(&[port]).await;
        let (_, answer) = Client::ask(&fixture, get(port, "")).await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (502, Some("upstream_failed")),
            "{reply:?} {answer:?}"
        );
    }
    let port = closed_port();
    let fixture = Fixture::with_ports(&[port]).await;
    let (_, answer) = Client::ask(&fixture, get(port, "")).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("upstream_unreachable")));
}

#[tokio::test]
async fn a_kept_connection_that_its_origin_closes_is_replaced() {
    // Answers one request per connection, promises to keep it, and closes when the second request comes.
    let port = origin(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        request(&mut stream).await;
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    for _ in 0..3 {
        client.send(get(port, "")).await;
        assert_eq!(client.answer().await.status, 200);
    }
    // What may be done twice is (RFC 9110 §9.2.2).
    for method in ["PUT", "DELETE"] {
        client.send(get(port, "Content-Length: 0\r\n").replacen("GET", method, 1)).await;
        assert_eq!(client.answer().await.status, 200, "{method}");
    }
    // Another request, which may have had its effect, is not sent twice, and its sender is told what to do.
    client.send(get(port, "Content-Length: 0\r\n").replacen("GET", "POST", 1)).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 502);
    assert!(answer.json()["next_steps"][0].as_str().unwrap().contains("send it again"), "{answer:?}");
}

#[tokio::test]
async fn an_open_response_ends_when_the_policy_takes_it_back() {
    let port = origin(|mut stream| async move {
        request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n").await.unwrap();
        let _ = stream.read_u8().await;
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.send(get(port, "")).await;
    while !client.buffer.ends_with(b"data: 1\n\n\r\n") {
        assert_ne!(client.more().await, 0);
    }
    // A generation that still allows it changes nothing.
    fixture.swap(&[entry(HOST_ALIAS, &[port, 1])]);
    assert!(tokio::time::timeout(Duration::from_millis(50), client.stream.readable()).await.is_err());
    fixture.swap(&[]);
    client.buffer.clear();
    assert!(client.ends().await);
    assert_eq!(fixture.events().last().unwrap().stage, Stage::Reload);
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it_only_if_it_may_send() {
    let port = origin(|mut stream| async move {
        request(&mut stream).await;
        let mut body = [0; 4];
        stream.read_exact(&mut body).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n").await.unwrap();
        stream.write_all(&body).await.unwrap();
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let put = get(port, "Content-Length: 4\r\nExpect: 100-continue\r\n").replacen("GET", "PUT", 1);
    let (mut client, answer) = Client::ask(&fixture, &put).await;
    assert_eq!(answer.status, 100);
    client.send("body").await;
    assert_eq!(client.answer().await.body, b"body");
    let (_, answer) = Client::ask(&fixture, put.replace(HOST_ALIAS, "api.example.com")).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn a_client_that_resets_takes_its_silent_response_along() {
    let (ended, mut end) = tokio::sync::mpsc::channel(1);
    let port = origin(move |mut stream| {
        let ended = ended.clone();
        async move {
            request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nfirst").await.unwrap();
            let _ = stream.read_u8().await;
            let _ = ended.send(()).await;
        }
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    client.send(get(port, "")).await;
    while !client.buffer.ends_with(b"first\r\n") {
        assert_ne!(client.more().await, 0);
    }
    assert!(end.try_recv().is_err());
    super::super::splice::reset_on_close(&client.stream);
    drop(client);
    tokio::time::timeout(SOON, end.recv()).await.expect("the origin is let go").unwrap();
}
