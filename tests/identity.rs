//! Promises 8.x: a connection belongs to the program that really makes it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::origins::{self, Origin};
use crate::world::{Outcome, World};

/// Asks for the page with a program of this test's choosing; prints `reached` or the denial.
const FETCH: &str = "
import socket, sys
def fetch():
    s = socket.create_connection(('127.0.0.1', 3128), timeout=20)
    s.sendall(b'GET http://api.example.com/ HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: close\\r\\n\\r\\n')
    data = b''
    while True:
        piece = s.recv(65536)
        if not piece: return data.decode()
        data += piece
";

struct Stage {
    world: World,
    origin: Origin,
}

impl Stage {
    fn new() -> Self {
        let world = World::new();
        let origin = Origin::start(&world, 80, origins::http(|_| "reached\n".to_owned()));
        Self { world, origin }
    }

    /// Runs a script under a policy for one binary, with this world's directory readable.
    fn run(&self, binary: &str, script: &str) -> Outcome {
        let policy = self.world.file(
            "policy.yaml",
            format!(
                "version: 1\nfilesystem_policy: {{include_workdir: false, read_only: [{}], read_write: [/tmp]}}\nnetwork_policies: {{t: \
                 {{endpoints: [{{host: api.example.com, port: 80}}], binaries: [{{path: {binary:?}}}]}}}}\n",
                self.world.directory().display()
            ),
        );
        self.world.run().policy(policy).shell(script).output()
    }
}

#[test]
fn a_copy_a_link_or_a_loader_is_not_the_program() {
    let stage = Stage::new();
    let curl = "curl -sS http://api.example.com/";
    // Control.
    assert!(stage.run("/usr/bin/curl", curl).stdout.contains("reached"));
    let arrived = stage.origin.arrived();
    let directory = stage.world.directory().display().to_string();
    let copy = format!("{directory}/curl");
    fs::copy("/usr/bin/curl", &copy).expect("copy");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("chmod");
    for script in [
        format!("{copy} -sS http://api.example.com/"),
        "/lib64/ld-linux-x86-64.so.2 /usr/bin/curl -sS http://api.example.com/".to_owned(),
        "exec -a /usr/bin/curl /usr/bin/wget -q -O - http://api.example.com/".to_owned(),
        format!("/usr/bin/python3 -c \"{FETCH}\nprint(fetch())\" /usr/bin/curl"),
    ] {
        let outcome = stage.run(
            "/usr/bin/curl",
            &script
                .replace("exec -a", "bash -c 'exec -a")
                .replace("http://api.example.com/\n", "http://api.example.com/"),
        );
        assert!(!outcome.stdout.contains("reached"), "{script}: {outcome:?}");
    }
    assert_eq!(stage.origin.arrived(), arrived);
    // A link is the file it leads to.
    std::os::unix::fs::symlink("/usr/bin/curl", format!("{directory}/link")).expect("link");
    assert!(
        stage.run("/usr/bin/curl", &format!("{directory}/link -sS http://api.example.com/")).stdout.contains("reached")
    );
}

#[test]
fn a_program_in_memory_matches_no_path() {
    let stage = Stage::new();
    let script = "
import os
fd = os.memfd_create('/usr/bin/curl')
with open('/usr/bin/curl', 'rb') as f: os.write(fd, f.read()) if False else [os.write(fd, b) for b in iter(lambda: f.read(1 << 20), b'')]
try: os.execve('/proc/self/fd/%d' % fd, ['/usr/bin/curl', '-sS', 'http://api.example.com/'], dict(os.environ))
except OSError as e: print('refused', e.strerror)
";
    let outcome = stage.run("/usr/bin/curl", &format!("/usr/bin/python3 -c \"{script}\""));
    assert!(!outcome.stdout.contains("reached"), "{outcome:?}");
    assert_eq!(stage.origin.arrived(), 0);
}

#[test]
fn a_socket_shared_with_another_program_is_ambiguous() {
    let stage = Stage::new();
    // The socket is inherited by a sleeping sleep(1) before the request is sent.
    let shared = format!(
        "{FETCH}
import subprocess, os
s = socket.create_connection(('127.0.0.1', 3128), timeout=20)
os.set_inheritable(s.fileno(), True)
child = subprocess.Popen(['/bin/sleep', '30'], close_fds=False) if SHARE else None
import time; time.sleep(0.3)
s.sendall(b'GET http://api.example.com/ HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: close\\r\\n\\r\\n')
data = b''
while True:
    piece = s.recv(65536)
    if not piece: break
    data += piece
print(data.decode())
if child: child.kill()
"
    );
    let run = |share: &str| {
        let script = stage.world.file("shared.py", format!("SHARE = {share}\n{shared}"));
        stage.run("/usr/bin/python3*", &format!("/usr/bin/python3 {}", script.display()))
    };
    let outcome = run("True");
    assert!(!outcome.stdout.contains("reached"), "{outcome:?}");
    assert!(outcome.stdout.contains("403") && outcome.stdout.contains("/usr/bin/sleep"), "{outcome:?}");
    // Control: not shared, it passes.
    assert!(run("False").stdout.contains("reached"));
}

#[test]
fn the_script_is_the_interpreter_and_an_allowed_parent_lends_its_right() {
    let stage = Stage::new();
    let script = stage.world.file("fetch.py", format!("#!/usr/bin/python3\n{FETCH}\nprint(fetch())\n"));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let path = script.display().to_string();
    assert!(!stage.run(&path, &path).stdout.contains("reached"), "a script's path was taken for a program");
    assert!(stage.run("/usr/bin/python3*", &path).stdout.contains("reached"));
    // An ancestor that the policy names: curl as a child of a shell.
    let shell = fs::canonicalize("/bin/sh").expect("sh").display().to_string();
    assert!(stage.run(&shell, "curl -sS http://api.example.com/; true").stdout.contains("reached"));
}

#[test]
fn an_executable_that_changes_after_its_first_use_is_refused() {
    let stage = Stage::new();
    let tool = "/tmp/openshell-tofu-tool";
    let script = format!(
        "cp /usr/bin/curl {tool} && {tool} -sS http://api.example.com/; cp /usr/bin/wget {tool}.new && mv {tool}.new {tool} && {tool} -q -O - \
         http://api.example.com/; rm -f {tool}"
    );
    let outcome = stage.run(tool, &script);
    assert_eq!(outcome.stdout.matches("reached").count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("changed"), "{outcome:?}");
}

#[test]
fn relaxed_identity_judges_by_destination_alone_and_says_so() {
    let stage = Stage::new();
    let policy = stage.world.policy("relaxed.yaml", "/usr/bin/no-such-program", &["api.example.com:80"]);
    let run = |mode: &str| {
        stage
            .world
            .run()
            .policy(&policy)
            .args(["--binary-identity", mode, "--log-level", "info"])
            .shell("curl -sS http://api.example.com/; curl -sS http://other.example.com/")
            .output()
    };
    let relaxed = run("relaxed");
    assert!(relaxed.stdout.contains("reached") && relaxed.stdout.contains("policy_denied"), "{relaxed:?}");
    assert!(relaxed.stderr.contains("relaxed"), "{relaxed:?}");
    assert!(!run("required").stdout.contains("reached"));
}
