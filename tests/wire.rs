//! Promises 6.x: what the proxy makes of bytes, over its own socket: grammar, framing, answers.
//!
//! The `network` role serves these: the same proxy, without a sandbox around its clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::origins::{self, Origin, Received};
use crate::world::{Daemon, ORIGIN_V4, World, eventually, policy_text};

/// A world whose machine runs the `network` role, and an origin on port 80.
struct Stage {
    world: World,
    _proxy: Daemon,
    received: Arc<Mutex<Vec<Received>>>,
    origin: Origin,
}

impl Stage {
    fn new() -> Self {
        Self::with(&[
            "api.example.com:80",
            "api.example.com:7",
            "mail.example.com:25",
            "nowhere.example.com:80",
            "api.example.com:81",
        ])
    }

    fn with(destinations: &[&str]) -> Self {
        let world = World::new();
        let received = Arc::new(Mutex::new(Vec::new()));
        let seen = received.clone();
        let origin = Origin::start(
            &world,
            80,
            origins::http(move |request| {
                seen.lock().expect("lock").push(request.clone());
                format!("body of {}\n", request.head.lines().next().unwrap_or(""))
            }),
        );
        let policy = world.file("policy.yaml", policy_text("**", destinations));
        let proxy = world.role("network").args(["--binary-identity", "relaxed"]).policy(policy).spawn();
        eventually("the proxy listens", || world.in_machine(|| TcpStream::connect("127.0.0.1:3128").is_ok()));
        Self { world, _proxy: proxy, received, origin }
    }

    fn connect(&self) -> TcpStream {
        let stream = self.world.in_machine(|| TcpStream::connect("127.0.0.1:3128").expect("connect"));
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        stream
    }

    /// Sends bytes, and reads until the proxy closes or has answered one whole response.
    fn exchange(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).expect("send");
        Answer::read(&mut stream)
    }
}

