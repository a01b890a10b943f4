//! What of the machine must not be seen from inside: the places where control sockets, agents and credentials live,
//! and every socket that is bound to a path right now.
//!
//! Landlock at ABI 7 does not stop `connect` to a path that was never granted, so a socket that is in sight is a
//! socket that can be spoken to. Therefore what is not granted is out of sight altogether ([`super::mounts`]), and these
//! lists are for what is granted whole.
//!
//! What they cannot find in there: a socket that is bound later, or by a relative path, or in another network namespace
//! (a `hostPath` volume). The last has to be named in [`super::Isolation::hide`]; against the others, directories where
//! others than the workload bind sockets are not to be granted.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::Error;

/// Directories that are covered whole. `/var/run` counts only where it is not the usual link to `/run`.
pub(super) const DIRECTORIES: [&str; 4] = ["/run", "/var/run", "/etc/openshell", "/etc/openshell-tls"];

/// Directories below `/tmp`, where anyone can put a link in their place: links are not followed there.
pub(super) const TMP: &str = "/tmp";
pub(super) const TMP_DIRECTORIES: [&str; 3] = [".X11-unix", ".ICE-unix", ".dbus"];
/// Agents make directories of their own there: OpenSSH `ssh-XXXXXX`, GNOME `keyring-XXXXXX`, GnuPG `gpg-XXXXXX`.
pub(super) const TMP_PREFIXES: [&str; 3] = ["ssh-", "keyring-", "gpg-"];

/// More of them than this is somebody's attempt to be in the way.
pub(super) const TMP_LIMIT: usize = 1024;

/// Different paths that sockets are bound to. A busy node has some hundred.
const SOCKET_LIMIT: usize = 8192;

/// Variables that hold the path of a socket, or an address of the form `unix:path=…` or `unix://…`.
const SOCKET_VARIABLES: [&str; 9] = [
    "SSH_AUTH_SOCK",
    "GPG_AGENT_INFO",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "WAYLAND_DISPLAY",
    "PULSE_SERVER",
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "BUILDKIT_HOST",
];

/// What an environment says is the session's own, as far as it is there: sockets of agents, buses and container
/// runtimes, and the runtime directory. The supervisor adds these to [`super::Isolation::hide`], because
/// [`super::isolate`] runs where the environment has been cleared.
pub fn named_places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        SOCKET_VARIABLES.iter().filter_map(|name| variable(name)).flat_map(|value| socket_paths(&value)).collect();
    if let Some(home) = variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        paths.extend([".docker/run/docker.sock", ".docker/desktop/docker.sock"].map(|path| home.join(path)));
    }
    // A variable can name anything; what is no socket is not the session's, and may be a directory full of work.
    paths.retain(|path| fs::metadata(path).is_ok_and(|status| status.file_type().is_socket()));
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute() && private(path));
    paths.extend(runtime);
    paths
}

/// Whether a path is a directory of ours that nobody else can enter, as the XDG Base Directory Specification wants the
/// runtime directory: `/tmp` in its place must not hide all of `/tmp`.
fn private(path: &Path) -> bool {
    const OTHERS: u32 = 0o077;
    fs::metadata(path)
        .is_ok_and(|status| status.is_dir() && status.uid() == geteuid().as_raw() && status.mode() & OTHERS == 0)
}

/// Every absolute path in a variable's value: D-Bus addresses are lists (`;`) of `transport:key=value,…`, gpg-agent's
/// old form is `path:pid:protocol`, PulseAudio's may be preceded by `{machine}unix:`.
fn socket_paths(value: &OsStr) -> Vec<PathBuf> {
    let value = value.as_bytes();
    let start = |part: &[u8]| part.iter().position(|byte| *byte == b'/');
    value
        .split(|byte| matches!(byte, b';' | b','))
        .filter_map(|part| start(part).map(|start| &part[start..]))
        .filter_map(|path| path.split(|byte| *byte == b':').next())
        // `unix:///run/x.sock` leaves its three slashes in front, which name the same path.
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
        .collect()
}

