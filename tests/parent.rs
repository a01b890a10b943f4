//! Promises 15.x: where there is a corporate proxy, everything leaves through it or not at all.

use std::io::BufReader;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::origins::{self, Origin};
use crate::world::{Daemon, MACHINE_V4, ORIGIN_V4, Outcome, World, eventually, say};

const SQUID_PORT: u16 = 3130;
const PROXY: &str = "http://10.99.0.2:3130";

/// Starts squid beside the origin, with these lines of configuration before what all share.
fn squid(world: &World, lines: &str) -> Daemon {
    // me:secret, by crypt(3) in the form of Apache's MD5.
    let passwords = world.file("passwords", "me:$apr1$OSVTESTS$AJtSHFbaCrO.AvDQ329Bg/\n");
    let hosts = world.file("squid-hosts", format!("{ORIGIN_V4} far.example.com\n"));
    let lines = lines.replace("PASSWORDS", &passwords.display().to_string());
    let configuration = world.file(
        "squid.conf",
        format!(
            "http_port {ORIGIN_V4}:{SQUID_PORT}\nhosts_file {}\n{lines}\ncache deny all\naccess_log none\ncache_log /dev/null\n\
             pid_filename none\nshutdown_lifetime 0 seconds\ncoredump_dir {}\n",
            hosts.display(),
            world.directory().display()
        ),
    );
    let squid = world.origin_program("squid", &["-N", "-f", configuration.to_str().expect("a path")]);
    eventually("squid listens", || world.in_machine(|| TcpStream::connect((ORIGIN_V4, SQUID_PORT)).is_ok()));
    squid
}

/// An origin on port 8080 that tells who connected, and whether it was shown a password.
fn tells_its_peer(world: &World) -> Origin {
    Origin::start(world, 8080, |stream: TcpStream| {
        let peer = stream.peer_addr().expect("a peer").ip().to_canonical();
        let mut reader = BufReader::new(stream.try_clone().expect("clone"));
        while let Some(request) = origins::read_request(&mut reader) {
            let told = request.head.to_ascii_lowercase().contains("proxy-authorization");
            let body = format!("from {peer}{}\n", if told { " with a password" } else { "" });
            say(&stream, format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    })
}

/// curl in a sandbox with these flags, to each URL by CONNECT and by an absolute-form request: the bodies, in order.
fn curl(world: &World, flags: &[&str], urls: &[&str]) -> Outcome {
    let policy = world.policy(
        "policy.yaml",
        "/usr/bin/curl",
        &["api.example.com:8080", "other.example.com:8080", "far.example.com:8080"],
    );
    let fetch = |url: &&str| format!("curl -sS -p {url}; curl -sS {url}; ");
    let script: String = urls.iter().map(fetch).collect();
    world.run().policy(policy).args(flags.to_vec()).shell(&script).output()
}

const API: &str = "http://api.example.com:8080/";
const OTHER: &str = "http://other.example.com:8080/";

#[test]
fn what_leaves_goes_through_the_upstream_proxy_and_its_exceptions_do_not() {
    let world = World::new();
    let _origin = tells_its_peer(&world);
    let _squid = squid(&world, "http_access allow all");
    let (direct, through) = (format!("from {MACHINE_V4}\n").repeat(2), format!("from {ORIGIN_V4}\n").repeat(2));
    assert_eq!(curl(&world, &[], &[API, OTHER]).expect(0).stdout, format!("{direct}{direct}"));
    let outcome = curl(&world, &["--upstream-proxy", PROXY, "--log-level", "info"], &[API, OTHER]).expect(0);
    assert_eq!(outcome.stdout, format!("{through}{through}"));
    assert!(outcome.stderr.contains("allowed api.example.com:8080 via 10.99.0.2:3130"), "{}", outcome.stderr);
    for list in ["OTHER.example.com", "10.9.0.0/16,.other.example.com:8080", "api.example.com:443 other.example.com."] {
        let outcome = curl(&world, &["--upstream-proxy", PROXY, "--upstream-no-proxy", list], &[API, OTHER]).expect(0);
        assert_eq!(outcome.stdout, format!("{through}{direct}"), "{list}");
    }
    let flags = ["--upstream-proxy", PROXY, "--upstream-no-proxy", "10.99.0.0/24,fd99::/64"];
    assert_eq!(curl(&world, &flags, &[API]).expect(0).stdout, direct);
}

#[test]
fn an_image_cannot_name_an_upstream_proxy() {
    let world = World::new();
    let _origin = tells_its_peer(&world);
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["api.example.com:8080"]);
    let mut command = world.run().policy(policy).command(["/usr/bin/curl", "-sS", API]).build();
    for name in ["HTTPS_PROXY", "http_proxy", "ALL_PROXY", "OPENSHELL_UPSTREAM_PROXY"] {
        command.env(name, "http://10.99.0.2:9");
    }
    let output = command.output().expect("run");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("from {MACHINE_V4}\n"), "{output:?}");
}