/// One response.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")
                        .and_then(|value| value.trim().parse::<usize>().ok())
                });
                let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
                if body.len()
                    >= length.unwrap_or(if status == 200 && !head.to_ascii_lowercase().contains("transfer-encoding") {
                        0
                    } else {
                        usize::MAX
                    })
                {
                    return Self { status, head: head.to_owned(), body: body.to_owned() };
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => {
                    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
                    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
                    return Self { status, head: head.to_owned(), body: body.to_owned() };
                }
                Ok(length) => bytes.extend_from_slice(&buffer[..length]),
            }
        }
    }

    /// The JSON body of a refusal, which every one must have.
    #[track_caller]
    fn refusal(&self) -> serde_json::Value {
        assert!(self.head.to_ascii_lowercase().contains("content-type: application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

#[test]
fn malformed_heads_are_400_with_a_body_and_never_reach_an_origin() {
    let stage = Stage::new();
    let ours = "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n";
    let post = "POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n";
    let cases: Vec<(&str, String)> = vec![
        ("garbage", "\x16\x03\x01\x02\x00\x01\r\n\r\n".into()),
        ("a bare LF ends a line", "GET http://api.example.com/ HTTP/1.1\nHost: api.example.com\n\n".into()),
        ("a bare CR in a value", format!("{ours}X: a\rb\r\n\r\n")),
        ("obs-fold", format!("{ours}X: a\r\n b\r\n\r\n")),
        ("a space before the colon", format!("{ours}X : a\r\n\r\n")),
        ("a NUL in a value", format!("{ours}X: a\0b\r\n\r\n")),
        ("a name that is no token", format!("{ours}X(Y): a\r\n\r\n")),
        ("no Host", "GET http://api.example.com/ HTTP/1.1\r\n\r\n".into()),
        ("two Hosts", format!("{ours}Host: api.example.com\r\n\r\n")),
        ("another Host", "GET http://api.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n".into()),
        ("two lengths", format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab")),
        ("the same length twice", format!("{post}Content-Length: 1\r\nContent-Length: 1\r\n\r\na")),
        ("a signed length", format!("{post}Content-Length: +1\r\n\r\na")),
        ("a list of lengths", format!("{post}Content-Length: 1, 1\r\n\r\na")),
        ("a length too large", format!("{post}Content-Length: 99999999999999999999\r\n\r\na")),
        ("length and chunks", format!("{post}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")),
        ("chunks and length", format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n")),
        ("another coding", format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")),
        ("chunked twice", format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")),
        ("a disguised coding", format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n")),
        ("chunks in HTTP/1.0", "POST http://api.example.com/ HTTP/1.0\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into()),
        ("HTTP/2.0 in words", "GET http://api.example.com/ HTTP/2.0\r\nHost: api.example.com\r\n\r\n".into()),
        ("HTTP/1.2", "GET http://api.example.com/ HTTP/1.2\r\nHost: api.example.com\r\n\r\n".into()),
        ("origin-form", "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into()),
        ("https in absolute-form", "GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into()),
        ("user information", "GET http://a@api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into()),
        ("CONNECT without a port", "CONNECT api.example.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into()),
        ("CONNECT to port 0", "CONNECT api.example.com:0 HTTP/1.1\r\nHost: api.example.com:0\r\n\r\n".into()),
        ("CONNECT to port 65536", "CONNECT api.example.com:65536 HTTP/1.1\r\nHost: api.example.com:65536\r\n\r\n".into()),
        ("CONNECT in absolute-form", "CONNECT http://api.example.com:80/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n".into()),
        ("CONNECT with a NUL in the host", "CONNECT evil\0.example.com:80 HTTP/1.1\r\nHost: x\r\n\r\n".into()),
        ("CONNECT with an encoded dot", "CONNECT api%2eexample.com:80 HTTP/1.1\r\nHost: api%2eexample.com:80\r\n\r\n".into()),
        ("CONNECT with a zone", "CONNECT [fe80::1%25eth0]:80 HTTP/1.1\r\nHost: [fe80::1%25eth0]:80\r\n\r\n".into()),
    ];
    for (name, bytes) in cases {
        let answer = stage.exchange(bytes);
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
        let refusal = answer.refusal();
        assert!(refusal["error"].is_string() && refusal["detail"].is_string(), "{name}: {refusal}");
    }
    assert_eq!(stage.origin.arrived(), 0);
    // Control: the well-formed ones pass.
    let answer = stage.exchange(format!("{ours}Connection: close\r\n\r\n"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = stage.exchange(format!("{post}Content-Length: 1\r\nConnection: close\r\n\r\na"));
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn a_malformed_second_request_is_refused_like_a_first() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    stream.write_all(b"GET http://api.example.com/one HTTP/1.1\r\nHost: api.example.com\r\n\r\n").expect("send");
    assert_eq!(Answer::read(&mut stream).status, 200);
    stream
        .write_all(b"GET http://api.example.com/two HTTP/1.1\r\nHost: api.example.com\r\nX : y\r\n\r\n")
        .expect("send");
    let answer = Answer::read(&mut stream);
    assert_eq!(answer.status, 400, "{answer:?}");
    answer.refusal();
    assert_eq!(stage.received.lock().expect("lock").len(), 1);
}

#[test]
fn heads_beyond_the_bound_are_431() {
    let stage = Stage::new();
    let long = "x".repeat(70_000);
    for bytes in [
        format!("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\nX: {long}\r\n\r\n"),
        format!("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nX: {long}\r\n\r\n"),
        format!("GET http://api.example.com/{long} HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
        format!("GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n{}\r\n", "a: b\r\n".repeat(2_000)),
    ] {
        let answer = stage.exchange(bytes);
        assert_eq!(answer.status, 431, "{answer:?}");
        answer.refusal();
    }
    assert_eq!(stage.origin.arrived(), 0);
}

#[test]
fn what_cannot_be_resolved_or_reached_is_502_and_says_so() {
    let stage = Stage::new();
    origins::know_no_name(&stage.world);
    let unresolvable =
        stage.exchange("CONNECT nowhere.example.com:80 HTTP/1.1\r\nHost: nowhere.example.com:80\r\n\r\n");
    assert_eq!(unresolvable.status, 502, "{unresolvable:?}");
    assert!(unresolvable.body.contains("nowhere.example.com"));
    unresolvable.refusal();
    let unreachable = stage.exchange("CONNECT api.example.com:81 HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n");
    assert_eq!(unreachable.status, 502, "{unreachable:?}");
    assert!(
        unreachable.refusal()["detail"].as_str().is_some_and(|detail| detail.contains("refused")),
        "{unreachable:?}"
    );
    let forward = stage.exchange("GET http://api.example.com:81/ HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n");
    assert_eq!(forward.status, 502, "{forward:?}");
    forward.refusal();
}

#[test]
fn keep_alive_holds_on_both_legs_and_requests_are_judged_one_by_one() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    for index in 0..20 {
        write!(stream, "GET http://api.example.com/{index} HTTP/1.1\r\nHost: api.example.com\r\n\r\n").expect("send");
        let answer = Answer::read(&mut stream);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.contains(&format!("GET /{index} ")), "{answer:?}");
        if index == 10 {
            write!(stream, "GET http://denied.example.com/ HTTP/1.1\r\nHost: denied.example.com\r\n\r\n")
                .expect("send");
            let denied = Answer::read(&mut stream);
            assert_eq!(denied.status, 403, "{denied:?}");
            assert_eq!(denied.refusal()["error"], "policy_denied");
        }
    }
    assert_eq!(stage.origin.arrived(), 1, "one connection upstream serves them all");
}

#[test]
fn a_denied_connect_leaves_the_connection_usable() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    stream.write_all(b"CONNECT denied.example.com:443 HTTP/1.1\r\nHost: denied.example.com:443\r\n\r\n").expect("send");
    let denied = Answer::read(&mut stream);
    assert_eq!(denied.status, 403, "{denied:?}");
    assert!(
        denied.head.contains("X-OpenShell-Policy") || denied.head.to_ascii_lowercase().contains("x-openshell-policy"),
        "{denied:?}"
    );
    stream.write_all(b"CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n").expect("send");
    assert_eq!(Answer::read(&mut stream).status, 200);
    stream.write_all(b"GET /through HTTP/1.1\r\nHost: api.example.com\r\n\r\n").expect("send");
    assert!(Answer::read(&mut stream).body.contains("GET /through"));
}

#[test]
fn bytes_forwarded_are_the_bytes_received() {
    let stage = Stage::new();
    let target = "/a%2Fb/%7euser/x;y=1?q=%20&Q=2";
    let answer = stage.exchange(format!(
        "POST http://api.example.com{target} HTTP/1.1\r\nHost: api.example.com\r\nX-MiXed-Case: Value\r\nProxy-Connection: \
         keep-alive\r\nConnection: X-Hop\r\nX-Hop: gone\r\nContent-Length: 4\r\n\r\nbody"
    ));
    assert_eq!(answer.status, 200, "{answer:?}");
    let received = stage.received.lock().expect("lock").pop().expect("a request");
    assert!(received.head.starts_with(&format!("POST {target} HTTP/1.1\r\n")), "{received:?}");
    assert!(received.head.contains("X-MiXed-Case: Value\r\n"), "{received:?}");
    let lower = received.head.to_ascii_lowercase();
    assert!(!lower.contains("proxy-connection") && !lower.contains("x-hop"), "{received:?}");
    assert_eq!(lower.matches("\r\nhost: api.example.com\r\n").count(), 1, "{received:?}");
    assert!(lower.contains("\r\nvia: "), "{received:?}");
    assert_eq!(received.body, b"body");
}

#[test]
fn half_closes_are_kept_and_nothing_is_lost() {
    let stage = Stage::new();
    let _echo = Origin::start(&stage.world, 7, origins::echo);
    let mut stream = stage.connect();
    let payload: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    // The first bytes ride along with the head.
    let mut opening = b"CONNECT api.example.com:7 HTTP/1.1\r\nHost: api.example.com:7\r\n\r\n".to_vec();
    opening.extend_from_slice(&payload[..1000]);
    stream.write_all(&opening).expect("send");
    let mut head = [0; 1024];
    let mut filled = 0;
    while !head[..filled].ends_with(b"\r\n\r\n") {
        filled += stream.read(&mut head[filled..filled + 1]).expect("the head");
    }
    let mut sender = stream.try_clone().expect("clone");
    let rest = payload[1000..].to_vec();
    let sending = std::thread::spawn(move || {
        sender.write_all(&rest).expect("send");
        sender.shutdown(Shutdown::Write).expect("half-close");
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("the echo");
    sending.join().expect("sent");
    assert_eq!(back.len(), payload.len());
    assert!(back == payload, "bytes changed on their way");
}

#[test]
fn servers_that_speak_first_are_heard_at_once() {
    let stage = Stage::new();
    let _mail = Origin::start(&stage.world, 25, origins::banner("220 mail.example.com ESMTP\r\n"));
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let mut stream = stage.connect();
        stream.write_all(b"CONNECT mail.example.com:25 HTTP/1.1\r\nHost: mail.example.com:25\r\n\r\n").expect("send");
        let mut seen = String::new();
        let mut buffer = [0; 512];
        while !seen.contains("ESMTP") {
            let length = stream.read(&mut buffer).expect("read");
            assert!(length > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        best = best.min(started.elapsed());
    }
    assert!(best < Duration::from_millis(50), "{best:?}");
}

#[test]
fn destinations_are_judged_by_their_canonical_address() {
    // Each spelling of a place that is never reached, named by the policy on purpose.
    let forbidden = [
        "127.0.0.1",
        "localhost.example.com",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:7f00:1::]",
        "[fd00:ec2::254]",
        "168.63.129.16",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[ff02::1]",
        "[fe80::1]",
    ];
    let stage = Stage::with(&[
        "api.example.com:80",
        "localhost.example.com:80",
        "10.99.0.2:80",
        "127.0.0.1:80",
        "169.254.169.254:80",
    ]);
    stage.world.hosts(&format!("{ORIGIN_V4} api.example.com\n127.0.0.1 localhost.example.com\n"));
    let _local = stage.world.in_machine(|| std::net::TcpListener::bind("127.0.0.1:80").expect("bind"));
    for host in forbidden {
        let answer = stage.exchange(format!("CONNECT {host}:80 HTTP/1.1\r\nHost: {host}:80\r\n\r\n"));
        assert_eq!(answer.status, 403, "{host}: {answer:?}");
        answer.refusal();
    }
    // Control: the private address that the policy names exactly.
    for host in ["10.99.0.2", "0x0a630002", "API.EXAMPLE.COM", "api.example.com."] {
        let answer = stage.exchange(format!("CONNECT {host}:80 HTTP/1.1\r\nHost: {host}:80\r\n\r\n"));
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
    }
}

#[test]
fn the_proxy_never_dials_itself() {
    let stage = Stage::with(&["10.99.0.1:3128", "127.0.0.1:3128", "self.example.com:3128"]);
    stage.world.hosts("10.99.0.1 self.example.com\n");
    for (host, status) in [("127.0.0.1", 403), ("10.99.0.1", 502), ("self.example.com", 502)] {
        let answer = stage.exchange(format!("CONNECT {host}:3128 HTTP/1.1\r\nHost: {host}:3128\r\n\r\n"));
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
}