/// The absolute paths that sockets of this network namespace are bound to, as far as `/proc/self/net/unix`
/// (proc(5)) tells.
///
/// # Errors
/// The file cannot be read, or lists more than can be covered.
pub(super) fn bound_sockets() -> Result<BTreeSet<PathBuf>, Error> {
    const PATH: &str = "/proc/self/net/unix";
    let listing = |source| Error::Listing { path: PATH, source };
    let file = match File::open(PATH) {
        // A kernel without Unix sockets has none to hide.
        Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new("/proc/self/net").exists() => {
            return Ok(BTreeSet::new());
        }
        file => file.map_err(listing)?,
    };
    let mut paths = BTreeSet::new();
    for line in BufReader::new(file).split(b'\n') {
        if let Some(path) = bound_path(&line.map_err(listing)?) {
            paths.insert(path);
            if paths.len() > SOCKET_LIMIT {
                return Err(Error::TooMany { what: "sockets", limit: SOCKET_LIMIT });
            }
        }
    }
    Ok(paths)
}

/// The path in a line `Num RefCount Protocol Flags Type St Inode Path`. Abstract names begin with `@`; they are out of
/// reach in another network namespace (unix(7)).
fn bound_path(line: &[u8]) -> Option<PathBuf> {
    let slash = line.windows(2).position(|pair| pair == b" /")?;
    let before = line[..slash].split(|byte| *byte == b' ').filter(|field| !field.is_empty()).count();
    const FIELDS_BEFORE_PATH: usize = 7;
    (before == FIELDS_BEFORE_PATH).then(|| PathBuf::from(OsString::from_vec(line[slash + 1..].to_vec())))
}

/// Mount points, from `/proc/self/mountinfo` (proc(5)): a container runtime's socket that was mounted somewhere else is
/// bound in another network namespace, and is a mount point here.
///
/// # Errors
/// The file cannot be read.
pub(super) fn mount_points() -> Result<Vec<PathBuf>, Error> {
    const PATH: &str = "/proc/self/mountinfo";
    const POINT: usize = 4;
    let content = fs::read(PATH).map_err(|source| Error::Listing { path: PATH, source })?;
    Ok(content
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(POINT))
        .map(|point| PathBuf::from(OsString::from_vec(unescaped(point))))
        .collect())
}

/// Undoes the octal escapes (`\040`) of mountinfo.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_every_form_of_variable() {
        let cases: [(&str, &[&str]); 7] = [
            ("/tmp/ssh-x/agent.1", &["/tmp/ssh-x/agent.1"]),
            ("unix:path=/run/user/1000/bus,guid=ab", &["/run/user/1000/bus"]),
            ("unix:path=/a;unix:abstract=b;unix:path=/c", &["/a", "/c"]),
            ("unix:///run/docker.sock", &["///run/docker.sock"]),
            ("/home/u/.gnupg/S.gpg-agent:12:1", &["/home/u/.gnupg/S.gpg-agent"]),
            ("tcp://127.0.0.1:2375", &["//127.0.0.1"]),
            ("wayland-0", &[]),
        ];
        for (value, expected) in cases {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(socket_paths(OsStr::new(value)), expected, "{value}");
        }
    }

    #[test]
    fn only_absolute_paths_are_taken_from_the_socket_list() {
        let path = |line: &str| bound_path(line.as_bytes());
        let head = "00000000e3a1: 00000002 00000000 00010000 0001 01 20571";
        assert_eq!(path(&format!("{head} /run/a b.sock")), Some(PathBuf::from("/run/a b.sock")));
        assert_eq!(path(&format!("{head} @/tmp/.X11-unix/X0")), None);
        assert_eq!(path(&format!("{head} relative /x")), None);
        assert_eq!(path(head), None);
        assert_eq!(path("Num       RefCount Protocol Flags    Type St Inode Path"), None);
    }

    #[test]
    fn mountinfo_escapes_are_undone() {
        assert_eq!(unescaped(br"/a\040b\134c\011"), b"/a b\\c\t");
        assert_eq!(unescaped(br"/a\9\04"), br"/a\9\04");
    }
}
