//! Both sides against each other, and against those who are neither.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::attribution::{Executable, Program};

fn statement(path: &str) -> Statement {
    let executable = Executable { path: path.into(), sha256: [5; 32] };
    Statement::Program(Attested { program: Program { executable, ancestors: Arc::from([]) }, pid: 1, uid: 2 })
}

async fn read_message(stream: &mut DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Begun::Short(_) = begun(&bytes) {
        stream.read_buf(&mut bytes).await.unwrap();
    }
    bytes
}

/// A session of `client`'s key at a verifier, and the connection that it lives by.
async fn session<'v>(verifier: &'v Verifier, client: &Key) -> Result<(Session, Admission<'v>), OpenError> {
    let (mut ours, mut theirs) = duplex(1024);
    let admitted = async {
        let hello = read_message(&mut theirs).await;
        let admission = verifier.admit(&mut theirs, &hello).await;
        drop(theirs);
        admission
    };
    // Who gives up hangs up.
    let opened = async move { open(&mut ours, client).await };
    let (opened, admitted) = tokio::join!(opened, admitted);
    Ok((opened?, admitted?))
}

#[tokio::test]
async fn what_one_side_states_the_other_believes_once() {
    let verifier = Verifier::new(Key::of(&[1; 32]));
    let (session, admission) = session(&verifier, &Key::of(&[1; 32])).await.unwrap();
    let first = session.preface(&statement("/usr/bin/curl"));
    let second = session.preface(&statement("/usr/bin/git"));
    // Out of order, and each once.
    assert_eq!(verifier.believe(&second), Ok(statement("/usr/bin/git")));
    assert_eq!(verifier.believe(&first), Ok(statement("/usr/bin/curl")));
    assert_eq!(verifier.believe(&first), Err(Refusal::Replayed));
    assert_eq!(begun(&first), Begun::Preface(first.len()));
    // Not a bit of it may differ.
    let genuine = session.preface(&statement("/usr/bin/curl"));
    for at in 0..genuine.len() {
        let mut forged = genuine.clone();
        forged[at] ^= 1;
        let outcome = if begun(&forged) == Begun::Preface(forged.len()) { verifier.believe(&forged) } else { continue };
        assert!(
            matches!(outcome, Err(Refusal::Forged | Refusal::UnknownSession | Refusal::Malformed)),
            "{at}: {outcome:?}"
        );
    }
    assert_eq!(verifier.believe(&genuine), Ok(statement("/usr/bin/curl")), "control");
    // The session ends with its connection.
    drop(admission);
    assert_eq!(verifier.believe(&session.preface(&statement("/bin/sh"))), Err(Refusal::UnknownSession));
}

#[tokio::test]
async fn who_has_not_the_key_opens_nothing() {
    let verifier = Verifier::new(Key::of(&[1; 32]));
    let other = Key::of(&[2; 32]);
    assert!(matches!(session(&verifier, &other).await, Err(OpenError::OtherKey)));
    // One that goes on without checking is no better off.
    let (mut ours, mut theirs) = duplex(1024);
    let hello = wire::hello(&[9; 32]);
    ours.write_all(&wire::proof(&[7; 32])).await.unwrap();
    let refused = verifier.admit(&mut theirs, &hello).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // A preface by another session's key.
    let foreign = Verifier::new(Key::of(&[2; 32]));
    let (session, _admission) = self::session(&foreign, &other).await.unwrap();
    assert_eq!(verifier.believe(&session.preface(&statement("/bin/sh"))), Err(Refusal::UnknownSession));
    assert!(foreign.believe(&session.preface(&statement("/bin/sh"))).is_ok(), "control");
}

#[tokio::test]
async fn a_stranger_is_told_from_a_proxy() {
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "\u{a7}XY"] {
        let (mut ours, mut theirs) = duplex(1024);
        let speaks = async {
            let _ = read_message(&mut theirs).await;
            theirs.write_all(answer.as_bytes()).await.unwrap();
            // It waits for more.
            theirs
        };
        let key = Key::of(&[1; 32]);
        let (opened, _theirs) = tokio::join!(open(&mut ours, &key), speaks);
        assert!(matches!(opened, Err(OpenError::Stranger)), "{answer}");
    }
}

#[test]
fn http_is_never_taken_for_ours() {
    for text in ["CONNECT a:1 HTTP/1.1\r\n", "GET http://a/ HTTP/1.1\r\n", "\r\nGET", "\x16\x03\x01", "x"] {
        assert_eq!(begun(text.as_bytes()), Begun::Other, "{text:?}");
    }
    assert_eq!(begun(&[]), Begun::Short(5));
    assert_eq!(begun(&BEGIN), Begun::Short(5));
    assert_eq!(begun(&[0xa7, b'O', b'S', 2]), Begun::Malformed);
    assert_eq!(begun(&[0xa7, b'O', b'S', 1, 99]), Begun::Malformed);
    assert_eq!(begun(&UNKNOWN_SESSION), Begun::Malformed);
}
