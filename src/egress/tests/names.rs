use super::*;
use std::net::{IpAddr, Ipv4Addr};
use tokio::net::UdpSocket;

/// A name server: `answers` gives the addresses of a name, `None` for NXDOMAIN.
async fn server(answers: impl Fn(&str) -> Option<Vec<IpAddr>> + Send + 'static) -> (u16, Arc<Mutex<Vec<String>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    tokio::spawn(async move {
        let mut query = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut query).await.unwrap();
            let query = &query[..length];
            // RFC 1035 §4.1: header of 12 bytes, labels, type, class.
            let (mut name, mut at) = (String::new(), 12);
            while query[at] != 0 {
                let label = &query[at + 1..at + 1 + usize::from(query[at])];
                name = format!("{name}{}.", String::from_utf8_lossy(label).to_ascii_lowercase());
                at += label.len() + 1;
            }
            let name = name.trim_end_matches('.').to_owned();
            let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
            log.lock().unwrap().push(name.clone());
            let found = answers(&name);
            let records: Vec<Vec<u8>> = found
                .iter()
                .flatten()
                .filter_map(|address| match (address, kind) {
                    (IpAddr::V4(address), 1) => Some(address.octets().to_vec()),
                    (IpAddr::V6(address), 28) => Some(address.octets().to_vec()),
                    _ => None,
                })
                .collect();
            let mut reply = query[..2].to_vec();
            reply.extend([0x81, if found.is_some() { 0x80 } else { 0x83 }, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
            reply.extend(&query[12..at + 5]);
            for record in records {
                reply.extend([0xc0, 12]);
                reply.extend(kind.to_be_bytes());
                reply.extend([0, 1, 0, 0, 0, 0]);
                reply.extend((record.len() as u16).to_be_bytes());
                reply.extend(record);
            }
            socket.send_to(&reply, from).await.unwrap();
        }
    });
    (port, asked)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn both_families_are_found() {
    let (port, _) = server(|name| (name == "api.example.com").then(|| vec![ip("192.0.2.1"), ip("2001:db8::1")])).await;
    let (_files, resolver) = files("", "nameserver 127.0.0.1\n");
    let mut found = resolver(port).resolve("api.example.com").await.unwrap();
    found.sort();
    assert_eq!(found, [ip("192.0.2.1"), ip("2001:db8::1")]);
}

#[tokio::test]
async fn the_search_list_and_ndots_are_honoured() {
    let (port, asked) = server(|name| (name == "db.prod.svc.example.com").then(|| vec![ip("10.0.0.1")])).await;
    let (_files, resolver) =
        files("", "nameserver 127.0.0.1\nsearch other.example.com svc.example.com\noptions ndots:5\n");
    assert_eq!(resolver(port).resolve("db.prod").await.unwrap(), [ip("10.0.0.1")]);
    assert!(asked.lock().unwrap().iter().any(|name| name == "db.prod.other.example.com"));
    // Enough dots: asked as it is, first.
    let (port, asked) = server(|name| (name == "api.example.com").then(|| vec![ip("192.0.2.1")])).await;
    let (_files, resolver) = files("", "nameserver 127.0.0.1\nsearch svc.example.com\n");
    resolver(port).resolve("api.example.com").await.unwrap();
    assert!(asked.lock().unwrap().iter().all(|name| name == "api.example.com"));
}

#[tokio::test]
async fn the_hosts_file_comes_first_and_is_read_again() {
    let (directory, resolver) = files("# comment\n192.0.2.7 db.example.com DB # x\n::7 db.example.com\nbad line\n", "");
    let resolver = resolver(9);
    assert_eq!(resolver.resolve("db.example.com").await.unwrap(), [ip("192.0.2.7"), ip("::7")]);
    assert_eq!(resolver.resolve("db").await.unwrap(), [ip("192.0.2.7")]);
    write(&directory.path().join("hosts"), "192.0.2.88 db\n");
    assert_eq!(resolver.resolve("db").await.unwrap(), [ip("192.0.2.88")]);
    let error = resolver.resolve("db.example.com").await.unwrap_err().to_string();
    assert!(error.contains("resolv.conf"), "{error}");
}

