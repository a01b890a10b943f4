use std::os::fd::OwnedFd;

use super::*;
use crate::attribution::{AttributionConfig, Attributor, Processes};
use crate::event::Stage;
use crate::sys::netlink::{Protocol, Socket};

/// A proxy that knows programs, and lets `binary` reach `port`.
async fn judging(binary: &str, port: u16) -> Fixture {
    let proc: OwnedFd = std::fs::File::open("/proc").unwrap().into();
    let diagnosis = Socket::open(Protocol::SocketDiagnosis).unwrap();
    // Above this process may be some that even root cannot read: they are outside.
    let root_pid = nix::unistd::getppid().as_raw().unsigned_abs();
    let attributor = Attributor::new(AttributionConfig { diagnosis, processes: Processes::Below { proc, root_pid } });
    let policy = entry(HOST_ALIAS, &[port]).replace("\"**\"", &format!("\"{binary}\""));
    let resolver = Resolver::new("/nonexistent/hosts", "/nonexistent/resolv.conf", 53);
    Fixture::with_attributor(vec![policy], resolver, Patience::default(), Some(Arc::new(attributor))).await
}

fn own_binary() -> String {
    std::env::current_exe().unwrap().canonicalize().unwrap().display().to_string()
}

#[tokio::test]
async fn the_program_decides() {
    let port = echo().await;
    let fixture = judging(&own_binary(), port).await;
    fixture.tunnel(port).await;
    let events = fixture.events();
    assert_eq!(events[0].actor.binary, Some(own_binary()));
    assert_eq!(events[0].actor.pid, Some(std::process::id()));

    let fixture = judging("/usr/bin/another", port).await;
    let mut client = fixture.client().await;
    client.connect(port).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (403, Some("policy_denied")), "{answer:?}");
    assert_eq!(answer.json()["binary"].as_str(), Some(own_binary().as_str()));
    client.send(format!("GET http://{HOST_ALIAS}:{port}/ HTTP/1.1\r\nHost: {HOST_ALIAS}:{port}\r\n\r\n")).await;
    assert_eq!(client.answer().await.json()["error"], "policy_denied");
}

#[tokio::test]
async fn a_connection_that_another_program_holds_as_well_is_refused() {
    let port = echo().await;
    let fixture = judging(&own_binary(), port).await;
    let mut client = fixture.client().await;
    // A child that inherits the connection as its standard input.
    let inherited: OwnedFd = std::os::fd::AsFd::as_fd(&client.stream).try_clone_to_owned().unwrap();
    let mut child = std::process::Command::new("/bin/sleep").arg("60").stdin(inherited).spawn().unwrap();
    client.connect(port).await;
    let answer = client.answer().await;
    let events = fixture.events();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((answer.status, answer.json()["error"].as_str()), (403, Some("ambiguous_owner")), "{answer:?}");
    assert_eq!(events[0].stage, Stage::Attribution);
    // The control: without the child, the same connection may ask again and gets through.
    client.connect(port).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 200, "{answer:?}");
}
