//! Promises 30.3x: clients that share no code with the server, doing what people do with them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::access::{Sandbox, assert_same, expect, luggage, options, text};
use crate::clients::toolbox;
use crate::world::{Daemon, eventually};

/// A directory that the sandbox may write, and this side look at.
pub fn granted(sandbox: &Sandbox) -> PathBuf {
    let granted = sandbox.directory.path().join("granted");
    std::fs::create_dir_all(&granted).expect("a directory");
    std::fs::set_permissions(&granted, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    granted
}

/// `ssh` as another program is told to call it.
fn words_of_ssh(sandbox: &Sandbox) -> String {
    let quoted = |word: String| format!("'{word}'");
    let words: Vec<String> = options(sandbox).into_iter().map(quoted).collect();
    format!("ssh {}", words.join(" "))
}

/// One of this project's clients in Python.
pub fn python(script: &str) -> Command {
    let toolbox = toolbox();
    let mut python = Command::new("/usr/bin/python3");
    python.arg(toolbox.join("clients").join(script));
    python.env("PYTHONPATH", toolbox.join("python")).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    python
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn paramiko_finds_a_server_like_any_other() {
    let sandbox = Sandbox::of("exec sleep 300");
    let mut client = python("ssh_paramiko.py");
    let output = client.arg(sandbox.door()).arg(granted(&sandbox)).output().expect("python3, which .ci/run installs");
    assert!(text(&output.stdout).contains("done"), "{}", text(&output.stderr));
}

#[test]
fn git_clones_and_pushes_by_the_images_git() {
    let sandbox = Sandbox::of("exec sleep 300");
    let granted = granted(&sandbox);
    let seed = format!(
        "cd {} && export HOME=$PWD && git init -q -b main seed && cd seed && git config user.name t && git config user.email t@t && \
         head -c 3000000 /dev/urandom > large && git add large && git commit -q -m one && cd .. && git clone -q --bare seed \
         there.git",
        granted.display()
    );
    expect(sandbox.runs(&seed), 0, "");
    let here = sandbox.world.directory().join("clone");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.env("GIT_SSH_COMMAND", words_of_ssh(&sandbox)).env("HOME", sandbox.world.directory());
        git.args(["-c", "user.name=t", "-c", "user.email=t@t"]).args(arguments).stdin(Stdio::null());
        git.output().expect("git, which .ci/run installs")
    };
    let url = format!("sandbox@box:{}/there.git", granted.display());
    let place = here.display().to_string();
    succeeded(&git(&["clone", "-q", &url, &place]));
    assert_eq!(
        std::fs::read(here.join("large")).expect("a file"),
        std::fs::read(granted.join("seed/large")).expect("a file")
    );
    std::fs::write(here.join("more"), "0123456789".repeat(300_000)).expect("write");
    succeeded(&git(&["-C", &place, "add", "more"]));
    succeeded(&git(&["-C", &place, "commit", "-q", "-m", "two"]));
    succeeded(&git(&["-C", &place, "push", "-q", "origin", "main"]));
    let log = sandbox.runs(&format!("git -C {}/there.git log --format=%s", granted.display()));
    expect(log, 0, "two\none\n");
    // What git may not do there, it is told of.
    let refused = git(&["clone", "-q", "sandbox@box:/root/no.git", &format!("{place}-no")]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("/root/no.git"), "{refused:?}");
}

#[test]
fn rsync_carries_trees_by_the_images_rsync() {
    let sandbox = Sandbox::of("exec sleep 300");
    let (here, back) = luggage(&sandbox);
    let there = granted(&sandbox).join("there");
    let rsync = |from: &str, to: &str| {
        let mut rsync = Command::new("rsync");
        rsync.args(["-rlptz", "--checksum", "--stats", "-e", &words_of_ssh(&sandbox), from, to]).stdin(Stdio::null());
        let output = rsync.output().expect("rsync, which .ci/run installs");
        succeeded(&output);
        text(&output.stdout)
    };
    let remote = format!("sandbox@box:{}/", there.display());
    rsync(&format!("{}/", here.display()), &remote);
    rsync(&remote, &format!("{}/", back.display()));
    assert_same(&here, &back);
    // Once more: nothing is left to be carried.
    let again = rsync(&format!("{}/", here.display()), &remote);
    assert!(again.contains("Number of regular files transferred: 0"), "{again}");
}

#[test]
fn an_editor_finds_what_its_remote_part_needs() {
    const SERVE: &str = "cd /usr/share/doc && exec python3 -c \"import http.server as h; s = h.ThreadingHTTPServer(('127.0.0.1', 0), \
                         h.SimpleHTTPRequestHandler); print('listening', s.server_port, flush=True); \
                         s.serve_forever()\"\n";
    let sandbox = Sandbox::of("exec sleep 300");
    let control = sandbox.directory.path().join("control");
    let mut master = sandbox.ssh();
    // A forward of the dynamic kind, on a port that is free most likely.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    master.arg("-S").arg(&control).args(["-M", "-N", "-D", &format!("127.0.0.1:{port}"), "sandbox@box"]);
    let _master = Daemon::spawn(master);
    eventually("the connection is shared", || control.exists());
    let shared = || {
        let mut ssh = sandbox.ssh();
        ssh.arg("-S").arg(&control).args(["-T", "sandbox@box"]);
        ssh
    };
    // A shell on pipes is fed its script, answers line by line, and goes on as long as the editor.
    let mut shell = shared();
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = Daemon::spawn(shell);
    let mut input = shell.child().stdin.take().expect("a pipe");
    let mut output = BufReader::new(shell.child().stdout.take().expect("a pipe"));
    let mut line = String::new();
    for number in 0..20 {
        writeln!(input, "test -t 0 || echo answer {number}").expect("write");
        line.clear();
        output.read_line(&mut line).expect("read");
        assert_eq!(line, format!("answer {number}\n"));
    }
    input.write_all(SERVE.as_bytes()).expect("write");
    line.clear();
    output.read_line(&mut line).expect("read");
    let inside = line.trim().strip_prefix("listening ").unwrap_or_else(|| panic!("{line}")).to_owned();
    // Meanwhile many commands, each on a channel of its own, and requests through the forward, in parallel.
    std::thread::scope(|scope| {
        for number in 0..20 {
            let (shared, inside) = (&shared, &inside);
            scope.spawn(move || {
                let mut command = shared();
                let ran = command.arg(format!("cat /proc/sys/kernel/ostype; exit {number}")).output().expect("ssh");
                expect(ran, number, "Linux\n");
                let mut curl = Command::new("curl");
                curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}"]);
                curl.args(["--socks5", &format!("127.0.0.1:{port}"), &format!("http://127.0.0.1:{inside}/")]);
                expect(curl.output().expect("curl, which .ci/run installs"), 0, "200");
            });
        }
    });
    // Its end is the shell's, and what it has started.
    drop(input);
    drop(shell);
    let gone = || {
        let reached = std::net::TcpStream::connect(("127.0.0.1", port));
        let mut stream = reached.expect("the forward");
        let _ = stream.write_all(&[5, 1, 0]);
        let _ = stream.read_exact(&mut [0; 2]);
        let number: u16 = inside.parse().expect("a port");
        let [high, low] = number.to_be_bytes();
        let _ = stream.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, high, low]);
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).is_err() || answer[1] != 0
    };
    eventually("the server ends", gone);
}

#[test]
fn fifty_sessions_at_once_are_served() {
    let sandbox = Sandbox::of("exec sleep 300");
    let started = Instant::now();
    let mut sessions: Vec<_> = (0..50)
        .map(|number| {
            let mut ssh = sandbox.ssh();
            ssh.args(["sandbox@box", &format!("read word; echo {number} $word")]);
            ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            ssh.spawn().expect("ssh")
        })
        .collect();
    // All of them are there before the first may end.
    let open =
        || Command::new("pgrep").args(["-fc", "^(.*/)?(ba|da)?sh -c read word; echo [0-9]"]).output().expect("pgrep");
    eventually("all are open", || text(&open().stdout).trim().parse() == Ok(sessions.len()));
    for session in &mut sessions {
        session.stdin.take().expect("a pipe").write_all(b"word\n").expect("write");
    }
    for (number, session) in sessions.into_iter().enumerate() {
        expect(session.wait_with_output().expect("wait"), 0, &format!("{number} word\n"));
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
