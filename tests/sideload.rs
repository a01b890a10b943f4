//! Promises 21.x: the executable lays itself into a volume.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::world::{Daemon, ORDINARY_USER, supervisor};

const MODE: u32 = 0o555;

/// A directory like an emptyDir's.
fn volume() -> tempfile::TempDir {
    let volume = tempfile::Builder::new().prefix("openshell-volume-").tempdir_in("/var/tmp").expect("a directory");
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    volume
}

fn sideload(destination: impl AsRef<Path>) -> Command {
    let mut command = Command::new(supervisor());
    command.arg("sideload").arg(destination.as_ref());
    command
}

#[track_caller]
fn refused(destination: impl AsRef<Path>, reason: &str) {
    let output = sideload(destination).output().expect("start");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains(reason), "{reason:?} is not in: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[track_caller]
fn copied(output: &Output, to: &Path) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let meta = fs::symlink_metadata(to).expect("the copy");
    assert!(meta.is_file() && meta.mode() & 0o7777 == MODE, "{meta:?}");
    assert!(fs::read(to).expect("the copy") == fs::read(supervisor()).expect("the original"), "another content");
    let version = Command::new(to).arg("--version").output().expect("run the copy");
    assert!(version.status.success());
}

/// Every name in a directory.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("list")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A mount that goes with the test.
pub struct Mounted(PathBuf);

impl Mounted {
    /// A new one, whose mount point is made.
    pub fn tmpfs(at: PathBuf, flags: MsFlags, options: &str) -> Self {
        fs::create_dir(&at).expect("a mount point");
        mount(Some("tmpfs"), &at, Some("tmpfs"), flags, Some(options)).expect("mount: run the tests as root");
        Self(at)
    }

    /// The same with other flags.
    pub fn again(&self, flags: MsFlags) {
        mount(None::<&str>, &self.0, None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, None::<&str>)
            .expect("remount");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_file_a_directory_or_a_path_that_is_not_there_yet_is_the_destination() {
    let volume = volume();
    let file = volume.path().join("supervisor");
    copied(&sideload(&file).output().expect("start"), &file);
    copied(&sideload(volume.path()).output().expect("start"), &volume.path().join("openshell-supervisor"));
    let deep = volume.path().join("a/b/");
    copied(&sideload(&deep).output().expect("start"), &deep.join("openshell-supervisor"));
    // Called by a link's name as in an image, the copy still has the executable's own.
    let other = volume.path().join("other");
    fs::create_dir(&other).expect("a directory");
    let link = volume.path().join("openshell-sideload");
    symlink(supervisor(), &link).expect("a link");
    copied(&Command::new(&link).arg(&other).output().expect("start"), &other.join("openshell-supervisor"));
    // Nothing temporary stays.
    assert_eq!(names(&other), ["openshell-supervisor"]);
    assert_eq!(names(volume.path()), ["a", "openshell-sideload", "openshell-supervisor", "other", "supervisor"]);
}

#[test]
fn an_ordinary_user_needs_nothing_but_the_directory() {
    let volume = volume();
    let file = volume.path().join("supervisor");
    copied(&sideload(&file).uid(ORDINARY_USER).gid(ORDINARY_USER).output().expect("start"), &file);
    assert_eq!(fs::metadata(&file).expect("the copy").uid(), ORDINARY_USER);
    // Root's own directory is not theirs, and they are told what to ask for.
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let output = sideload(&file).uid(ORDINARY_USER).gid(ORDINARY_USER).output().expect("start");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr.contains("fsGroup"), "{stderr}");
}

#[test]
fn a_link_or_a_special_file_is_neither_followed_nor_replaced() {
    let volume = volume();
    let target = volume.path().join("target");
    fs::write(&target, "precious").expect("write");
    let link = volume.path().join("link");
    symlink(&target, &link).expect("a link");
    refused(&link, "is a symbolic link");
    let to_directory = volume.path().join("to-directory");
    symlink(volume.path(), &to_directory).expect("a link");
    refused(&to_directory, "is a symbolic link");
    refused(to_directory.join(""), "is a symbolic link");
    refused(link.join(""), "is a symbolic link");
    refused(target.join("below"), "name another destination");
    let pipe = volume.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    refused(&pipe, "is a named pipe");
    let device = volume.path().join("device");
    let null = nix::sys::stat::makedev(1, 3);
    nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU, null).expect("mknod");
    refused(&device, "is a device");
    let socket = volume.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    refused(&socket, "is a socket");
    let inside = volume.path().join("inside");
    fs::create_dir(&inside).expect("a directory");
    symlink(&target, inside.join("openshell-supervisor")).expect("a link");
    refused(&inside, "is a symbolic link");
    assert_eq!(fs::read(&target).expect("read"), b"precious");
    assert!(fs::symlink_metadata(&pipe).expect("the pipe").file_type().is_fifo());
    // Control: an ordinary file in the same place is replaced.
    copied(&sideload(&target).output().expect("start"), &target);
}

