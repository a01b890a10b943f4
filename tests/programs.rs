//! Promises 5.x: real programs, each allowed, denied by host, denied by port and denied by binary, on both families.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::origins::{self, Origin};
use crate::world::{Outcome, World, policy_text};

/// The same act under four policies. `act` prints `reached` on success, by whatever its program calls success.
struct Matrix<'w> {
    world: &'w World,
    /// The program that policy must name, a path or glob.
    binary: &'static str,
    /// Where it goes: one of the origin's names, and a port.
    host: &'static str,
    port: u16,
}

impl Matrix<'_> {
    /// Runs `script` under each policy, and checks that only the right one lets it through, and that a denial says why.
    fn check(&self, origin: &Origin, script: &str) {
        let (host, port) = (self.host, self.port);
        let run = |name: &str, binary: &str, destination: &str| -> Outcome {
            // Programs of a test's own lie in the world's directory.
            let text = policy_text(binary, &[destination])
                + &format!(
                    "filesystem_policy: {{include_workdir: false, read_only: [{}]}}\n",
                    self.world.directory().display()
                );
            let policy = self.world.file(&format!("{name}.yaml"), text);
            self.world.run().policy(policy).shell(script).output()
        };
        let allowed = run("allowed", self.binary, &format!("{host}:{port}"));
        assert!(allowed.stdout.contains("reached"), "{allowed:?}");
        assert!(origin.arrived() > 0);
        let policy = self.world.directory().join("allowed.yaml");
        let by_user = self.world.run().by_user().policy(policy).shell(script).output();
        assert!(by_user.stdout.contains("reached"), "as an ordinary user: {by_user:?}");
        let arrived = origin.arrived();
        for (name, binary, destination) in [
            ("by-host", self.binary, format!("elsewhere.example.com:{port}")),
            ("by-port", self.binary, format!("{host}:{}", port + 1)),
            ("by-binary", "/usr/bin/no-such-program", format!("{host}:{port}")),
        ] {
            let denied = run(name, binary, &destination);
            assert!(!denied.stdout.contains("reached"), "{name}: {denied:?}");
            // The supervisor's own line names the destination, whatever the program made of the answer.
            assert!(denied.stderr.contains(host) && denied.stderr.contains("denied"), "{name}: {denied:?}");
        }
        assert_eq!(origin.arrived(), arrived, "a denied program reached the origin");
    }
}

/// A page that says so when it is fetched.
fn page() -> impl Fn(std::net::TcpStream) + Send + Sync + 'static {
    origins::http(|_| "reached\n".to_owned())
}

#[test]
fn curl_by_connect_and_by_forward_on_both_families() {
    let world = World::new();
    let origin = Origin::start(&world, 80, page());
    for host in ["api.example.com", crate::world::ORIGIN_NAME_V6] {
        let matrix = Matrix { world: &world, binary: "/usr/bin/curl", host, port: 80 };
        matrix.check(&origin, &format!("curl -sS http://{host}/"));
        matrix.check(&origin, &format!("curl -sS --proxytunnel http://{host}/"));
    }
}

#[test]
fn a_denial_can_be_read_where_curl_shows_it() {
    let world = World::new();
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["api.example.com:80"]);
    let outcome = world.run().policy(policy).shell("curl -sS -D - http://other.example.com/").output().expect(0);
    assert!(outcome.stdout.starts_with("HTTP/1.1 403"), "{}", outcome.stdout);
    let body = outcome.stdout.split("\r\n\r\n").nth(1).expect("a body");
    let denial: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(denial["error"], "policy_denied");
    assert_eq!(denial["host"], "other.example.com");
    assert_eq!(denial["port"], 80);
    assert_eq!(denial["binary"], "/usr/bin/curl");
    assert!(denial["next_steps"].as_array().is_some_and(|steps| !steps.is_empty()), "{denial}");
}

