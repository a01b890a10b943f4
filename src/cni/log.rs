//! The node's record of what the plugin did: a line a call that concerned a sandbox, or failed.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::call::{Call, PodReference};
use crate::event::time;

/// At this size the record is put aside, in the place of the one before, and begun anew: a node keeps two of them.
const LOG_BYTES: u64 = 8 << 20;

/// Longest line: `PIPE_BUF`, so that plugins that run at the same time do not write into each other's.
const LINE_BYTES: usize = 4096;

/// The record, if there is to be one.
#[derive(Clone, Debug, Default)]
pub struct Log {
    path: Option<PathBuf>,
}

impl Log {
    /// The record at `path`.
    #[must_use]
    pub fn at(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned) }
    }

    /// Notes what became of a call. A record that cannot be written is no reason to refuse a pod, or to let one be.
    pub fn note(&self, call: Option<&Call>, outcome: &str) {
        let Some(path) = &self.path else { return };
        let mut line = line(call, outcome);
        line.truncate(line.floor_char_boundary(LINE_BYTES - 1));
        line.push('\n');
        let _ = append(path, line.as_bytes());
    }
}

fn line(call: Option<&Call>, outcome: &str) -> String {
    let command = call.map_or("-", |call| call.command.name());
    let pod = match call.map(|call| &call.pod) {
        Some(PodReference { namespace: Some(namespace), name: Some(name), .. }) => format!("{namespace}/{name}"),
        _ => "-".to_owned(),
    };
    let line = format!("{} command={command} pod={pod} {outcome}", time::rfc3339(SystemTime::now()));
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn append(path: &Path, line: &[u8]) -> std::io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|status| status.len() >= LOG_BYTES) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        fs::rename(path, aside)?;
    }
    // Not through a link, which might lead to a file that is no record, and not into a pipe that nobody reads.
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK)
        .open(path)?
        .write_all(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::call::Command;

    #[test]
    fn a_call_is_a_line_of_bounded_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cni.log");
        let pod = PodReference { namespace: Some("agents".into()), name: Some("a-0".into()), uid: None };
        let call = Call { command: Command::Add, netns: None, pod };
        let log = Log::at(Some(&path));
        log.note(Some(&call), "status=fenced\nproxy=0:1337");
        log.note(None, &"ä".repeat(LINE_BYTES));
        Log::at(None).note(None, "nowhere");
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with(" command=ADD pod=agents/a-0 status=fenced proxy=0:1337"), "{}", lines[0]);
        assert!(lines[1].len() < LINE_BYTES && lines[1].contains("command=- pod=- ää"), "{}", lines[1]);
    }

    #[test]
    fn the_record_is_put_aside_when_it_is_long_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cni.log");
        fs::File::create(&path).unwrap().set_len(LOG_BYTES).unwrap();
        Log::at(Some(&path)).note(None, "x");
        assert!(fs::metadata(&path).unwrap().len() < 100);
        assert_eq!(fs::metadata(directory.path().join("cni.log.1")).unwrap().len(), LOG_BYTES);
        let target = directory.path().join("target");
        fs::write(&target, "kept").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        Log::at(Some(&link)).note(None, "x");
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    }
}