#[test]
fn volumes_that_are_full_read_only_or_noexec_are_told_apart() {
    let volume = volume();
    let small = Mounted::tmpfs(volume.path().join("small"), MsFlags::empty(), "size=4m");
    fs::write(small.0.join("openshell-supervisor"), "before").expect("write");
    refused(&small.0, "No space left on device; the copy needs ");
    assert_eq!(names(&small.0), ["openshell-supervisor"]);
    assert_eq!(fs::read(small.0.join("openshell-supervisor")).expect("read"), b"before");
    let large = Mounted::tmpfs(volume.path().join("large"), MsFlags::empty(), "size=256m");
    large.again(MsFlags::MS_RDONLY);
    refused(&large.0, "without readOnly");
    large.again(MsFlags::MS_NOEXEC);
    refused(&large.0, "is mounted noexec");
    assert!(names(&large.0).is_empty());
    let limited = format!("ulimit -f 100; exec {} sideload {}", supervisor().display(), volume.path().display());
    let limited = Command::new("bash").args(["-c", &limited]).output().expect("bash");
    let told = String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.code() == Some(125) && told.contains("the copy needs "), "{told}");
    // A file that was mounted by itself cannot be replaced.
    let alone = volume.path().join("alone");
    fs::write(&alone, "").expect("write");
    nix::mount::mount(Some(supervisor()), &alone, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    refused(&alone, "mount a volume at its directory");
    nix::mount::umount(&alone).expect("umount");
    // Control: the same volume without either takes the copy.
    large.again(MsFlags::empty());
    copied(&sideload(&large.0).output().expect("start"), &large.0.join("openshell-supervisor"));
}

#[test]
fn a_copy_that_is_running_is_replaced() {
    let volume = volume();
    let file = volume.path().join("supervisor");
    copied(&sideload(&file).output().expect("start"), &file);
    let before = fs::metadata(&file).expect("the copy").ino();
    let mut command = Command::new(&file);
    command.args(["wait-for-tcp", "127.0.0.1:1", "--timeout", "60"]).stderr(Stdio::null());
    let mut running = Daemon::spawn(command);
    // Control: writing into it is what the kernel refuses.
    std::thread::sleep(Duration::from_millis(200));
    let busy = fs::OpenOptions::new().write(true).open(&file).expect_err("a running program can be written");
    assert_eq!(busy.kind(), std::io::ErrorKind::ExecutableFileBusy);
    copied(&sideload(&file).output().expect("start"), &file);
    assert_ne!(fs::metadata(&file).expect("the copy").ino(), before);
    assert!(running.child().try_wait().expect("wait").is_none(), "what was running has ended");
}

#[test]
fn eight_at_once_leave_one_whole_copy() {
    let volume = volume();
    let file = volume.path().join("supervisor");
    let copies: Vec<_> = (0..8).map(|_| sideload(&file).stderr(Stdio::piped()).spawn().expect("start")).collect();
    for copy in copies {
        let output = copy.wait_with_output().expect("wait");
        copied(&output, &file);
    }
    assert_eq!(names(volume.path()), ["supervisor"]);
}

#[test]
fn whoever_is_killed_half_way_leaves_nothing() {
    let volume = volume();
    let file = volume.path().join("supervisor");
    fs::write(&file, "before").expect("write");
    let mut interrupted = 0;
    for delay in 0..40 {
        let mut child = sideload(&file).stderr(Stdio::null()).spawn().expect("start");
        std::thread::sleep(Duration::from_micros(500 * delay));
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        let _ = kill(pid, Signal::SIGKILL);
        let status = child.wait().expect("wait");
        interrupted += u32::from(!status.success());
        let content = fs::read(&file).expect("read");
        let whole = content == b"before" || content == fs::read(supervisor()).expect("the original");
        assert!(whole, "half a file of {} bytes under the final name", content.len());
    }
    assert!(interrupted > 0, "every copy was quicker than the first signal");
    // Control: one that is let be is whole. The next copy is no obstacle's, whatever the killed ones left.
    copied(&sideload(&file).output().expect("start"), &file);
    let left: u64 = names(volume.path()).iter().filter(|name| *name != "supervisor").count() as u64;
    assert!(left <= 1, "{left} temporary files were left behind: {:?}", names(volume.path()));
}

#[test]
fn a_missing_or_empty_destination_is_wrong_usage() {
    for arguments in [&["sideload"][..], &["sideload", ""]] {
        let output = Command::new(supervisor()).args(arguments).output().expect("start");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
