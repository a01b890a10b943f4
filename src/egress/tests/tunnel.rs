use super::*;
use crate::event::Stage;

#[tokio::test]
async fn each_half_closes_on_its_own() {
    // The origin answers only when the client has finished, and the other way round.
    let port = origin(|mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut stream = fixture.tunnel(port).await;
    stream.write_all(b"all of it").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut all = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, b"all of it");

    let port = origin(|mut stream| async move {
        stream.write_all(b"bye").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"still here");
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut stream = fixture.tunnel(port).await;
    let mut all = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, b"bye");
    stream.write_all(b"still here").await.unwrap();
}

#[tokio::test]
async fn a_reset_is_passed_on_as_a_reset() {
    let port = origin(|mut stream| async move {
        stream.read_u8().await.unwrap();
        super::super::splice::reset_on_close(&stream);
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let mut stream = fixture.tunnel(port).await;
    stream.write_all(b"x").await.unwrap();
    let error = tokio::time::timeout(SOON, stream.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn bulk_arrives_whole_in_both_directions_at_once() {
    let port = echo().await;
    let fixture = Fixture::with_ports(&[port]).await;
    let stream = fixture.tunnel(port).await;
    let (mut read, mut write) = stream.into_split();
    let sent: Vec<u8> = (0..32 * 1024 * 1024_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut all = Vec::new();
    read.read_to_end(&mut all).await.unwrap();
    writer.await.unwrap();
    assert!(all == expected);
}

#[tokio::test]
async fn a_reader_that_stalls_holds_up_only_itself() {
    let port = origin(|mut stream| async move {
        // More than all buffers hold.
        let _ = stream.write_all(&vec![7; 64 * 1024 * 1024]).await;
    })
    .await;
    let fixture = Fixture::with_ports(&[port]).await;
    let stalled = fixture.tunnel(port).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut other = fixture.tunnel(port).await;
    let mut first = [0; 1024];
    tokio::time::timeout(SOON, other.read_exact(&mut first)).await.unwrap().unwrap();
    drop(stalled);
}

#[tokio::test]
async fn a_new_policy_closes_only_what_it_no_longer_allows() {
    let (first, second) = (echo().await, echo().await);
    let fixture = Fixture::with_ports(&[first, second]).await;
    let (mut kept, mut lost) = (fixture.tunnel(first).await, fixture.tunnel(second).await);
    fixture.swap(&[entry(HOST_ALIAS, &[first, second, 1])]);
    for stream in [&mut kept, &mut lost] {
        stream.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
    }
    fixture.swap(&[entry(HOST_ALIAS, &[first])]);
    assert!(tokio::time::timeout(SOON, lost.read_u8()).await.unwrap().is_err());
    kept.write_all(b"y").await.unwrap();
    assert_eq!(kept.read_u8().await.unwrap(), b'y');
    let last = fixture.events().pop().unwrap();
    assert_eq!((last.stage, last.port), (Stage::Reload, second));
}

#[tokio::test]
async fn an_idle_tunnel_ends_in_the_end() {
    let port = echo().await;
    let fixture = Fixture::hasty(&[port], 100).await;
    let mut stream = fixture.tunnel(port).await;
    for _ in 0..10 {
        stream.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(tokio::time::timeout(SOON, stream.read_u8()).await.unwrap().is_err());
}
