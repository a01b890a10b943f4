//! Files and directories into the sandbox and out of it, as one tar stream each: what packs and unpacks here is what does it
//! there.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Buf;
use tokio::sync::mpsc;

use super::progress::Progress;
use super::{ClientError, connect, ended, open, own};
use crate::access::carry::{IN, OUT};
use crate::access::files::shown::Lines;
use crate::access::files::tar::{self, Summary, TarError, Wanted};
use crate::access::place::Place;
use crate::access::ssh::channel::{Channel, Closed, Stream};
use crate::access::ssh::wire::Writer;
use crate::contract::exit;

/// Pieces of a stream that wait on this side, each of a few hundred kilobytes at most.
const PIECES: usize = 4;

/// Deepest directory that is looked into beforehand, for the length of the bar.
const MEASURED_DEPTH: usize = 64;

/// Sends each of `paths`, with all that is in it, into `directory` inside, which is made if it is not there. What could not be
/// sent is told on standard error; the exit code says whether there was any.
///
/// # Errors
/// [`ClientError`].
pub async fn upload(place: &Place, paths: &[PathBuf], directory: &Path) -> Result<u8, ClientError> {
    let opener = connect(place).await?;
    let mut code = 0;
    for path in paths {
        let (parent, name) = beside(path)?;
        let channel = Arc::new(open(&opener, "session", &[]).await?);
        ask(&channel, IN, directory);
        let (pieces, mut stream) = mpsc::channel(PIECES);
        let packed = {
            let (parent, name) = (parent.clone(), name.clone());
            tokio::task::spawn_blocking(move || {
                let mut report = tar::Placed::new(io::stderr(), "", &parent);
                tar::create(Pieces(pieces), &parent, &[name], &mut report)
            })
        };
        let mut progress = Progress::begin(&name.to_string_lossy(), measure(&parent.join(&name), MEASURED_DEPTH));
        let feed = async {
            let mut sent = 0;
            while let Some(piece) = stream.recv().await {
                channel.send(Stream::Data, &piece).await?;
                sent += piece.len() as u64;
                progress.iter_mut().for_each(|progress| progress.show(sent));
            }
            channel.eof();
            Ok::<_, Closed>(())
        };
        let (fed, errors, ending) = tokio::join!(feed, show_said(&channel), ended(&channel));
        drop(stream);
        errors?;
        let ending = ending.ok_or(Closed)?;
        let packed = packed.await.map_err(|error| own("packing")(io::Error::other(error)))?;
        // Why the other end stopped has been said by it.
        if ending == 0 {
            fed?;
        }
        code = code.max(ending).max(outcome(packed, ending)?);
    }
    Ok(code)
}

/// Fetches each of `paths`, with all that is in it, into `directory` here, which is made if it is not there. What could not be
/// fetched, and what came without being asked for, is told on standard error; the exit code says whether there was any.
///
/// # Errors
/// [`ClientError`].
pub async fn download(place: &Place, paths: &[PathBuf], directory: &Path) -> Result<u8, ClientError> {
    std::fs::create_dir_all(directory).map_err(own("mkdir"))?;
    let opener = connect(place).await?;
    let mut code = 0;
    for path in paths {
        let channel = Arc::new(open(&opener, "session", &[]).await?);
        ask(&channel, OUT, path);
        channel.eof();
        let (pieces, stream) = mpsc::channel(PIECES);
        let unpacked = {
            let (directory, wanted) = (directory.to_owned(), wanted(path));
            tokio::task::spawn_blocking(move || {
                let arriving = Arriving { stream, piece: bytes::BytesMut::new() };
                let mut report = tar::Placed::new(io::stderr(), "", &directory);
                tar::extract(arriving, &directory, &wanted, &mut report)
            })
        };
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let mut progress = Progress::begin(&name, None);
        let take = async {
            let mut received = 0;
            while let Some(piece) = channel.take(Stream::Data).await {
                received += piece.len() as u64;
                progress.iter_mut().for_each(|progress| progress.show(received));
                // Who unpacks may have given up, and says why.
                if pieces.send(piece).await.is_err() {
                    break;
                }
            }
            drop(pieces);
        };
        let ((), errors, ending) = tokio::join!(take, show_said(&channel), ended(&channel));
        errors?;
        let ending = ending.ok_or(Closed)?;
        let unpacked = unpacked.await.map_err(|error| own("unpacking")(io::Error::other(error)))?;
        code = code.max(ending).max(outcome(unpacked, ending)?);
    }
    Ok(code)
}

