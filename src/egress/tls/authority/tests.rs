use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::egress::tls::tests::{client, file, shake};
use crate::egress::tls::{HTTP1, HTTP2};

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

fn leaf_of(authority: &Authority, name: &str) -> Summary {
    Summary::read(&authority.leaf(&host(name), UnixTime::now().as_secs()).unwrap().0).unwrap()
}

#[tokio::test]
async fn a_client_that_trusts_the_ca_gets_the_host_and_the_protocol() {
    let authority = Authority::generate(Some("demo")).unwrap();
    let long = "a-host-with-a-name-longer-than-a-common-name-may-be.for-certificates.example.com";
    for (asked, protocol) in [
        ("api.example.com", Some(HTTP2)),
        ("api.example.com", Some(HTTP1)),
        ("api.example.com", None),
        ("127.0.0.1", None),
        ("2001:db8::1", Some(HTTP1)),
        (long, Some(HTTP2)),
        ("a_b.example.com", None),
    ] {
        let config = authority.server_config(&host(asked), protocol).unwrap();
        let trusting = client(authority.certificate_pem(), &[HTTP2, HTTP1]);
        let (mut near, mut far) = shake(&trusting, &config, asked).await.unwrap();
        assert_eq!(near.get_ref().1.alpn_protocol(), protocol, "{asked}");
        near.write_all(b"ping").await.unwrap();
        near.flush().await.unwrap();
        let mut received = [0; 4];
        far.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"ping");
    }
    // Another CA, and another host's certificate.
    let config = authority.server_config(&host("api.example.com"), None).unwrap();
    let stranger = Authority::generate(Some("demo")).unwrap();
    assert!(shake(&client(stranger.certificate_pem(), &[]), &config, "api.example.com").await.is_err());
    assert!(shake(&client(authority.certificate_pem(), &[]), &config, "other.example.com").await.is_err());
}

#[test]
fn certificates_are_what_clients_demand() {
    let authority = Authority::generate(None).unwrap();
    let now = UnixTime::now().as_secs();
    let (one, other) = (leaf_of(&authority, "a.example.com"), leaf_of(&authority, "b.example.com"));
    assert!(one.not_before < now - 3600 && one.not_after - one.not_before < 398 * DAY && one.not_after > now + DAY);
    assert!(!one.signs && one.public_key == other.public_key);
    let ca = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).unwrap();
    let ca = Summary::read(&ca).unwrap();
    assert!(ca.signs && ca.subject == one.issuer && ca.not_after >= one.not_after && ca.public_key != one.public_key);
    assert!(super::super::x509::name(&ca.subject).contains(COMMON_NAME));
    // Serial numbers never repeat: two of one host differ in them, the signature apart.
    let serial = || blank(0, 1).unwrap().serial_number.unwrap().to_bytes();
    assert!((0..100).map(|_| serial()).collect::<std::collections::HashSet<_>>().len() == 100);
}

#[test]
fn configurations_are_kept_and_their_number_is_bounded() {
    let authority = Authority::generate(None).unwrap();
    let config = |name: &str, alpn| authority.server_config(&host(name), alpn).unwrap();
    let first = config("a.example.com", Some(HTTP2));
    assert!(Arc::ptr_eq(&first, &config("a.example.com", Some(HTTP2))));
    assert!(!Arc::ptr_eq(&first, &config("a.example.com", Some(HTTP1))));
    assert!(!Arc::ptr_eq(&first, &config("b.example.com", Some(HTTP2))));
    for number in 0..CONFIGURATIONS.get() {
        config(&format!("h{number}.example.com"), None);
    }
    assert_eq!(authority.configurations.lock().unwrap().len(), CONFIGURATIONS.get());
    assert!(!Arc::ptr_eq(&first, &config("a.example.com", Some(HTTP2))));
    // One that is past the half of its life is made anew.
    let last = config("h1.example.com", None);
    authority.configurations.lock().unwrap().get_mut(&(host("h1.example.com"), None)).unwrap().renew = 1;
    assert!(!Arc::ptr_eq(&last, &config("h1.example.com", None)));
}

