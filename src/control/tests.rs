use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

use super::*;

fn link<R: serde::de::DeserializeOwned, S: serde::Serialize>(stream: UnixStream) -> Link<R, S> {
    Link::over(stream)
}

/// A directory as `network-init` leaves it, and who may come to it.
fn shared() -> (tempfile::TempDir, Expected) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o2750)).unwrap();
    (directory, Expected { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() })
}

#[tokio::test]
async fn messages_come_as_they_went_however_large() {
    let (one, other) = UnixStream::pair().unwrap();
    let (mut network, mut process) = (link::<Report, Instruction>(one), link::<Instruction, Report>(other));
    let trusted = Gathered { everybody: "x\n".repeat(1 << 20), ..Gathered::default() };
    let hello = Report::Hello { version: VERSION, trusted };
    let (sent, received) = tokio::join!(process.send(&hello), network.receive());
    sent.unwrap();
    assert_eq!(received.unwrap(), hello);
    let state = Instruction::State(Box::new(State { proxy: "http://127.0.0.1:3128".into(), ..State::default() }));
    network.send(&state).await.unwrap();
    network.send(&Instruction::Noted).await.unwrap();
    assert_eq!(process.receive().await.unwrap(), state);
    assert_eq!(process.receive().await.unwrap(), Instruction::Noted);
    drop(network);
    assert!(matches!(process.receive().await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn what_is_no_message_is_refused_without_taking_its_length_in_memory() {
    for (bytes, expected) in [
        (&b"\xff\xff\xff\xff"[..], "exceeds"),
        (b"\0\0\0\x02{}", "no message"),
        (b"\0\0\0\x02x", "gone"),
        (b"\0\0", "gone"),
        (b"", "gone"),
    ] {
        let (one, mut other) = UnixStream::pair().unwrap();
        other.write_all(bytes).await.unwrap();
        drop(other);
        let error = link::<Report, Instruction>(one).receive().await.unwrap_err();
        assert!(error.to_string().contains(expected), "{bytes:?}: {error}");
    }
    let (one, _other) = UnixStream::pair().unwrap();
    let trusted = Gathered { everybody: "x".repeat(frame::FRAME_LIMIT), ..Gathered::default() };
    let error = link::<Instruction, Report>(one).send(&Report::Hello { version: VERSION, trusted }).await.unwrap_err();
    assert!(error.to_string().contains("exceeds"), "{error}");
}

#[tokio::test]
async fn a_stranger_does_not_get_in() {
    let (directory, own) = shared();
    let path = directory.path().join("control.sock");
    for (expected, reason) in [
        (Expected { uid: own.uid + 1, ..own }, "comes from user"),
        // What a workload could do: it has the user, the group and the executable, and a parent.
        (own, "only a container's entrypoint"),
    ] {
        let door = Door::open(&path, expected).unwrap();
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let admitting = tokio::spawn(door.admit(move |other, count| said.send(format!("{count} {other}")).unwrap()));
        for turn in 0..3 {
            // It is told why and sent away, and the door stays open for another.
            let mut refused = link::<Instruction, Report>(UnixStream::connect(&path).await.unwrap());
            let answer = refused.receive().await.unwrap();
            assert!(
                matches!(&answer, Instruction::Refused { reason: told } if told.contains(reason)),
                "{turn}: {answer:?}"
            );
            assert!(matches!(refused.receive().await, Err(LinkError::Closed)));
        }
        // The log hears of a cause once.
        assert!(heard.recv().await.unwrap().contains(reason));
        assert!(heard.try_recv().is_err() && !admitting.is_finished());
        admitting.abort();
        let _ = admitting.await;
        assert!(!path.exists());
    }
}

#[tokio::test]
async fn the_door_opens_where_a_socket_was_and_nowhere_else() {
    let (directory, expected) = shared();
    let path = directory.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Door::open(&path, expected).unwrap());
    let path = directory.path().join("file");
    std::fs::write(&path, "kept").unwrap();
    assert!(matches!(Door::open(&path, expected), Err(DoorError::Occupied(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    // A directory that nobody has made is made, and no more than one.
    let made = directory.path().join("made");
    drop(Door::open(&made.join("socket"), expected).unwrap());
    let status = std::fs::metadata(&made).unwrap();
    assert_eq!(
        (std::os::unix::fs::MetadataExt::mode(&status) & 0o7777, std::os::unix::fs::MetadataExt::gid(&status)),
        (0o2750, expected.gid)
    );
    drop(Door::open(&made.join("socket"), expected).unwrap());
    let error = Door::open(&directory.path().join("missing/too/socket"), expected).unwrap_err();
    assert!(error.to_string().contains("directory") && error.to_string().contains("network-init"), "{error}");
    // A directory in which others could put something in its place, or that its peer cannot come to.
    let path = directory.path().join("socket");
    let modes =
        |mode| std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    for mode in [0o770, 0o755, 0o701] {
        modes(mode);
        assert!(matches!(Door::open(&path, expected), Err(DoorError::Directory { .. })), "{mode:o}");
    }
    modes(0o2750);
    let other = Expected { gid: expected.gid + 1, ..expected };
    assert!(matches!(Door::open(&path, other), Err(DoorError::Directory { .. })));
    drop(Door::open(&path, expected).unwrap());
}

#[tokio::test]
async fn a_listener_of_the_workload_s_own_user_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = connect(&path, Gathered::default(), Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, ConnectError::OurOwn { .. }), "{error}");
    let absent = directory.path().join("absent");
    let begin = std::time::Instant::now();
    let error = connect(&absent, Gathered::default(), Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Absent { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(1));
}