/// What may come for a path: the other side is a sandbox's, and what it sends beside that is nobody's wish (as scp's
/// CVE-2019-6111 was). `.`, `..`, `/` and `~` have no name that this side knows, and so mean whatever is in them.
fn wanted(path: &Path) -> Wanted {
    match path.file_name() {
        Some(name) if path != Path::new("~") => Wanted::Named(name.as_bytes().to_vec()),
        _ => Wanted::Everything,
    }
}

/// Shows what the other side says beside the files: its words, and nothing that steers a terminal.
async fn show_said(channel: &Channel) -> Result<(), ClientError> {
    let mut lines = Lines::default();
    while let Some(data) = channel.take(Stream::Error).await {
        lines.show(&data, &mut io::stderr()).map_err(own("standard error"))?;
    }
    lines.end(&mut io::stderr()).map_err(own("standard error"))
}

fn ask(channel: &Channel, subsystem: &str, path: &Path) {
    let mut name = format!("{subsystem} ").into_bytes();
    name.extend_from_slice(path.as_os_str().as_bytes());
    let mut details = Vec::new();
    details.put_string(&name);
    channel.send_request("subsystem", true, &details);
}

/// The exit code of this side; where the other has failed, what followed from that here is not told as well.
fn outcome(done: Result<Summary, TarError>, ending: u8) -> Result<u8, ClientError> {
    match done {
        Ok(summary) if summary.failed == 0 => Ok(0),
        Ok(_) => Ok(exit::INCOMPLETE),
        Err(_) if ending != 0 => Ok(ending),
        Err(error) => Err(own("tar")(io::Error::other(error))),
    }
}

/// The directory that a path is in, and its name there: what arrives has that name. `..` and `/` have none, and what is in
/// them arrives.
fn beside(path: &Path) -> Result<(PathBuf, PathBuf), ClientError> {
    let absolute = std::path::absolute(path).map_err(own("the current directory"))?;
    let named = path.components().next_back().is_some_and(|last| matches!(last, std::path::Component::Normal(_)));
    Ok(match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) if named => (parent.to_owned(), name.into()),
        _ => (absolute, ".".into()),
    })
}

/// Bytes of the files below a path, as far as they can be seen.
fn measure(path: &Path, depth: usize) -> Option<u64> {
    let status = std::fs::symlink_metadata(path).ok()?;
    if !status.is_dir() {
        return Some(if status.is_file() { status.len() } else { 0 });
    }
    let entries = std::fs::read_dir(path).ok()?;
    let depth = depth.checked_sub(1)?;
    Some(entries.flatten().filter_map(|entry| measure(&entry.path(), depth)).sum())
}

/// Where the archive is written to, a piece at a time; waits while nobody takes it.
struct Pieces(mpsc::Sender<Vec<u8>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(bytes.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where the archive is read from; waits until there is more of it.
struct Arriving {
    stream: mpsc::Receiver<bytes::BytesMut>,
    piece: bytes::BytesMut,
}

impl Read for Arriving {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.stream.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = self.piece.len().min(out.len());
        self.piece.copy_to_slice(&mut out[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_has_its_name_and_what_has_none_is_everything() {
        for (path, name) in
            [("a", "a"), ("work/result", "result"), ("work/result/", "result"), ("~/x", "x"), ("a/.", "a")]
        {
            assert_eq!(wanted(Path::new(path)), Wanted::Named(name.into()), "{path}");
        }
        for path in [".", "..", "/", "~", "a/..", "~/"] {
            assert_eq!(wanted(Path::new(path)), Wanted::Everything, "{path}");
        }
    }
}
