//! Destinations that tests put into the origin namespace: small servers that do one thing, on purpose badly where a
//! test is about that.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::world::{World, say};

/// A listener in the origin, served by a thread a connection until the test process ends.
pub struct Origin {
    /// How many connections have arrived: the proof that a refused one never did.
    arrived: Arc<AtomicUsize>,
}

impl Origin {
    /// Serves each connection on `port`, of both families, with `serve`.
    pub fn start(world: &World, port: u16, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_at(world, Ipv6Addr::UNSPECIFIED, port, serve)
    }

    /// The same on one address.
    pub fn start_at(
        world: &World,
        address: impl Into<IpAddr>,
        port: u16,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener: TcpListener = world.listen(address, port);
        let arrived = Arc::new(AtomicUsize::new(0));
        let (count, serve) = (arrived.clone(), Arc::new(serve));
        // Threads made by a thread of the namespace are in it too, so servers can connect onwards there.
        world.in_origin(move || {
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    count.fetch_add(1, Ordering::SeqCst);
                    let serve = serve.clone();
                    std::thread::spawn(move || serve(stream));
                }
            });
        });
        Self { arrived }
    }

    /// Connections so far.
    pub fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }
}

/// A request as the origin received it, byte for byte.
#[derive(Clone, Debug)]
pub struct Received {
    /// Request line and header lines, without the empty one.
    pub head: String,
    /// Body by Content-Length.
    pub body: Vec<u8>,
}

/// An HTTP/1.1 origin with keep-alive that answers every request with `answer`'s body.
pub fn http(
    answer: impl Fn(&Received) -> String + Send + Sync + 'static,
) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |stream| {
        let mut reader = BufReader::new(stream.try_clone().expect("clone"));
        while let Some(request) = read_request(&mut reader) {
            let body = answer(&request);
            let length = body.len();
            let body = if request.head.starts_with("HEAD ") { "" } else { body.as_str() };
            say(
                &stream,
                format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"),
            );
        }
    }
}

/// An HTTP origin that says `hello from METHOD TARGET`.
pub fn hello() -> impl Fn(TcpStream) + Send + Sync + 'static {
    http(|request| {
        let line: Vec<&str> = request.head.lines().next().unwrap_or("").split(' ').collect();
        format!("hello from {} {}\n", line.first().unwrap_or(&""), line.get(1).unwrap_or(&""))
    })
}

/// Reads one request; `None` when the client is done.
pub fn read_request(reader: &mut impl BufRead) -> Option<Received> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if head[before..].trim_end().is_empty() {
            head.truncate(before);
            break;
        }
    }
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length:").and_then(|value| value.trim().parse().ok())
        })
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Received { head, body })
}

/// Sends back what it gets, and its end as an end.
pub fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Speaks first, like SSH and SMTP, then echoes.
pub fn banner(line: &'static str) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |stream| {
        say(&stream, line);
        echo(stream);
    }
}

/// Accepts, and says nothing for longer than any test waits.
pub fn stall(stream: TcpStream) {
    std::thread::sleep(Duration::from_secs(600));
    drop(stream);
}

/// Answers a byte at a time.
pub fn trickle(text: &'static str, pause: Duration) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |stream| {
        let _ = read_request(&mut BufReader::new(stream.try_clone().expect("clone")));
        for byte in text.as_bytes() {
            say(&stream, [*byte]);
            std::thread::sleep(pause);
        }
    }
}

/// Resets the connection once it has read something.
pub fn reset(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 1024]);
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger);
}

/// A name server on the machine that knows no name: every question is answered NXDOMAIN (RFC 1035 §4.1.1, RCODE 3).
pub fn know_no_name(world: &World) {
    let socket = world.in_machine(|| std::net::UdpSocket::bind("127.0.0.1:53").expect("bind"));
    std::thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut packet) {
            if length < 12 {
                continue;
            }
            packet[2] |= 0x80;
            packet[3] = 0x83;
            // Whatever came besides the question (an OPT record) is not sent back.
            packet[10..12].fill(0);
            let question = 12 + packet[12..length].iter().position(|&byte| byte == 0).unwrap_or(0) + 5;
            let _ = socket.send_to(&packet[..question.min(length)], client);
        }
    });
}