#[test]
fn wget() {
    let world = World::new();
    let origin = Origin::start(&world, 80, page());
    let matrix = Matrix { world: &world, binary: "/usr/bin/wget", host: "api.example.com", port: 80 };
    matrix.check(&origin, "wget -q -O - --tries=1 --timeout=10 http://api.example.com/");
}

#[test]
fn python_urllib_and_requests() {
    let world = World::new();
    let origin = Origin::start(&world, 80, page());
    let matrix = Matrix { world: &world, binary: "/usr/bin/python3*", host: "api.example.com", port: 80 };
    matrix.check(
        &origin,
        "/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"http://api.example.com/\").read().decode())'",
    );
    matrix
        .check(&origin, "/usr/bin/python3 -c 'import requests; print(requests.get(\"http://api.example.com/\").text)'");
}

/// A Node that reads NODE_USE_ENV_PROXY, which Debian's does not yet; `.ci/run` says how to get it.
const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/node_modules/node/bin/node");

#[test]
fn node_fetch_by_its_environment_and_http_by_request() {
    let world = World::new();
    let origin = Origin::start(&world, 80, page());
    let node = world.directory().join("node");
    fs::copy(NODE, &node).unwrap_or_else(|error| panic!("{NODE}: {error}; npm install --prefix target/tools node@24"));
    let matrix =
        Matrix { world: &world, binary: String::leak(node.display().to_string()), host: "api.example.com", port: 80 };
    let fetch =
        "fetch(\"http://api.example.com/\").then(r => r.text()).then(console.log, e => console.error(e.message))";
    matrix.check(&origin, &format!("{} -e '{fetch}'", node.display()));
    let request = "require(\"http\").get({host: \"127.0.0.1\", port: 3128, path: \"http://api.example.com/\", headers: {host: \"api.example.com\"}}, \
                   r => r.on(\"data\", d => process.stdout.write(d)))";
    matrix.check(&origin, &format!("{} -e '{request}'", node.display()));
}