#[tokio::test]
async fn a_session_is_resumed_with_its_own_host_alone() {
    async fn kind(trusting: &Arc<rustls::ClientConfig>, config: &Arc<ServerConfig>) -> std::io::Result<HandshakeKind> {
        let (mut near, mut far) = shake(trusting, config, "a.example.com").await?;
        let kind = near.get_ref().1.handshake_kind().unwrap();
        // Tickets come behind the handshake (RFC 8446 §4.6.1).
        far.write_all(b"x").await?;
        far.flush().await?;
        near.read_u8().await?;
        Ok(kind)
    }
    let authority = Authority::generate(None).unwrap();
    let config = |name: &str, alpn| authority.server_config(&host(name), alpn).unwrap();
    let trusting = client(authority.certificate_pem(), &[]);
    let mine = config("a.example.com", None);
    assert_eq!(kind(&trusting, &mine).await.unwrap(), HandshakeKind::Full);
    assert_eq!(kind(&trusting, &mine).await.unwrap(), HandshakeKind::Resumed, "control");
    // The client shows its ticket for the first host to the second: were it taken, no certificate would be shown.
    let error = kind(&trusting, &config("b.example.com", None)).await.unwrap_err();
    assert!(error.to_string().contains("not valid for name"), "{error}");
    kind(&trusting, &mine).await.unwrap();
    assert_eq!(kind(&trusting, &config("a.example.com", Some(HTTP2))).await.unwrap(), HandshakeKind::Full);
}

