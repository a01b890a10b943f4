//! Promises 15.x: the workload trusts the sandbox's CA beside everybody else, and nobody can change or use that.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use openshell_supervisor::egress::tls::authority::Authority;
use openshell_supervisor::policy::host::Host;
use rustls::ServerConfig;

use crate::origins::Origin;
use crate::world::{World, policy_text};

/// A CA of an operator's in two files that root alone may read, and the flags that name it.
pub fn operators_ca(world: &World) -> ([PathBuf; 2], Authority) {
    let openssl = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=Example Corp CA", "-keyout", "ca.key", "-out", "ca.pem"])
        .args(["-addext", "keyUsage=critical,keyCertSign"])
        .current_dir(world.directory())
        .output()
        .expect("openssl");
    assert!(openssl.status.success(), "{openssl:?}");
    let [certificate, key] = ["ca.pem", "ca.key"].map(|name| world.directory().join(name));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).expect("chmod");
    let authority = Authority::load(&certificate, &key).expect("the CA");
    ([certificate, key], authority)
}

fn flags([certificate, key]: &[PathBuf; 2]) -> [String; 4] {
    ["--ca-cert".into(), certificate.display().to_string(), "--ca-key".into(), key.display().to_string()]
}

/// A page over TLS.
fn page(config: Arc<ServerConfig>) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |mut stream| {
        let mut session = rustls::ServerConnection::new(config.clone()).expect("a session");
        let mut tls = rustls::Stream::new(&mut session, &mut stream);
        let mut head = [0; 4096];
        if tls.read(&mut head).is_ok_and(|count| count > 0) {
            let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nreached\n");
        }
        session.send_close_notify();
        let _ = session.write_tls(&mut stream);
    }
}

/// Prints every variable that names a file of the sandbox's trust, whatever it is called, a line each.
const VARIABLES: &str = "env | grep -E '=/run/openshell/tls/' | sort";

#[test]
fn variables_name_files_that_can_be_read_and_never_changed() {
    let world = World::new();
    let script = format!(
        "{VARIABLES}; head -n 1 $NODE_EXTRA_CA_CERTS; d=$(dirname $SSL_CERT_FILE); ls $d; \
         cat $d/* | grep -c PRIVATE; \
         (echo x >> $SSL_CERT_FILE) 2>/dev/null && echo appended; (echo x > $d/new) 2>/dev/null && echo made; \
         rm -f $SSL_CERT_FILE 2>/dev/null && echo removed; mv $d/ca.pem $d/other 2>/dev/null && echo moved; \
         chmod 666 $SSL_CERT_FILE 2>/dev/null && echo chmodded; umount $d /run 2>/dev/null && echo unmounted; \
         mount -o remount,rw /run 2>/dev/null && echo remounted; \
         mkdir /tmp/control && echo x > /tmp/control/f && mv /tmp/control/f /tmp/control/g && chmod 600 /tmp/control/g && \
         rm -r /tmp/control && echo control"
    );
    for run in [world.run(), world.run().by_user()] {
        let outcome = run.shell(&script).output();
        let expected = "AWS_CA_BUNDLE BUNDLE_SSL_CA_CERT CARGO_HTTP_CAINFO CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE \
            COMPOSER_CAFILE CURL_CA_BUNDLE DENO_CERT GIT_SSL_CAINFO GRPC_DEFAULT_SSL_ROOTS_FILE_PATH HEX_CACERTS_PATH \
            HTTPLIB2_CA_CERTS NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS PERL_LWP_SSL_CA_FILE PIP_CERT REQUESTS_CA_BUNDLE \
            SSL_CERT_FILE npm_config_cafile";
        // What README promises to set is what is set.
        let guide = include_str!("../README.md");
        let missing: Vec<&str> =
            expected.split_whitespace().filter(|name| !guide.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "README does not name {missing:?}");
        let names = expected.split_whitespace().map(|name| {
            let file = if matches!(name, "DENO_CERT" | "NODE_EXTRA_CA_CERTS") { "ca.pem" } else { "bundle.pem" };
            format!("{name}=/run/openshell/tls/{file}\n")
        });
        let expected: String =
            names.chain(["-----BEGIN CERTIFICATE-----\nbundle.pem\nca.pem\n0\ncontrol\n".to_owned()]).collect();
        let sorted = |text: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        assert_eq!(sorted(&outcome.stdout), sorted(&expected), "{outcome:?}");
    }
    // What the user says wins, and nothing is left outside.
    let own = world.run().args(["--env", "SSL_CERT_FILE=/etc/own.pem"]).shell("echo $SSL_CERT_FILE").output().expect(0);
    assert_eq!(own.stdout, "/etc/own.pem\n");
    assert!(!std::path::Path::new("/run/openshell/tls").exists());
}

#[test]
fn each_sandbox_has_a_ca_of_its_own() {
    let world = World::new();
    let ca = || world.run().args(["--sandbox", "demo"]).shell("cat $NODE_EXTRA_CA_CERTS").output().expect(0).stdout;
    let (one, other) = (ca(), ca());
    assert!(one.starts_with("-----BEGIN CERTIFICATE-----") && one != other);
    let mut openssl = Command::new("openssl");
    let shown =
        openssl.args(["x509", "-noout", "-subject", "-in"]).arg(world.file("one.pem", one)).output().expect("openssl");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("OpenShell Sandbox CA") && shown.contains("demo"), "{shown}");
}