/// What CONNECT to `host` is answered when it resolves to `addresses`.
async fn connecting(host: &str, pattern: &str, addresses: &[&str]) -> Answer {
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
    let (port, _) = server(move |name| (name == "evil.example.com").then(|| addresses.clone())).await;
    let (_files, resolver) = files("", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
    let fixture = Fixture::new(vec![entry(pattern, &[1])], resolver(port)).await;
    Client::ask(&fixture, format!("CONNECT {host}:1 HTTP/1.1\r\nHost: {host}:1\r\n\r\n")).await.1
}

#[tokio::test]
async fn names_that_lead_inside_are_refused() {
    let glob = "*.example.com";
    for addresses in [
        &["127.0.0.1"][..],
        &["169.254.169.254"],
        &["10.0.0.1"],
        &["8.8.8.8", "10.0.0.1"],
        &["::1"],
        &["::ffff:169.254.169.254"],
        &["64:ff9b::7f00:1"],
        &["8.8.8.8", "fd00:ec2::254"],
        &["100.64.0.1"],
        &["0.0.0.0"],
    ] {
        let answer = connecting("evil.example.com", glob, addresses).await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (403, Some("destination_denied")),
            "{addresses:?} {answer:?}"
        );
    }
    // Not even an exact name opens what is never dialled.
    let exact = "evil.example.com";
    let answer = connecting("evil.example.com", exact, &["127.0.0.1"]).await;
    assert_eq!(answer.json()["error"], "destination_denied");
    // The control: an exact name passes the guard, and fails only for want of a listener.
    let local = IpAddr::V4(local_address());
    let answer = connecting("evil.example.com", exact, &[&local.to_string()]).await;
    assert_ne!(answer.json()["error"], "destination_denied", "{answer:?}");
}

/// An address of this machine that is neither loopback nor dialled anywhere else.
fn local_address() -> Ipv4Addr {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let _ = socket.connect("192.0.2.1:9");
    match socket.local_addr().map(|address| address.ip()) {
        Ok(IpAddr::V4(address)) if !address.is_unspecified() => address,
        // Without a route nothing leaves either, and connecting fails at once.
        _ => Ipv4Addr::new(10, 255, 255, 1),
    }
}

#[tokio::test]
async fn unresolvable_names_are_502_and_say_so() {
    let glob = "*.example.com";
    let answer = connecting("missing.example.com", glob, &[]).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("unresolvable")));
    assert!(answer.json()["detail"].as_str().unwrap().contains("missing.example.com"), "{answer:?}");
    let answer = connecting("evil.example.com", glob, &[]).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("unresolvable")), "{answer:?}");
    // No resolv.conf is no obstacle until a name needs it.
    let fixture = Fixture::with_ports(&[1]).await;
    fixture.swap(&[entry("api.example.com", &[1])]);
    let (_, answer) = Client::ask(&fixture, "CONNECT api.example.com:1 HTTP/1.0\r\n\r\n").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (502, Some("unresolvable")));
    assert!(answer.json()["detail"].as_str().unwrap().contains("/nonexistent/resolv.conf"), "{answer:?}");
}

#[tokio::test]
async fn a_name_server_that_is_silent_is_504() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (_files, resolver) = files("", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
    let resolver = resolver(silent.local_addr().unwrap().port());
    let fixture = Fixture::new(vec![entry("api.example.com", &[1])], resolver).await;
    let (_, answer) = Client::ask(&fixture, "CONNECT api.example.com:1 HTTP/1.0\r\n\r\n").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (504, Some("upstream_timeout")), "{answer:?}");
}

#[tokio::test]
async fn nothing_is_resolved_for_what_is_denied() {
    let (port, asked) = server(|_| Some(vec![ip("192.0.2.1")])).await;
    let (_files, resolver) = files("", "nameserver 127.0.0.1\n");
    let fixture = Fixture::new(vec![entry("api.example.com", &[1])], resolver(port)).await;
    let (_, answer) = Client::ask(&fixture, "CONNECT secret-data.evil.example.com:1 HTTP/1.0\r\n\r\n").await;
    assert_eq!(answer.status, 403);
    assert!(asked.lock().unwrap().is_empty());
}