/// A CA made by hand: its certificate, and how to sign with it.
struct Made {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn made(name: &str, above: Option<&Made>, change: impl FnOnce(&mut CertificateParams)) -> Made {
    let now = UnixTime::now().as_secs();
    let mut params = blank(now - DAY, now + 10 * DAY).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = match above {
        Some(above) => params.signed_by(&key, &above.issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    Made { pem: certificate.pem(), issuer: Issuer::new(params, key) }
}

#[tokio::test]
async fn an_operators_ca_signs_with_its_chain() {
    let directory = tempfile::tempdir().unwrap();
    let root = made("Example Root", None, |_| {});
    let below = made("Example Issuing CA", Some(&root), |_| {});
    let key = file(directory.path(), "key", &below.issuer.key().serialize_pem());
    let root_key = file(directory.path(), "root-key", &root.issuer.key().serialize_pem());
    let chain = file(directory.path(), "chain", &format!("{}{}", below.pem, root.pem));
    let alone = file(directory.path(), "alone", &below.pem);
    let top = file(directory.path(), "top", &root.pem);
    for (certificate, key, sent) in [(&chain, &key, 2), (&alone, &key, 2), (&top, &root_key, 1)] {
        let authority = Authority::load(certificate, key).unwrap();
        let config = authority.server_config(&host("api.example.com"), None).unwrap();
        // Who trusts the root alone needs what is between.
        let (near, _) = shake(&client(&root.pem, &[]), &config, "api.example.com").await.unwrap();
        assert_eq!(near.get_ref().1.peer_certificates().unwrap().len(), sent);
        assert!(leaf_of(&authority, "api.example.com").not_after <= UnixTime::now().as_secs() + 10 * DAY);
    }
    assert_eq!(Authority::load(&chain, &key).unwrap().certificate_pem(), format!("{}{}", below.pem, root.pem));
}

#[test]
fn what_is_no_ca_or_not_its_key_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| file(directory.path(), name, text);
    let pair = |name: &str, made: &Made| {
        (put(name, &made.pem), put(&format!("{name}.key"), &made.issuer.key().serialize_pem()))
    };
    let good = made("Good", None, |_| {});
    let (good_pem, good_key) = pair("good", &good);
    Authority::load(&good_pem, &good_key).unwrap();
    let other = made("Other", None, |_| {});
    let (_, other_key) = pair("other", &other);
    let now = UnixTime::now().as_secs();
    let day = |at: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(at);
    let bad = [
        ("leaf", made("Leaf", None, |params| params.is_ca = IsCa::ExplicitNoCa), "not a CA's certificate"),
        (
            "v1",
            made("Old", None, |params| {
                params.is_ca = IsCa::NoCa;
                params.key_usages.clear();
            }),
            "not a CA's certificate",
        ),
        (
            "usage",
            made("Usage", None, |params| params.key_usages = vec![KeyUsagePurpose::CrlSign]),
            "not a CA's certificate",
        ),
        ("past", made("Past", None, |params| params.not_after = day(now - 3600)), "expired since 20"),
        ("future", made("Future", None, |params| params.not_before = day(now + 3600)), "not valid before 20"),
    ];
    for (name, made, says) in &bad {
        let (pem, key) = pair(name, made);
        let error = Authority::load(&pem, &key).unwrap_err().to_string();
        assert!(error.starts_with(pem.to_str().unwrap()) && error.contains(says), "{error}");
    }
    let unusable = made("Constrained", None, |params| {
        params.name_constraints = Some(rcgen::NameConstraints {
            permitted_subtrees: vec![rcgen::GeneralSubtree::DnsName("example.com".into())],
            excluded_subtrees: vec![],
        });
    });
    let (pem, key) = pair("constrained", &unusable);
    let error = Authority::load(&pem, &key).unwrap_err().to_string();
    assert!(error.contains("signed by this CA is not accepted"), "{error}");
    for (pem, key, says) in [
        (&good_pem, &other_key, "not the key of the certificate in"),
        (&good_pem, &good_pem, "no private key can be read"),
        (
            &good_pem,
            &put("sec1", "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"),
            "`EC PRIVATE KEY`",
        ),
        (
            &good_pem,
            &put("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"),
            "encrypted",
        ),
        (&good_pem, &put("junk", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "cannot be used"),
        (&good_pem, &directory.path().join("missing"), "missing"),
        (&put("two", &format!("{}{}", good.pem, other.pem)), &good_key, "certificate 2 is not the issuer"),
        (&put("twice", &format!("{}{}", good.pem, good.pem)), &good_key, "certificate 2 is not the issuer"),
    ] {
        let error = Authority::load(pem, key).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn the_advice_for_a_key_of_another_form_is_a_command_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other.key");
    let mine = directory.path().join("mine.key");
    let run = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        Command::new("openssl")
            .args(arguments)
            .current_dir(directory.path())
            .output()
            .expect("openssl, which .ci/run installs")
    };
    assert!(run("ecparam -name prime256v1 -genkey -noout -out other.key").status.success());
    let new =
        "req -new -x509 -key other.key -out ca.pem -days 2 -subj /CN=Example -addext keyUsage=critical,keyCertSign";
    assert!(run(new).status.success());
    let certificate = directory.path().join("ca.pem");
    let error = Authority::load(&certificate, &other).unwrap_err().to_string();
    assert!(error.contains("it is an `EC PRIVATE KEY`"), "{error}");
    let advice = error.split("as `openssl ").nth(1).and_then(|rest| rest.split('`').next()).expect("advice");
    let made = run(&format!("{advice} -in other.key -out mine.key"));
    assert!(made.status.success(), "{advice}: {}", String::from_utf8_lossy(&made.stderr));
    Authority::load(&certificate, &mine).unwrap();
}

/// Serves one line of HTTP as `name` to whoever comes, until the test ends.
fn serve(authority: &Authority, name: &str) -> SocketAddr {
    let config = authority.server_config(&host(name), Some(HTTP1)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::Stream::new(&mut session, &mut stream);
            let mut head = [0; 1024];
            if tls.read(&mut head).is_ok_and(|count| count > 0) {
                let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
            }
            session.send_close_notify();
            let _ = session.write_tls(&mut stream);
        }
    });
    address
}

/// A real client's outcome; `None` where the machine does not have it.
fn outcome(program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    // Whatever this machine trusts is not to help.
    for name in ["SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"] {
        command.env_remove(name);
    }
    command.args(arguments).stdin(std::process::Stdio::null()).output().ok()
}

#[test]
fn real_clients_accept_it_and_only_with_the_ca() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::generate(Some("demo")).unwrap();
    let stranger = Authority::generate(Some("demo")).unwrap();
    let ca = file(directory.path(), "ca.pem", authority.certificate_pem());
    let wrong = file(directory.path(), "wrong.pem", stranger.certificate_pem());
    let (ca, wrong) = (ca.to_str().unwrap(), wrong.to_str().unwrap());
    let ports =
        [("api.example.com", serve(&authority, "api.example.com")), ("127.0.0.1", serve(&authority, "127.0.0.1"))];
    // Strict: what Python 3.13 and OpenSSL's X509_V_FLAG_X509_STRICT demand of every certificate.
    let python = "import socket, ssl, sys\n\
        ca, name, port = sys.argv[1:]\n\
        context = ssl.create_default_context(cafile=ca)\n\
        context.verify_flags |= ssl.VERIFY_X509_STRICT\n\
        tls = context.wrap_socket(socket.create_connection(('127.0.0.1', int(port))), server_hostname=name)\n\
        tls.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\n\
        print(tls.recv(100))\n";
    for (name, address) in ports {
        let port = address.port().to_string();
        let (url, at) = (format!("https://{name}:{port}/"), address.to_string());
        let resolve = format!("{name}:{port}:127.0.0.1");
        for (trusted, good) in [(ca, true), (wrong, false)] {
            let verify = if name == "127.0.0.1" { "-verify_ip" } else { "-verify_hostname" };
            let s_client = [
                "s_client",
                "-connect",
                &at,
                "-servername",
                name,
                "-CAfile",
                trusted,
                "-verify_return_error",
                verify,
                name,
            ];
            for (program, arguments) in [
                ("curl", &["-sS", "--noproxy", "*", "--cacert", trusted, "--resolve", &resolve, &url][..]),
                ("python3", &["-c", python, trusted, name, &port][..]),
                ("openssl", &s_client[..]),
            ] {
                if let Some(output) = outcome(program, arguments) {
                    assert_eq!(output.status.success(), good, "{program} for {name}, {trusted}: {output:?}");
                }
            }
        }
    }
}
