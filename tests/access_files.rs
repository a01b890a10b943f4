//! Promises 30.67 to 30.69: files that do not arrive whole, what is recorded of those that are carried, and what they keep.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use crate::access::{Sandbox, expect, options, text};
use crate::access_clients::granted;
use crate::world::eventually;

/// A file system of two mebibytes, where a sandbox may write.
struct Small(PathBuf);

impl Small {
    fn at(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).expect("a directory");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("size=2m,mode=777")).expect("a tmpfs");
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// OpenSSH's `sftp`, told what to do.
fn sftp(sandbox: &Sandbox, line: &str) -> Command {
    let mut sftp = Command::new("sftp");
    sftp.args(options(sandbox)).arg("-b").arg(sandbox.world.file("batch", format!("{line}\n"))).arg("sandbox@box");
    sftp.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    sftp
}

fn scp(sandbox: &Sandbox, flag: &str, from: &Path, to: &Path) -> Command {
    let mut scp = Command::new("scp");
    scp.args(options(sandbox)).args([flag, "-q"]).arg(from).arg(format!("sandbox@box:{}", to.display()));
    scp.stdin(Stdio::null()).stderr(Stdio::piped());
    scp
}

#[test]
fn what_finds_no_room_leaves_what_was_there() {
    let mut sandbox = Sandbox::of("exec sleep 300");
    let small = Small::at(granted(&sandbox).join("small"));
    // It sees what was mounted before its start.
    sandbox.supervisor().signal(Signal::SIGKILL);
    sandbox.start();
    let from = sandbox.world.directory().join("file");
    let to = small.0.join("file");
    for old in [None, Some("old content")] {
        for (size, fits) in [(5_000_000, false), (500_000, true)] {
            std::fs::write(&from, vec![b'x'; size]).expect("a file");
            let put = sftp(&sandbox, &format!("put {} {}", from.display(), to.display()));
            let mut upload = sandbox.role("upload");
            upload.arg("--into").arg(&small.0).arg(&from).stderr(Stdio::piped());
            for mut client in [put, scp(&sandbox, "-s", &from, &to), scp(&sandbox, "-O", &from, &to), upload] {
                let _ = std::fs::remove_file(&to);
                old.iter().for_each(|old| std::fs::write(&to, old).expect("write"));
                std::os::unix::fs::chown(&to, Some(65534), Some(65534)).ok();
                let output = client.output().expect("OpenSSH's clients, which .ci/run installs");
                assert_eq!(output.status.success(), fits, "{client:?}: {}", text(&output.stderr));
                let there = std::fs::read(&to).ok();
                let length = there.as_ref().map(Vec::len);
                // The control: what has room arrives.
                let expected = if fits { Some(vec![b'x'; size]) } else { old.map(|old| old.as_bytes().to_vec()) };
                assert!(there == expected, "{client:?}: {length:?} bytes of {size}");
                let names = std::fs::read_dir(&small.0).expect("a directory").flatten();
                assert!(names.into_iter().all(|entry| entry.file_name() == "file"), "something is left");
            }
        }
    }
}

#[test]
fn what_was_carried_and_how_it_ended_is_recorded() {
    let sandbox = Sandbox::of("exec sleep 300");
    let granted = granted(&sandbox);
    let from = sandbox.world.directory().join("letter");
    std::fs::write(&from, "0123456789").expect("a file");
    let events = || -> Vec<serde_json::Value> {
        sandbox.events().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let any = |what: &str, found: &dyn Fn(&serde_json::Value) -> bool| {
        eventually(what, || events().iter().any(found));
    };
    // A program: that it began, as which process, and how it ended.
    expect(sandbox.runs("exec /bin/sh -c 'exit 3'"), 3, "");
    let begun = |event: &serde_json::Value| event["type_uid"] == 100_701 && event["message"] == event["message"];
    any("it began", &|event| begun(event) && event["process"]["pid"].as_u64().is_some_and(|pid| pid > 1));
    any("it ended", &|event| {
        event["type_uid"] == 100_702
            && event["exit_code"] == 3
            && event["status"] == "Failure"
            && event["process"]["pid"].as_u64().is_some_and(|pid| pid > 1)
    });
    // Files: each by its path, what went in or out, and whether it came to something.
    let to = granted.join("letter");
    let lines = format!("put {0} {1}\nget {1} /dev/null\n-get /etc/shadow /dev/null", from.display(), to.display());
    assert!(sftp(&sandbox, &lines).output().expect("sftp").status.success());
    let passed = |path: &Path, field: &'static str, bytes: u64| {
        let path = path.to_string_lossy().into_owned();
        move |event: &serde_json::Value| {
            event["type_uid"] == 400_706
                && event["file"]["path"] == path.as_str()
                && event["traffic"][field] == bytes
                && event["status"] == "Success"
        }
    };
    let failed = |path: &'static str| {
        move |event: &serde_json::Value| {
            event["type_uid"] == 400_706 && event["file"]["path"] == path && event["status"] == "Failure"
        }
    };
    any("it was written", &passed(&to, "bytes_out", 10));
    any("it was read", &passed(&to, "bytes_in", 10));
    any("it was refused by the kernel", &failed("/etc/shadow"));
    std::fs::remove_file(&to).expect("remove");
    assert!(scp(&sandbox, "-O", &from, &to).output().expect("scp").status.success());
    eventually("both were written", || {
        events().iter().filter(|event| passed(&to, "bytes_out", 10)(event)).count() == 2
    });
    // Streams of ours: as a whole.
    let up = sandbox.role("upload").arg("--into").arg(&granted).arg(&from).output().expect("upload");
    expect(up, 0, "");
    any("it was unpacked", &passed(&granted, "bytes_out", 10));
    let ended = |status: &'static str, verb: &'static str| {
        move |event: &serde_json::Value| {
            event["type_uid"] == 400_702
                && event["status"] == status
                && event["status_detail"].as_str().is_some_and(|detail| detail.contains(verb))
        }
    };
    any("and ended well", &ended("Success", "openshell-upload"));
    let refused = sandbox.role("upload").args(["--into", "/etc/openshell-x"]).arg(&from).output().expect("upload");
    assert_eq!(refused.status.code(), Some(1));
    any("it failed", &failed("/etc/openshell-x"));
    any("and ended so", &ended("Failure", "openshell-upload /etc/openshell-x"));
    let refused = sandbox.role("download").args(["--into", "/tmp", "/etc/shadow"]).output().expect("download");
    assert_eq!(refused.status.code(), Some(1));
    any("and so did that", &ended("Failure", "openshell-download /etc/shadow"));
}

#[test]
fn times_are_kept_to_the_nanosecond_by_upload_and_download() {
    let sandbox = Sandbox::of("exec sleep 300");
    let granted = granted(&sandbox);
    let from = sandbox.world.directory().join("file");
    std::fs::write(&from, "x").expect("a file");
    let status = Command::new("touch").args(["-d", "2001-02-03 04:05:06.123456789"]).arg(&from).status();
    assert!(status.expect("touch").success());
    let time =
        |path: &Path| std::fs::metadata(path).map(|found| (found.mtime(), found.mtime_nsec())).expect("metadata");
    let up = sandbox.role("upload").arg("--into").arg(&granted).arg(&from).output().expect("upload");
    expect(up, 0, "");
    assert_eq!((time(&granted.join("file")), time(&from).1), (time(&from), 123_456_789));
    let back = sandbox.world.directory().join("back");
    let down = sandbox.role("download").arg("--into").arg(&back).arg(granted.join("file")).output().expect("download");
    expect(down, 0, "");
    assert_eq!(time(&back.join("file")), time(&from));
}