#[test]
fn real_programs_trust_what_the_ca_signs() {
    let world = World::new();
    let (files, authority) = operators_ca(&world);
    let host = Host::parse("api.example.com").expect("a host");
    let config = authority.server_config(&host, None).expect("a certificate");
    let _origin = Origin::start(&world, 443, page(config));
    let policy = world.file("policy.yaml", policy_text("**", &["api.example.com:443"]));
    let python = "import urllib.request; print(urllib.request.urlopen('https://api.example.com/').read().decode())";
    // Older ones do not find the proxy by its variables.
    let node = "const tls = require('tls'); require('http').request({host: '127.0.0.1', port: 3128, method: 'CONNECT', \
        path: 'api.example.com:443', headers: {host: 'api.example.com:443'}}).on('connect', (r, socket) => { const t = tls.connect({socket, servername: \
        'api.example.com'}, () => t.write('GET / HTTP/1.1\\r\\n\\r\\n')); t.on('data', d => console.log('' + d)); \
        t.on('error', e => console.error(e.message)); }).end()";
    for (program, script) in [
        ("curl", "curl -sS https://api.example.com/".to_owned()),
        // By the bundle in the system's place: no variable is left.
        ("curl", "env -i https_proxy=$https_proxy curl -sS https://api.example.com/".to_owned()),
        ("wget", "env -u SSL_CERT_FILE wget -qO- https://api.example.com/".to_owned()),
        ("python3", format!("/usr/bin/python3 -c \"{python}\"")),
        ("node", format!("node -e \"{node}\"")),
        ("openssl", "printf 'GET / HTTP/1.1\\r\\n\\r\\n' | openssl s_client -quiet -verify_return_error -proxy 127.0.0.1:3128 \
            -connect api.example.com:443 -servername api.example.com -ign_eof".to_owned()),
        // Whatever git thinks of the answer, it is one that it got: GnuTLS and OpenSSL word a refusal differently.
        ("git", "git ls-remote https://api.example.com/x 2>&1 | grep -q 'not valid: is this a git repository' && echo reached".to_owned()),
    ] {
        for trusting in [true, false] {
            let mut run = world.run().policy(&policy);
            if trusting {
                run = run.args(flags(&files));
            }
            let outcome = run.shell(&script).output();
            assert_eq!(outcome.stdout.contains("reached"), trusting, "{program}, {script}: {outcome:?}");
        }
    }
}

#[test]
fn bundles_of_the_image_and_of_the_operator_are_extended() {
    let world = World::new();
    let (files, _) = operators_ca(&world);
    let operators = fs::read_to_string(&files[0]).expect("the CA");
    let image = Authority::generate(Some("image")).expect("a CA").certificate_pem().to_owned();
    let secret = "no certificate at all\n";
    let bundle = world.file("image.pem", format!("{secret}{image}"));
    let script = "cat $SSL_CERT_FILE; echo; echo end; cat $NODE_EXTRA_CA_CERTS";
    let mut command = world.run().arg("--upstream-ca").arg(&files[0]).shell(script).build();
    let output = command.env("REQUESTS_CA_BUNDLE", &bundle).env_remove("NODE_EXTRA_CA_CERTS").output().expect("run");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let (all, added) = stdout.split_once("end\n").expect("two files");
    assert!(all.contains(&image) && all.contains(&operators) && !all.contains(secret), "{stdout}");
    assert!(!added.contains(&image) && added.contains(&operators), "{stdout}");
    // The control: nothing named.
    let plain = world.run().shell(script).output().expect(0).stdout;
    assert!(!plain.contains(&image) && !plain.contains(&operators));
    let bad = world.file("bad.pem", secret);
    let refused = world.run().arg("--upstream-ca").arg(&bad).command(["/bin/true"]).output().expect(125);
    assert!(refused.stderr.contains("bad.pem") && refused.stderr.contains("BEGIN CERTIFICATE"), "{refused:?}");
}

#[test]
fn a_ca_that_the_workload_could_use_or_replace_is_refused() {
    let world = World::new();
    let (files, _) = operators_ca(&world);
    let [certificate, key] = &files;
    let text = format!("version: 1\nfilesystem_policy: {{read_only: [{}]}}\n", world.directory().display());
    let policy = world.file("policy.yaml", text);
    let start = || world.run().policy(&policy).args(flags(&files)).command(["/bin/true"]).output();
    let mode = |path: &PathBuf, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    start().expect(0);
    mode(key, 0o444);
    let refused = start().expect(125);
    assert!(refused.stderr.contains("ca.key") && refused.stderr.contains("could read"), "{refused:?}");
    // Not granted, it is out of sight.
    world.run().args(flags(&files)).command(["/bin/true"]).output().expect(0);
    mode(key, 0o400);
    let writable = format!("version: 1\nfilesystem_policy: {{read_write: [{}]}}\n", world.directory().display());
    let writable = world.file("writable.yaml", writable);
    let start = || world.run().policy(&writable).args(flags(&files)).command(["/bin/true"]).output();
    start().expect(0);
    mode(certificate, 0o666);
    let refused = start().expect(125);
    assert!(refused.stderr.contains("ca.pem") && refused.stderr.contains("could rewrite"), "{refused:?}");
    mode(certificate, 0o644);
    // Half of it is nothing.
    for half in [&flags(&files)[..2], &flags(&files)[2..]] {
        world.run().args(half).command(["/bin/true"]).output().expect(2);
    }
    let wrong = world.run().args([
        "--ca-cert",
        &certificate.display().to_string(),
        "--ca-key",
        &certificate.display().to_string(),
    ]);
    let wrong = wrong.command(["/bin/true"]).output().expect(125);
    assert!(wrong.stderr.contains("no private key"), "{wrong:?}");
}