#[test]
fn git_clones_fetches_and_pushes_over_http() {
    let world = World::new();
    let repositories = world.directory().join("repositories");
    fs::create_dir(&repositories).expect("mkdir");
    let git = |arguments: &[&str], directory: &std::path::Path| {
        let output = Command::new("git").args(arguments).current_dir(directory).output().expect("git");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    git(&["init", "-q", "--bare", "-b", "main", "project.git"], &repositories);
    git(&["config", "http.receivepack", "true"], &repositories.join("project.git"));
    let origin = Origin::start(&world, 80, git_backend(repositories.clone()));
    // As an ordinary user would: their own binary's helpers ask for the network, not `git` itself.
    let helpers = String::leak(git_helpers());
    let matrix = Matrix { world: &world, binary: helpers, host: "github.com", port: 80 };
    let script = "set -e; export HOME=/tmp GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0; d=$(mktemp -d); cd $d; git clone -q \
                  http://github.com/project.git one 2>&1; cd one; git config user.email a@example.com; git config user.name a; date +%N > \
                  file; git add file; git commit -qm one; git push -q origin HEAD:main 2>&1; cd ..; git clone -q \
                  http://github.com/project.git two; cd one; date +%N > file; git commit -qam two; git push -q origin HEAD:main; cd ../two; \
                  git fetch -q; git merge -q origin/main; cmp file ../one/file && echo reached; rm -rf $d";
    matrix.check(&origin, script);
}

/// Where this machine's git keeps the programs that speak HTTP.
fn git_helpers() -> String {
    let output = Command::new("git").arg("--exec-path").output().expect("git");
    let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let helper = fs::canonicalize(directory.join("git-remote-http")).expect("git-remote-http");
    helper.display().to_string()
}

/// `git http-backend` behind a small server, in the way of CGI.
fn git_backend(root: PathBuf) -> impl Fn(std::net::TcpStream) + Send + Sync + 'static {
    use std::io::{BufReader, Write};
    use std::process::Stdio;
    move |stream| {
        let mut reader = BufReader::new(stream.try_clone().expect("clone"));
        let Some(request) = origins::read_request(&mut reader) else { return };
        let mut line = request.head.lines().next().unwrap_or("").split(' ');
        let (method, target) = (line.next().unwrap_or(""), line.next().unwrap_or(""));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let header = |name: &str| {
            request.head.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let mut child = Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", method)
            .env("PATH_INFO", path)
            .env("QUERY_STRING", query)
            .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
            .env("CONTENT_LENGTH", request.body.len().to_string())
            .env("HTTP_CONTENT_ENCODING", header("content-encoding").unwrap_or_default())
            .env("REMOTE_USER", "test")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("git http-backend");
        let _ = child.stdin.take().expect("piped").write_all(&request.body);
        let answer = child.wait_with_output().expect("the backend").stdout;
        let status = answer
            .starts_with(b"Status: ")
            .then(|| String::from_utf8_lossy(&answer[8..]).lines().next().unwrap_or("500 Error").trim().to_owned());
        crate::world::say(&stream, format!("HTTP/1.1 {}\r\nConnection: close\r\n", status.unwrap_or("200 OK".into())));
        crate::world::say(&stream, &answer);
    }
}

#[test]
fn openssl_s_client_shakes_hands_through_a_tunnel() {
    let world = World::new();
    let directory = world.directory().to_owned();
    let status = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=api.example.com", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(&directory)
        .output()
        .expect("openssl");
    assert!(status.status.success());
    let path = |name: &str| directory.join(name).display().to_string();
    let _server = world.origin_program(
        "openssl",
        &["s_server", "-quiet", "-accept", "8443", "-www", "-cert", &path("cert.pem"), "-key", &path("key.pem")],
    );
    crate::world::eventually("s_server listens", || {
        world.in_machine(|| std::net::TcpStream::connect((crate::world::ORIGIN_V4, 8443)).is_ok())
    });
    // In front of it, the counter that proves what arrived.
    let origin = Origin::start(&world, 443, |stream| forward_to(stream, 8443));
    let matrix = Matrix { world: &world, binary: "/usr/bin/openssl", host: "api.example.com", port: 443 };
    matrix.check(
        &origin,
        "openssl s_client -brief -proxy 127.0.0.1:3128 -connect api.example.com:443 </dev/null 2>&1 | grep -q 'CONNECTION ESTABLISHED' && \
         echo reached",
    );
}

/// Copies both ways to another port of the origin.
fn forward_to(stream: std::net::TcpStream, port: u16) {
    let Ok(onward) = std::net::TcpStream::connect((crate::world::ORIGIN_V4, port)) else { return };
    let (mut a, mut b) = (stream.try_clone().expect("clone"), onward.try_clone().expect("clone"));
    let back = std::thread::spawn(move || {
        let _ = std::io::copy(&mut b, &mut a);
        let _ = a.shutdown(std::net::Shutdown::Write);
    });
    let (mut a, mut b) = (stream, onward);
    let _ = std::io::copy(&mut a, &mut b);
    let _ = b.shutdown(std::net::Shutdown::Write);
    let _ = back.join();
}

#[test]
fn ssh_by_netcat_gets_the_servers_banner_without_delay() {
    let world = World::new();
    let origin = Origin::start(&world, 22, origins::banner("SSH-2.0-reached\r\n"));
    let matrix = Matrix { world: &world, binary: "/usr/bin/nc*", host: "github.com", port: 22 };
    matrix.check(&origin, "sleep 0.2 | nc -N -X connect -x 127.0.0.1:3128 github.com 22");
    // The client's half of the exchange, by OpenSSH itself: it gets as far as the server lets it.
    let policy = world.policy("ssh.yaml", "/usr/bin/nc*", &["github.com:22"]);
    let script = "HOME=/tmp ssh -v -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=5 -o \
                  'ProxyCommand=nc -X connect -x 127.0.0.1:3128 %h %p' git@github.com 2>&1 | grep -a 'remote software version reached'";
    world.run().policy(policy).shell(script).output().expect(0);
}
