//! What is stated about a connection: its program, or why there is none.

use std::sync::Arc;

use super::wire::STATEMENT_BYTES;
use crate::attribution::{Executable, Program};

/// Ancestors stated, nearest first: as many as [`crate::attribution`] looks for. Those that do not fit are left out, which
/// only takes rights away.
const ANCESTORS: usize = 64;

/// Longest reason, in bytes.
const REASON: usize = 1024;

const PROGRAM: u8 = 1;
const UNIDENTIFIED: u8 = 2;

/// A connection's owner, as the supervisor beside the workload found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attested {
    /// What the owner runs.
    pub program: Program,
    /// Its process, as the agent's pod numbers it.
    pub pid: u32,
    /// User that opened the socket.
    pub uid: u32,
}

/// What is said of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// This program's.
    Program(Attested),
    /// Nobody's that could be named, for this reason.
    Unidentified(String),
}

impl Statement {
    /// As bytes, at most [`STATEMENT_BYTES`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        match self {
            Self::Program(Attested { program, pid, uid }) => {
                bytes.push(PROGRAM);
                bytes.extend_from_slice(&pid.to_be_bytes());
                bytes.extend_from_slice(&uid.to_be_bytes());
                append(&mut bytes, &program.executable);
                for ancestor in program.ancestors.iter().take(ANCESTORS) {
                    let before = bytes.len();
                    append(&mut bytes, ancestor);
                    if bytes.len() > STATEMENT_BYTES {
                        bytes.truncate(before);
                        break;
                    }
                }
            }
            Self::Unidentified(reason) => {
                bytes.push(UNIDENTIFIED);
                let end = (0..=REASON.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end));
                bytes.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
            }
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) has written; `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, mut rest) = bytes.split_first()?;
        match kind {
            PROGRAM => {
                let pid = u32::from_be_bytes(take(&mut rest)?);
                let uid = u32::from_be_bytes(take(&mut rest)?);
                let executable = executable(&mut rest)?;
                let mut ancestors = Vec::new();
                while !rest.is_empty() {
                    if ancestors.len() == ANCESTORS {
                        return None;
                    }
                    ancestors.push(self::executable(&mut rest)?);
                }
                let program = Program { executable, ancestors: ancestors.into() };
                Some(Self::Program(Attested { program, pid, uid }))
            }
            UNIDENTIFIED if rest.len() <= REASON => String::from_utf8(rest.to_vec()).ok().map(Self::Unidentified),
            _ => None,
        }
    }
}

fn append(bytes: &mut Vec<u8>, executable: &Executable) {
    let path = executable.path.as_bytes();
    bytes.extend_from_slice(&executable.sha256);
    // What does not fit here does not fit into the statement either.
    bytes.extend_from_slice(&u16::try_from(path.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(path);
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

fn executable(bytes: &mut &[u8]) -> Option<Executable> {
    let sha256 = take(bytes)?;
    let length = usize::from(u16::from_be_bytes(take(bytes)?));
    let (path, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    let path: Arc<str> = std::str::from_utf8(path).ok()?.into();
    Some(Executable { path, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn program(paths: &[String]) -> Statement {
        let mut all =
            paths.iter().map(|path| Executable { path: path.as_str().into(), sha256: [path.len() as u8; 32] });
        let executable = all.next().unwrap();
        Statement::Program(Attested { program: Program { executable, ancestors: all.collect() }, pid: 7, uid: 1000 })
    }

    #[test]
    fn what_is_stated_is_read() {
        let statements = [
            program(&["/usr/bin/curl".into()]),
            program(&["/usr/bin/git".into(), "/usr/bin/bash".into(), "/opt/ä/agent".into()]),
            Statement::Unidentified("several programs hold it".into()),
            Statement::Unidentified(String::new()),
        ];
        for statement in statements {
            assert_eq!(Statement::decode(&statement.encode()), Some(statement));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_far_end() {
        let long = "/x".repeat(2000);
        let bytes = program(&vec![long.clone(); 60]).encode();
        assert!(bytes.len() <= STATEMENT_BYTES);
        let Some(Statement::Program(read)) = Statement::decode(&bytes) else { panic!("unreadable") };
        assert_eq!((read.program.ancestors.len(), &*read.program.executable.path), (3, &*long));
        let Some(Statement::Unidentified(reason)) =
            Statement::decode(&Statement::Unidentified("ä".repeat(2000)).encode())
        else {
            panic!("unreadable")
        };
        assert_eq!(reason.len(), REASON);
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Statement::decode(&bytes);
            let _ = super::super::wire::read_preface(&bytes);
            let _ = super::super::begun(&bytes);
        }
    }
}
