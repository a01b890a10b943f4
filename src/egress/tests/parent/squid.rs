//! A corporate proxy that is a real one.

use std::process::{Child, Command, Stdio};

use super::*;

/// squid on this host's loopback, ended when dropped.
struct Squid {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Squid {
    /// With these lines of configuration.
    async fn start(lines: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (port, passwords) = (closed_port(), directory.path().join("passwords"));
        // me:secret, by crypt(3) in the form of Apache's MD5.
        write(&passwords, "me:$apr1$OSVTESTS$AJtSHFbaCrO.AvDQ329Bg/\n");
        set_readable(directory.path());
        let configuration = directory.path().join("squid.conf");
        let lines = lines.replace("PASSWORDS", &passwords.display().to_string());
        write(
            &configuration,
            &format!(
                "http_port 127.0.0.1:{port}\n{lines}\ncache deny all\naccess_log none\ncache_log /dev/null\npid_filename none\n\
                 shutdown_lifetime 0 seconds\ncoredump_dir {}\n",
                directory.path().display()
            ),
        );
        let child = Command::new("squid")
            .args(["-N", "-f"])
            .arg(&configuration)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("squid, which .ci/run installs");
        let squid = Self { child, port, _directory: directory };
        for _ in 0..1000 {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return squid;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("squid does not listen");
    }
}

impl Drop for Squid {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_readable(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_real_proxy_is_asked_as_it_wants_to_be() {
    let squid = Squid::start("http_access allow all").await;
    let echo = echo().await;
    let loopback = [ip("127.0.0.1")];
    let (mut leg, address) = parent(at(squid.port)).tunnel(&api(), echo, &loopback).await.unwrap();
    assert_eq!(address, Some(loopback[0]));
    echoes(&mut leg).await;
    let error = parent(at(squid.port)).tunnel(&api(), closed_port(), &loopback).await.unwrap_err();
    assert!(matches!(error, ParentError::Refused { status: 503, .. }), "{error}");
}

#[tokio::test]
async fn a_real_proxy_takes_our_credentials_and_keeps_its_connection() {
    let lines = "auth_param basic program /usr/lib/squid/basic_ncsa_auth PASSWORDS\nacl known proxy_auth REQUIRED\n\
                 http_access allow known\nhttp_access deny all";
    let squid = Squid::start(lines).await;
    let echo = echo().await;
    let loopback = [ip("127.0.0.1")];
    for (text, sent) in [(None, false), (Some("me:wrong"), true)] {
        let settings = ParentSettings { credentials: text.map(credentials), ..at(squid.port) };
        match parent(settings).tunnel(&api(), echo, &loopback).await.unwrap_err() {
            ParentError::Authentication { sent: told, schemes, .. } => {
                assert_eq!((told, schemes), (sent, vec!["Basic".into()]))
            }
            error => panic!("{error}"),
        }
    }
    let known = parent(ParentSettings { credentials: Some(credentials("me:secret")), ..at(squid.port) });
    let (mut leg, _) = known.tunnel(&api(), echo, &loopback).await.unwrap();
    echoes(&mut leg).await;
    // Requests in absolute form, two on one connection; the origin never sees the password.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let web = origin(move |mut stream| {
        let log = log.clone();
        async move {
            loop {
                let request = head(&mut stream).await;
                if request.is_empty() {
                    return;
                }
                log.lock().unwrap().push(request);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        }
    })
    .await;
    let leg = known.connect().await.unwrap();
    let io = hyper_util::rt::TokioIo::new(leg);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, http_body_util::Empty<bytes::Bytes>>(io).await.unwrap();
    tokio::spawn(connection);
    let host = Host::parse("127.0.0.1").unwrap();
    for path in ["/a%2Fb", "/c?d"] {
        let mut request =
            Request::get(path).header("host", format!("127.0.0.1:{web}")).body(Default::default()).unwrap();
        known.address(&mut request, &host, web).unwrap();
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        known.judge(&response).unwrap();
        assert_eq!(response.status(), 200);
        http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
    }
    let mut request = Request::get("/x").header("host", format!("127.0.0.1:{web}")).body(Default::default()).unwrap();
    parent(at(squid.port)).address(&mut request, &host, web).unwrap();
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert!(matches!(known.judge(&response), Err(ParentError::Authentication { .. })));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("GET /a%2Fb HTTP/1.1\r\n") && seen[1].starts_with("GET /c?d HTTP/1.1\r\n"), "{seen:?}");
    assert!(!seen.concat().to_ascii_lowercase().contains("proxy-authorization"), "{seen:?}");
}