/// A file with the password, for the supervisor alone.
fn password(world: &World, text: &str) -> PathBuf {
    let file = world.file("auth", text);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o400)).expect("chmod");
    file
}

const BASIC: &str = "auth_param basic program /usr/lib/squid/basic_ncsa_auth PASSWORDS\nacl known proxy_auth REQUIRED\n\
                     http_access allow known\nhttp_access deny all";

#[test]
fn credentials_are_shown_to_the_upstream_proxy_alone() {
    let world = World::new();
    let origin = tells_its_peer(&world);
    let _squid = squid(&world, BASIC);
    for text in [None, Some("me:wrong\n")] {
        let file = text.map(|text| password(&world, text).display().to_string());
        let mut flags = vec!["--upstream-proxy", PROXY];
        if let Some(file) = &file {
            flags.extend(["--upstream-proxy-allow-insecure-auth", "--upstream-proxy-auth-file", file]);
        }
        let outcome = curl(&world, &flags, &[API]);
        assert!(outcome.stdout.contains("\"error\":\"upstream_proxy_auth\""), "{outcome:?}");
        assert!(outcome.stdout.contains("\"via\":\"10.99.0.2:3130\""), "{outcome:?}");
        assert!(outcome.stderr.contains("response 502"), "{outcome:?}");
    }
    assert_eq!(origin.arrived(), 0);
    // Control: the right password, which the origin does not see.
    let file = password(&world, "me:secret\n").display().to_string();
    let flags =
        ["--upstream-proxy", PROXY, "--upstream-proxy-allow-insecure-auth", "--upstream-proxy-auth-file", &file];
    assert_eq!(curl(&world, &flags, &[API]).expect(0).stdout, format!("from {ORIGIN_V4}\n").repeat(2));
}

#[test]
fn an_upstream_proxy_that_refuses_or_is_gone_is_an_error_and_nothing_goes_around_it() {
    let world = World::new();
    let origin = tells_its_peer(&world);
    let _squid = squid(&world, "http_access deny all");
    let outcome = curl(&world, &["--upstream-proxy", PROXY], &[API]);
    assert!(outcome.stdout.contains("\"error\":\"upstream_proxy_refused\""), "{outcome:?}");
    assert!(outcome.stdout.contains("answered 403"), "{outcome:?}");
    let outcome = curl(&world, &["--upstream-proxy", "http://10.99.0.2:3131"], &[API]);
    assert!(outcome.stdout.contains("\"error\":\"upstream_proxy_failed\""), "{outcome:?}");
    let outcome = curl(&world, &["--upstream-proxy", "http://nowhere.example.com:3131"], &[API]);
    assert!(outcome.stdout.contains("nowhere.example.com"), "{outcome:?}");
    assert_eq!(origin.arrived(), 0, "something went around the proxy");
    // Control: without the proxy both arrive.
    curl(&world, &[], &[API]).expect(0);
    assert_eq!(origin.arrived(), 2);
}

#[test]
fn names_are_left_to_the_upstream_proxy_only_where_that_was_asked_for() {
    let world = World::new();
    origins::know_no_name(&world);
    let _origin = tells_its_peer(&world);
    let _squid = squid(&world, "http_access allow all");
    let far = "http://far.example.com:8080/";
    let outcome = curl(&world, &["--upstream-proxy", PROXY], &[far]);
    assert!(outcome.stdout.contains("\"error\":\"unresolvable\""), "{outcome:?}");
    for flag in ["--upstream-proxy-resolve-remotely", "--upstream-proxy-connect-by-hostname"] {
        let outcome = curl(&world, &["--upstream-proxy", PROXY, flag], &[far]).expect(0);
        assert_eq!(outcome.stdout, format!("from {ORIGIN_V4}\n").repeat(2));
    }
}

