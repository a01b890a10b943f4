use super::*;

/// What a head in front of a working origin is answered; the origin must never see it.
async fn refused(head: &str) -> Answer {
    let port = origin(|_| async { panic!("a refused request reached the origin") }).await;
    let fixture = Fixture::with_ports(&[port]).await;
    let head = head
        .replace("TARGET", &format!("http://{HOST_ALIAS}:{port}/"))
        .replace("HOST", &format!("{HOST_ALIAS}:{port}"));
    let (mut client, answer) = Client::ask(&fixture, head).await;
    assert_eq!(answer.field("connection"), Some("close"), "{answer:?}");
    assert!(client.ends().await);
    answer
}

#[tokio::test]
async fn ambiguous_framing_is_400_with_a_body() {
    for head in [
        "POST TARGET HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST TARGET HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST TARGET HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST TARGET HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST TARGET HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET TARGET HTTP/1.1\nHost: HOST\n\n",
        "GET TARGET HTTP/1.1\r\nHost: HOST\r\nX: a\r\n b\r\n\r\n",
        "GET TARGET HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n",
        "GET TARGET HTTP/1.1\r\n\r\n",
        "GET TARGET HTTP/1.1\r\nHost: HOST\r\nX: a\0\r\n\r\n",
        "GET TARGET HTTP/3.0\r\nHost: HOST\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01",
        "GET TARGET HTTP/1.1\r\nHost: HOST\r\n{}\r\n\r\n",
    ] {
        let answer = refused(head).await;
        assert_eq!((answer.status, answer.json()["error"].as_str()), (400, Some("invalid_request")), "{head:?}");
    }
}

#[tokio::test]
async fn a_broken_chunked_body_is_400() {
    for body in ["5 \r\nhello\r\n0\r\n\r\n", "5\r\nhelloo\r\n0\r\n\r\n", "fffffffffffffffff\r\n", "5\nhello"] {
        let port = origin(|mut stream| async move {
            // An origin that would answer only a complete request.
            let mut seen = Vec::new();
            while stream.read_buf(&mut seen).await.unwrap_or(0) > 0 {
                assert!(
                    !seen.ends_with(b"0\r\n\r\n"),
                    "a broken body was repaired: {:?}",
                    String::from_utf8_lossy(&seen)
                );
            }
        })
        .await;
        let fixture = Fixture::with_ports(&[port]).await;
        let request = format!(
            "POST http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        );
        let (mut client, answer) = Client::ask(&fixture, request).await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (400, Some("invalid_request")),
            "{body:?} {answer:?}"
        );
        assert!(client.ends().await);
    }
}

#[tokio::test]
async fn heads_beyond_the_bounds_are_431() {
    let fields = "X: y\r\n".repeat(super::super::limits::HEAD_FIELDS + 1);
    assert_eq!(refused(&format!("GET TARGET HTTP/1.1\r\nHost: HOST\r\n{fields}\r\n")).await.status, 431);
    let long = "y".repeat(super::super::limits::HEAD_BYTES);
    let answer = refused(&format!("GET TARGET HTTP/1.1\r\nHost: HOST\r\nX: {long}\r\n\r\n")).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (431, Some("head_too_large")));
    assert_eq!(refused(&"G".repeat(super::super::limits::HEAD_BYTES * 3)).await.status, 431);
}

#[tokio::test]
async fn a_head_that_never_ends_is_408() {
    let fixture = Fixture::hasty(&[1], 200).await;
    let mut client = fixture.client().await;
    // A byte now and then is no excuse.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        client.send("G").await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (408, Some("request_timeout")));
    assert!(client.ends().await);
}

#[tokio::test]
async fn a_silent_connection_ends_without_an_answer() {
    let fixture = Fixture::hasty(&[1], 50).await;
    assert!(fixture.client().await.ends().await);
}

#[tokio::test]
async fn a_body_that_stalls_is_400_and_an_origin_that_stalls_is_504() {
    let port = origin(|stream| async move {
        tokio::time::sleep(SOON).await;
        drop(stream);
    })
    .await;
    let fixture = Fixture::hasty(&[port], 100).await;
    let post = |rest: &str| format!("POST http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n{rest}");
    let (_, answer) = Client::ask(&fixture, post("Content-Length: 10\r\n\r\nhalf")).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    let (_, answer) = Client::ask(&fixture, post("Content-Length: 4\r\n\r\nfull")).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (504, Some("upstream_timeout")), "{answer:?}");
}

#[tokio::test]
async fn targets_that_are_not_for_a_proxy_are_explained() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut client = fixture.client().await;
    for (head, error, word) in [
        (format!("GET / HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n"), "invalid_request", "proxy"),
        (format!("OPTIONS * HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n"), "invalid_request", "proxy"),
        (
            format!("GET https://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n"),
            "unsupported_proxy_scheme",
            "CONNECT",
        ),
        (
            format!("GET ftp://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n"),
            "unsupported_proxy_scheme",
            "CONNECT",
        ),
        (format!("GET http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: github.com\r\n\r\n"), "invalid_request", "Host"),
        (format!("GET http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}\r\n\r\n"), "invalid_request", "Host"),
        (
            format!("GET http://u:p@{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n"),
            "invalid_request",
            "@",
        ),
    ] {
        // All on one connection: none of them costs it.
        client.send(&head).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.json()["error"].as_str()), (400, Some(error)), "{head:?} {answer:?}");
        assert!(String::from_utf8_lossy(&answer.body).contains(word), "{answer:?}");
    }
}
