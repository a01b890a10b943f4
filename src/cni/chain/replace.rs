//! Editing a file that somebody else rewrites whenever they like.
//!
//! Whoever reads finds their whole text or our whole text, and of what they wrote nothing is lost: the edited file does
//! not replace theirs but changes places with it (renameat2(2), RENAME_EXCHANGE), so that what was really there can
//! be looked at afterwards. Was it not what the edit had been made of, because they wrote in between, then theirs is
//! edited in its turn. One who truncated the file and is still writing it goes on writing to what lies aside by then,
//! and is waited for.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::directory::{Content, Directory, Found, PAUSE};
use super::error::ChainError;
use crate::sys::file;

/// How often an edit is begun anew because somebody else wrote: each takes a few milliseconds, and daemons write their
/// configuration a few times at start.
const ATTEMPTS: u32 = 16;

/// How long one is waited for who has the file open for writing.
const WRITER_PATIENCE: Duration = Duration::from_secs(2);

/// What came of an edit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Edited {
    /// The file is not there.
    Gone,
    /// There was nothing to change.
    Unchanged,
    /// It was changed.
    Written,
    /// It is not to be edited, and why.
    Refused(String),
}

/// Why there is no edited text.
pub(super) enum Stop {
    /// What lies there is not to be edited.
    Refused(String),
    /// A step of the edit failed.
    Failed(ChainError),
}

/// Replaces the file under `name` by what `make` makes of it, nothing meaning that it is right already. `make` may be
/// called several times, and answers for the sense of what it makes.
pub(super) fn edit(
    directory: &Directory,
    name: &OsStr,
    mut make: impl FnMut(&Content) -> Result<Option<Vec<u8>>, Stop>,
) -> Result<Edited, ChainError> {
    let Some(mut present) = present(directory, name)? else { return Ok(Edited::Gone) };
    // What the next text is made of, where it is not what lies under the name.
    let mut aside: Option<Content> = None;
    for _ in 0..ATTEMPTS {
        let text = match (make(aside.as_ref().unwrap_or(&present)), &aside) {
            (Ok(Some(text)), _) => text,
            (Ok(None), Some(aside)) => aside.bytes.clone(),
            (Ok(None), None) => return Ok(Edited::Unchanged),
            (Err(Stop::Failed(error)), _) => return Err(error),
            (Err(Stop::Refused(why)), None) => return Ok(Edited::Refused(why)),
            // They wrote something unusable, or died over it; the edit of what lay there before stands.
            (Err(Stop::Refused(_)), Some(_)) => return Ok(Edited::Written),
        };
        let attributes = aside.as_ref().unwrap_or(&present).attributes;
        let prepared = directory.prepare(&text, attributes)?;
        let Some(now) = self::present(directory, name)? else { return Ok(Edited::Gone) };
        if now.bytes != present.bytes {
            (present, aside) = (now, None);
            continue;
        }
        match prepared.exchange(name) {
            Ok(true) => directory.sync()?,
            // Their text can be lost here, in the instant since it was read again; the file systems of nodes can
            // exchange.
            Ok(false) => {
                prepared.rename(name)?;
                directory.sync()?;
                return Ok(Edited::Written);
            }
            Err(Errno::ENOENT) => return Ok(Edited::Gone),
            Err(error) => return Err(directory.failed("replace", name, error)),
        }
        let displaced = settled(directory, prepared.name())?;
        if displaced.as_ref().is_some_and(|displaced| displaced.bytes == present.bytes) {
            return Ok(Edited::Written);
        }
        let Some(now) = self::present(directory, name)? else { return Ok(Edited::Gone) };
        // Unless they have written yet again, theirs is what lies aside.
        aside = if now.bytes == text { displaced } else { None };
        present = now;
    }
    Err(ChainError::Contended { path: directory.at(name), attempts: ATTEMPTS })
}

fn present(directory: &Directory, name: &OsStr) -> Result<Option<Content>, ChainError> {
    match directory.read(name)? {
        Found::File(content) => Ok(Some(content)),
        Found::Absent | Found::Directory | Found::Odd(_) => Ok(None),
    }
}

/// What was displaced, once nobody writes it any longer; nothing where it can be no configuration.
fn settled(directory: &Directory, name: &OsStr) -> Result<Option<Content>, ChainError> {
    let latest = Instant::now() + WRITER_PATIENCE;
    // Where it cannot be told who writes, nobody is taken to.
    while file::is_being_written(directory.open_file(name)?).unwrap_or(false) && Instant::now() < latest {
        std::thread::sleep(PAUSE);
    }
    present(directory, name)
}
