use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::egress::tls::{HTTP1, HTTP2};

/// What rustls sends first.
fn by_rustls(name: &'static str, alpn: &[&[u8]]) -> Vec<u8> {
    let mut config = rustls::ClientConfig::builder_with_provider(super::super::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn vector16(content: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(content.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(content);
    bytes
}

fn vector8(content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(content.len()).unwrap()];
    bytes.extend(content);
    bytes
}

/// A hello made by hand: legacy version, and extensions by number.
fn by_hand(version: u16, extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    body.extend([7; 32]);
    body.extend(vector8(&[]));
    body.extend(vector16(&[0x13, 0x01, 0xc0, 0x2b]));
    body.extend(vector8(&[0]));
    let mut list = Vec::new();
    for (kind, content) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend(vector16(content));
    }
    body.extend(vector16(&list));
    let mut message = vec![CLIENT_HELLO, 0];
    message.extend(vector16(&body));
    message
}

/// The message in records of at most `size` bytes.
fn in_records(message: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for fragment in message.chunks(size) {
        bytes.extend([HANDSHAKE, 3, 1]);
        bytes.extend(vector16(fragment));
    }
    bytes
}

fn sni(name: &[u8]) -> (u16, Vec<u8>) {
    let mut entry = vec![0];
    entry.extend(vector16(name));
    (SERVER_NAME, vector16(&entry))
}

fn offered_versions(versions: &[u16]) -> (u16, Vec<u8>) {
    let bytes: Vec<u8> = versions.iter().flat_map(|version| version.to_be_bytes()).collect();
    (SUPPORTED_VERSIONS, vector8(&bytes))
}

fn offered_protocols(names: &[&[u8]]) -> (u16, Vec<u8>) {
    let list: Vec<u8> = names.iter().flat_map(|name| vector8(name)).collect();
    (ALPN, vector16(&list))
}

fn hello_of(extensions: &[(u16, Vec<u8>)]) -> Sniff {
    sniff(&in_records(&by_hand(TLS12, extensions), RECORD_BYTES))
}

#[track_caller]
fn tls(verdict: Sniff) -> Hello {
    match verdict {
        Sniff::Tls(hello) => hello,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(verdict: &Sniff, word: &str) {
    assert!(matches!(verdict, Sniff::Other(reason) if reason.contains(word)), "{verdict:?}, expected {word:?}");
}

#[test]
fn a_hello_of_rustls_is_read() {
    let hello = tls(sniff(&by_rustls("API.example.com", &[HTTP2, HTTP1])));
    assert_eq!(hello.server_name.as_deref(), Some("api.example.com"));
    assert_eq!(hello.alpn, [HTTP2, HTTP1]);
    assert_eq!(hello.versions, [TLS13, TLS12]);
    assert!(!hello.ech && hello.offers(HTTP2) && !hello.offers(b"h3"));
    // An address is not named (RFC 6066 §3).
    let hello = tls(sniff(&by_rustls("192.0.2.1", &[])));
    assert_eq!((hello.server_name, hello.alpn), (None, Vec::<Vec<u8>>::new()));
}

#[test]
fn every_way_to_cut_it_gives_the_same_hello() {
    let bytes = by_rustls("api.example.com", &[HTTP2]);
    let whole = tls(sniff(&bytes));
    for end in 0..bytes.len() {
        assert_eq!(sniff(&bytes[..end]), Sniff::More, "{end}");
    }
    // What follows belongs to the connection.
    assert_eq!(tls(sniff(&[&bytes[..], b"\x17\x03\x03"].concat())), whole);
    let message = &bytes[5..];
    for size in [1, 2, 3, 4, 5, 63, 64, message.len() - 1] {
        let records = in_records(message, size);
        assert_eq!(tls(sniff(&records)), whole, "records of {size}");
        for end in (0..records.len()).step_by(7) {
            assert_eq!(sniff(&records[..end]), Sniff::More, "records of {size}, {end} bytes");
        }
    }
}

#[test]
fn grease_is_ignored_and_ech_is_told() {
    let grease = [0x0a0a, 0x1a1a, 0xfafa];
    assert!(grease.into_iter().all(is_grease) && !is_grease(TLS13) && !is_grease(0x0a1a));
    let hello = tls(hello_of(&[
        (0x2a2a, vec![]),
        sni(b"api.example.com"),
        offered_protocols(&[b"\x8a\x8a", b"h2"]),
        offered_versions(&[0x4a4a, TLS13, TLS12]),
        (0xfafa, vec![0]),
        (ENCRYPTED_CLIENT_HELLO, vec![0; 40]),
    ]));
    assert_eq!(hello.server_name.as_deref(), Some("api.example.com"));
    assert_eq!((hello.alpn, hello.versions), (vec![HTTP2.to_vec()], vec![TLS13, TLS12]));
    assert!(hello.ech);
}

#[test]
fn the_name_asked_for_is_compared_with_the_host() {
    let asks = |name: &[u8], host: &str| tls(hello_of(&[sni(name)])).is_for(&Host::parse(host).unwrap());
    assert!(asks(b"API.Example.com", "api.example.com"));
    assert!(!asks(b"other.example.com", "api.example.com"));
    assert!(!asks(b"xapi.example.com", "api.example.com"));
    assert!(asks(b"192.0.2.1", "192.0.2.1") && !asks(b"192.0.2.1", "192.0.2.2"));
    assert!(asks(b"2001:DB8::1", "2001:db8::1"));
    assert!(!asks(b"192.0.2.1", "api.example.com") && !asks(b"api.example.com", "192.0.2.1"));
    assert!(tls(hello_of(&[])).is_for(&Host::parse("api.example.com").unwrap()));
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for (extensions, word) in [
        (vec![sni(b"a.example.com"), sni(b"b.example.com")], "twice"),
        (vec![offered_versions(&[TLS13]), offered_versions(&[TLS13])], "twice"),
        (vec![sni(b"a\0.example.com")], "no host name"),
        (vec![sni(b"a.example.com.")], "no host name"),
        (vec![sni(b"")], "no host name"),
        (vec![sni("m\u{fc}nchen.example.com".as_bytes())], "no host name"),
        (vec![sni(b"a.example.com/x")], "no host name"),
        (vec![(SERVER_NAME, vector16(&[[0, 0, 1, b'a'], [0, 0, 1, b'b']].concat()))], "more than one name"),
        (vec![(SERVER_NAME, vector16(&[1, 0, 1, b'a']))], "no host name"),
        (vec![(SERVER_NAME, vec![])], "malformed"),
        (vec![(SERVER_NAME, vec![0, 9, 0])], "malformed"),
        (vec![offered_protocols(&[])], "malformed"),
        (vec![offered_protocols(&[b"h2", b""])], "malformed"),
        (vec![(ALPN, [vector16(&vector8(b"h2")), vec![0]].concat())], "malformed"),
        (vec![offered_versions(&[0x0302, 0x0301])], "above 1.1"),
        (vec![offered_versions(&[])], "above 1.1"),
        (vec![offered_versions(&[0x5a5a])], "above 1.1"),
    ] {
        refused(&hello_of(&extensions), word);
    }
    // The control: the same hand makes hellos that are read.
    tls(hello_of(&[sni(b"a.example.com"), offered_versions(&[TLS13]), offered_protocols(&[b"h2"])]));
}

#[test]
fn outdated_and_misshapen_hellos_are_refused() {
    let records = |message: &[u8]| sniff(&in_records(message, RECORD_BYTES));
    for version in [0x0300, 0x0301, 0x0302] {
        refused(&records(&by_hand(version, &[])), "above 1.1");
    }
    assert_eq!(tls(records(&by_hand(TLS12, &[]))).versions, [TLS12], "control");
    assert_eq!(tls(records(&by_hand(TLS13, &[]))).versions, [TLS12], "1.3 takes the extension");
    // SSL 2.0, and its hello for newer versions.
    for bytes in [&[0x80, 0x2e, 1, 0, 2, 0][..], &[0x80, 0x2e, 1, 3, 1, 0][..]] {
        refused(&sniff(bytes), "SSL 2.0");
        assert_eq!(sniff(&bytes[..3]), Sniff::More);
    }
    refused(&sniff(&[0xff, 0xff, 0xff, 0xff]), "neither");
    let message = by_hand(TLS12, &[sni(b"a.example.com")]);
    let good = in_records(&message, 32);
    tls(sniff(&good));
    // Something between the parts (the second record starts at 37), an empty record, one that is too long.
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        sniff(&bytes)
    };
    refused(&with(37, 21), "between");
    refused(&with(38, 2), "neither");
    refused(&with(39 + 2, 0), "empty");
    refused(&sniff(&[HANDSHAKE, 3, 1, 0x40, 1]), "2^14");
    refused(&sniff(&in_records(&[2, 0, 0, 0], 4)), "something else than a ClientHello");
    refused(&sniff(&in_records(&[CLIENT_HELLO, 1, 0, 1], 4)), "64 KiB");
    let mut trailing = message.clone();
    trailing.push(0);
    trailing[3] += 1;
    refused(&records(&trailing), "malformed");
    // One that never ends is given up.
    let mut endless = vec![CLIENT_HELLO, 1, 0, 0];
    endless.resize(HELLO_BYTES, 0);
    let endless = in_records(&endless, 1000);
    assert_eq!(sniff(&endless[..HELLO_BYTES - 1]), Sniff::More);
    refused(&sniff(&endless[..HELLO_BYTES]), "64 KiB");
}

#[test]
fn http_is_told_from_everything_else() {
    for text in [
        "GET / HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "M-SEARCH /",
        "get /",
        "POST http://a/",
        "\r\nGET /x",
        "CONNECT a:443 HTTP/1.1",
        "PRI /",
        "GET HTTPS://a",
    ] {
        assert_eq!(sniff(text.as_bytes()), Sniff::Http1, "{text:?}");
    }
    for end in 1..HTTP2_PREFACE.len() {
        assert_eq!(sniff(&HTTP2_PREFACE[..end]), Sniff::More);
    }
    assert_eq!(sniff(HTTP2_PREFACE), Sniff::Http2);
    assert_eq!(sniff(&[HTTP2_PREFACE, b"\0\0\0\x04"].concat()), Sniff::Http2);
    for text in ["", "G", "GET", "GET ", "GET ht", "\r\n"] {
        assert_eq!(sniff(text.as_bytes()), Sniff::More, "{text:?}");
    }
    for text in [
        "SSH-2.0-x\r\n",
        "EHLO a\r\n",
        "PING\r\n",
        " GET /",
        "GET\t/",
        "GET  /",
        "A1 LOGIN",
        "\0",
        "AVERYLONGWORDTHATISNOMETHOD",
        "GET hx",
    ] {
        refused(&sniff(text.as_bytes()), "neither TLS nor HTTP");
    }
}

#[test]
fn a_hello_of_openssl_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (arguments, versions) in [
        (&["-alpn", "h2,http/1.1"][..], &[TLS13, TLS12][..]),
        (&["-alpn", "h2,http/1.1", "-tls1_2"][..], &[TLS12][..]),
        (&["-alpn", "h2,http/1.1", "-tls1_3", "-split_send_frag", "128", "-max_send_frag", "512"][..], &[TLS13][..]),
    ] {
        let spawned = Command::new("openssl")
            .args(["s_client", "-connect", &address, "-servername", "api.example.com"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut openssl = spawned.expect("openssl, which .ci/run installs");
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        let mut part = [0; 100];
        let hello = loop {
            let count = stream.read(&mut part).unwrap();
            assert_ne!(count, 0, "{bytes:?}");
            bytes.extend_from_slice(&part[..count]);
            match sniff(&bytes) {
                Sniff::More => {}
                verdict => break tls(verdict),
            }
        };
        let _ = openssl.kill();
        let _ = openssl.wait();
        assert_eq!(hello.server_name.as_deref(), Some("api.example.com"));
        // Some builds offer what nobody takes as well.
        let served: Vec<u16> = hello.versions.into_iter().filter(|version| *version >= TLS12).collect();
        assert_eq!((hello.alpn, &served[..]), (vec![HTTP2.to_vec(), HTTP1.to_vec()], versions));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = sniff(&bytes);
    }

    #[test]
    fn no_change_makes_it_panic(
        changes in prop::collection::vec((0_usize..400, any::<u8>()), 1..6), size in 1_usize..400, end in 0_usize..600,
    ) {
        let mut message = by_rustls("api.example.com", &[HTTP2])[5..].to_vec();
        for (at, byte) in changes {
            let length = message.len();
            message[at % length] = byte;
        }
        let records = in_records(&message, size);
        let cut = sniff(&records[..end.min(records.len())]);
        // A verdict on a part is the verdict on the whole.
        if cut != Sniff::More {
            prop_assert_eq!(cut, sniff(&records));
        }
    }

    #[test]
    fn any_cut_into_records_and_reads_gives_the_same_hello(sizes in prop::collection::vec(1_usize..200, 1..40)) {
        let bytes = by_rustls("api.example.com", &[HTTP1]);
        let (mut records, mut rest) = (Vec::new(), &bytes[5..]);
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (fragment, after) = rest.split_at((*size).min(rest.len()));
            records.extend(in_records(fragment, size + 1));
            rest = after;
        }
        prop_assert_eq!(tls(sniff(&records)), tls(sniff(&bytes)));
    }
}