#[test]
fn settings_that_do_not_fit_end_the_start() {
    let world = World::new();
    let (secret, bad) = (password(&world, "me:secret"), world.file("bad", "secret"));
    let (secret, bad) = (secret.to_str().expect("a path"), bad.to_str().expect("a path"));
    let insecure = "--upstream-proxy-allow-insecure-auth";
    let (proxy, auth, no_proxy) = ("--upstream-proxy", "--upstream-proxy-auth-file", "--upstream-no-proxy");
    let cases: &[(&[&str], i32, &str)] = &[
        (&[proxy, ""], 2, "http://"),
        (&[proxy, "10.99.0.2:3130"], 2, "http://HOST:PORT"),
        (&[proxy, "socks5://10.99.0.2:3130"], 2, "http://HOST:PORT"),
        (&[proxy, "http://10.99.0.2"], 2, "port"),
        (&[proxy, "http://10.99.0.2:3130/"], 2, "end the URL with the port"),
        (&[proxy, "http://me:secret@10.99.0.2:3130"], 2, auth),
        (&[proxy, PROXY, proxy, PROXY], 2, "multiple times"),
        (&[no_proxy, "example.com"], 2, proxy),
        (&["--upstream-proxy-resolve-remotely"], 2, proxy),
        (&[auth, secret, insecure], 2, proxy),
        (&[proxy, PROXY, insecure], 2, auth),
        (&[proxy, PROXY, auth, secret], 2, insecure),
        (&[proxy, "https://10.99.0.2:3130", auth, secret, insecure], 2, "drop the flag"),
        (&[proxy, PROXY, no_proxy, ""], 2, "empty"),
        (&[proxy, PROXY, no_proxy, "*.example.com"], 2, "pattern"),
        (&[proxy, PROXY, no_proxy, "10.0.0.0/33"], 2, "10.0.0.0/33"),
        (&[proxy, PROXY, insecure, auth, bad], 125, "no colon"),
        (&[proxy, PROXY, insecure, auth, "/nonexistent/file"], 125, "/nonexistent/file"),
        (&[proxy, PROXY, insecure, auth, "/etc"], 125, "regular file"),
    ];
    for (flags, code, told) in cases {
        for run in [world.run().args(flags.to_vec()).shell("echo ran"), world.role("network").args(flags.to_vec())] {
            let outcome = run.output().expect(*code);
            assert!(outcome.stderr.contains(told), "{flags:?}: {}", outcome.stderr);
            assert!(outcome.stdout.is_empty(), "{flags:?}");
            assert!(!outcome.stderr.contains("me:secret"), "{}", outcome.stderr);
        }
    }
    // Control: these fit.
    world
        .run()
        .args([proxy, PROXY, insecure, auth, secret, no_proxy, "example.com, 10.0.0.0/8:443 *"])
        .shell("true")
        .output()
        .expect(0);
}

#[test]
fn a_password_that_the_workload_could_read_ends_the_start() {
    let world = World::new();
    let file = password(&world, "me:secret");
    let policy = world.file(
        "policy.yaml",
        format!("version: 1\nfilesystem_policy: {{read_only: [{}]}}\n", world.directory().display()),
    );
    let run = |granted: bool| {
        let run = world
            .run()
            .args(["--upstream-proxy", PROXY, "--upstream-proxy-allow-insecure-auth", "--upstream-proxy-auth-file"])
            .arg(&file);
        let run = if granted { run.policy(&policy) } else { run };
        run.shell(&format!("cat {} || true", file.display())).output()
    };
    // By its mode it is closed, whatever is granted; by its mode alone it would be open.
    assert_eq!(run(true).expect(0).stdout, "");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o444)).expect("chmod");
    let outcome = run(true).expect(125);
    assert!(outcome.stderr.contains("could read the secret"), "{}", outcome.stderr);
    assert!(outcome.stdout.is_empty());
    // Control: Landlock closes it as well.
    assert_eq!(run(false).expect(0).stdout, "");
}

#[test]
fn an_upstream_proxy_behind_tls_must_prove_who_it_is() {
    let world = World::new();
    let origin = tells_its_peer(&world);
    let key = world.directory().join("key.pem");
    let certificate = world.directory().join("certificate.pem");
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=proxy.example.com",
            "-keyout",
        ])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .stderr(Stdio::null())
        .status()
        .expect("openssl");
    assert!(made.success());
    let _server = world.origin_program(
        "openssl",
        &[
            "s_server",
            "-www",
            "-quiet",
            "-accept",
            "3132",
            "-key",
            key.to_str().expect("a path"),
            "-cert",
            certificate.to_str().expect("a path"),
        ],
    );
    eventually("it listens", || world.in_machine(|| TcpStream::connect((ORIGIN_V4, 3132)).is_ok()));
    let outcome = curl(&world, &["--upstream-proxy", "https://10.99.0.2:3132"], &[API]);
    assert!(outcome.stdout.contains("\"error\":\"upstream_proxy_failed\""), "{outcome:?}");
    assert!(outcome.stdout.contains("TLS with the upstream proxy https://10.99.0.2:3132 failed"), "{outcome:?}");
    assert_eq!(origin.arrived(), 0);
}
