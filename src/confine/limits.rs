//! Resource limits of the workload (setrlimit(2)).

use std::str::FromStr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// Less address space than this and the supervisor's own code cannot even exec the workload.
const LEAST_ADDRESS_SPACE: u64 = 64 << 20;

/// Fewer descriptors than this and dynamic linking itself can fail.
const LEAST_FILES: u64 = 16;

/// Limits asked for; a field that is `None` keeps what the supervisor has. The core limit is always 0: a core of the
/// workload would be written wherever the *host's* `core_pattern` says, by root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open descriptors, `RLIMIT_NOFILE`.
    pub nofile: Option<u64>,
    /// Processes and threads of the workload's uid, `RLIMIT_NPROC`.
    pub nproc: Option<u64>,
    /// Bytes of address space per process, `RLIMIT_AS`.
    pub address_space: Option<u64>,
}

/// A limit that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// Not `NAME=VALUE` with a known name.
    #[error("limit {0:?}: expected NAME=VALUE with NAME one of nofile, nproc, as (bytes, or K, M, G)")]
    Syntax(String),
    /// A value out of range.
    #[error("limit {name}={value}: expected a whole number of at least {least}")]
    Value {
        /// The limit.
        name: &'static str,
        /// What was given.
        value: String,
        /// Smallest that works.
        least: u64,
    },
    /// The kernel refused.
    #[error("limit {name}={value}: {source}; the hard limit here is {hard}, and only CAP_SYS_RESOURCE raises it")]
    Refused {
        /// The limit.
        name: &'static str,
        /// What was asked.
        value: u64,
        /// What the hard limit is.
        hard: u64,
        /// What setrlimit(2) answered.
        source: nix::Error,
    },
}

impl Limits {
    /// Takes over one `--limit NAME=VALUE`.
    ///
    /// # Errors
    /// [`LimitError::Syntax`], [`LimitError::Value`].
    pub fn set(&mut self, assignment: &str) -> Result<(), LimitError> {
        let syntax = || LimitError::Syntax(assignment.to_owned());
        let (name, value) = assignment.split_once('=').ok_or_else(syntax)?;
        let (field, name, least) = match name {
            "nofile" => (&mut self.nofile, "nofile", LEAST_FILES),
            "nproc" => (&mut self.nproc, "nproc", 1),
            "as" => (&mut self.address_space, "as", LEAST_ADDRESS_SPACE),
            _ => return Err(syntax()),
        };
        let number = size(value).filter(|&number| number >= least);
        *field = Some(number.ok_or_else(|| LimitError::Value { name, value: value.to_owned(), least })?);
        Ok(())
    }

    /// Applies the limits to the calling process, hard and soft alike, so that the workload cannot raise them again.
    /// Comes before the identity drop: a supervisor with `CAP_SYS_RESOURCE` may raise one for its workload.
    ///
    /// # Errors
    /// [`LimitError::Refused`].
    pub fn apply(&self) -> Result<(), LimitError> {
        let wanted = [
            (Resource::RLIMIT_CORE, "core", Some(0)),
            (Resource::RLIMIT_NOFILE, "nofile", self.nofile),
            (Resource::RLIMIT_NPROC, "nproc", self.nproc),
            (Resource::RLIMIT_AS, "as", self.address_space),
        ];
        for (resource, name, value) in wanted {
            if let Some(value) = value {
                setrlimit(resource, value, value).map_err(|source| LimitError::Refused {
                    name,
                    value,
                    hard: getrlimit(resource).map_or(0, |(_, hard)| hard),
                    source,
                })?;
            }
        }
        Ok(())
    }
}

impl FromStr for Limits {
    type Err = LimitError;

    /// One assignment.
    fn from_str(text: &str) -> Result<Self, LimitError> {
        let mut limits = Self::default();
        limits.set(text)?;
        Ok(limits)
    }
}

fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child;

    #[test]
    fn assignments_are_read() {
        let mut limits = Limits::default();
        for text in ["nofile=1024", "nproc=64", "as=2G"] {
            limits.set(text).unwrap();
        }
        assert_eq!(limits, Limits { nofile: Some(1024), nproc: Some(64), address_space: Some(2 << 30) });
        for (text, part) in [
            ("nofile", "NAME=VALUE"),
            ("cpu=1", "nofile, nproc, as"),
            ("nofile=1", "at least 16"),
            ("nofile=-5", "whole number"),
            ("nofile=", "whole number"),
            ("as=1M", "at least 67108864"),
            ("as=99999999999G", "whole number"),
            ("nproc=1e3", "whole number"),
        ] {
            let message = text.parse::<Limits>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn limits_hold_and_cannot_be_raised_again() {
        let seen = child::run(|| {
            let before = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            Limits { nofile: Some(32), ..Limits::default() }.apply().unwrap();
            let after = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            let core = getrlimit(Resource::RLIMIT_CORE).unwrap();
            vec![u8::from(before != after), u8::from(after == (32, 32)), u8::from(core == (0, 0))]
        })
        .unwrap();
        assert_eq!(seen, [1, 1, 1]);
    }

    #[test]
    fn a_limit_beyond_the_hard_one_is_named() {
        let message = child::run(|| {
            setrlimit(Resource::RLIMIT_NPROC, 100, 100).unwrap();
            crate::sys::capability::set(crate::sys::capability::Sets::default()).unwrap();
            Limits { nproc: Some(200), ..Limits::default() }.apply().unwrap_err().to_string().into_bytes()
        })
        .unwrap();
        let message = String::from_utf8(message).unwrap();
        assert!(message.contains("nproc=200") && message.contains("hard limit here is 100"), "{message}");
    }
}
