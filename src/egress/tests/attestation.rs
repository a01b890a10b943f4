//! What a connection from another pod begins with, and how long that may take.

use std::time::Instant;

use super::*;
use crate::attest::{BEGIN, Key, UNKNOWN_SESSION};

/// A preface of a session that nobody opened, as long as `statement` says it is.
fn preface(statement: u16) -> Vec<u8> {
    // The kind, the session, and the counter; then the statement's length, it and its code.
    let head = [&BEGIN[..], &[5], &[b'i'; 16], &[0; 8], &statement.to_be_bytes()].concat();
    [head, vec![b'z'; usize::from(statement) + 32]].concat()
}

#[tokio::test]
async fn a_preface_comes_within_one_time_however_little_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [7; 64]).unwrap();
    let verifier = Verifier::new(Key::read(file.path()).unwrap());
    let resolver = Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53);
    let head = Duration::from_secs(4);
    let patience = Patience { head, ..Patience::default() };
    let fixture = Fixture::with_all(Vec::new(), resolver, patience, None, None, Some(verifier)).await;
    let preface = preface(1000);
    let (pause, piece) = (Duration::from_millis(100), preface.len().div_ceil(10));
    for (piece, answered) in [(piece, true), (1, false)] {
        let begin = Instant::now();
        let (mut reader, mut writer) = TcpStream::connect(fixture.address).await.unwrap().into_split();
        let bytes = preface.clone();
        let dripping = tokio::spawn(async move {
            for part in bytes.chunks(piece) {
                if writer.write_all(part).await.is_err() {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
        });
        let mut answer = vec![0; UNKNOWN_SESSION.len()];
        let read = tokio::time::timeout(5 * head, reader.read_exact(&mut answer)).await.expect("an end");
        // Control: as many waits, each as long, are borne while the whole comes in time.
        assert_eq!(read.is_ok(), answered, "after {:?}", begin.elapsed());
        assert!(!answered || answer == UNKNOWN_SESSION);
        assert!(answered || begin.elapsed() >= head, "{:?}", begin.elapsed());
        dripping.abort();
    }
}
