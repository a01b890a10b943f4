//! The load that the egress bench drives: one program, run inside the sandbox for ours and on the machine for the
//! rivals and the direct path, so that the same code meets each of them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::inside;

/// How to reach the origin.
#[derive(Clone)]
pub struct Way {
    pub proxy: Option<SocketAddr>,
    pub origin: SocketAddr,
}

impl Way {
    /// A connection to the origin: direct, or a tunnel through the proxy once it has said 200.
    pub fn open(&self) -> TcpStream {
        let Some(proxy) = self.proxy else { return TcpStream::connect(self.origin).expect("connect") };
        let mut stream = TcpStream::connect(proxy).expect("connect to the proxy");
        // In one write, as programs do: `write!` on a socket would make one of each piece, and wake the proxy for each.
        let head = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", self.origin);
        stream.write_all(head.as_bytes()).expect("ask");
        let head = read_head(&mut stream, &mut [0; 4096]).0;
        assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.0 200"), "not connected: {head}");
        stream
    }
}

/// Runs one load and prints its figures as one line of JSON.
pub fn main(arguments: &[String]) {
    let way = Way {
        proxy: (arguments[1] != "-").then(|| arguments[1].parse().expect("proxy address")),
        origin: arguments[2].parse().expect("origin address"),
    };
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    match arguments[0].as_str() {
        "latency" => latency(&way, number(3)),
        "owners" => {
            let (_neighbours, count) = (neighbours(number(3), arguments[4].as_str()), number(5));
            latency(&way, count);
        }
        "rate" => rate(&way, number(3), Duration::from_secs(number(4)), |way| {
            way.open();
            1
        }),
        "requests" => requests(&way, number(3), Duration::from_secs(number(4))),
        "tunnel" => tunnel(&way),
        "tls-requests" => inside::requests(&way, number(3), Duration::from_secs(number(4))),
        "tls-connections" => inside::connections(&way, number(3), Duration::from_secs(number(4))),
        "tls-streams" => inside::streams(&way, number(3), Duration::from_secs(number(4))),
        "tls-kept" => inside::kept(&way, number(3), Duration::from_secs(number(4))),
        "tls-download" => inside::download(&way, number(3)),
        "tls-upload" => inside::upload(&way, number(3)),
        "idle" => idle(&way, number(3)),
        other => panic!("no load {other:?}"),
    }
}

/// One client, one connection after the other: the time until it can be used.
fn latency(way: &Way, count: u64) {
    let mut taken: Vec<f64> = (0..count)
        .map(|_| {
            let started = Instant::now();
            let _stream = way.open();
            started.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    taken.sort_by(f64::total_cmp);
    println!("{{\"p50_ms\":{:.4},\"p99_ms\":{:.4}}}", taken[taken.len() / 2], taken[taken.len() * 99 / 100]);
}

/// `clients` threads that do `act` over and over; happenings per second.
fn rate(way: &Way, clients: u64, length: Duration, act: impl Fn(&Way) -> u64 + Send + Sync + 'static) {
    let (act, done, count) = (Arc::new(act), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let (way, act, done, count) = (way.clone(), act.clone(), done.clone(), count.clone());
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    count.fetch_add(act(&way), Ordering::Relaxed);
                }
            })
        })
        .collect();
    std::thread::sleep(length);
    done.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a client");
    }
    println!("{{\"per_second\":{:.0}}}", count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64());
}

/// Keep-alive requests: absolute-form to the proxy, origin-form to the origin. A proxy that closes gets a new
/// connection, which is what it costs its users too.
fn requests(way: &Way, clients: u64, length: Duration) {
    let line = match way.proxy {
        Some(_) => format!("GET http://{0}/1k HTTP/1.1\r\nHost: {0}\r\n\r\n", way.origin),
        None => format!("GET /1k HTTP/1.1\r\nHost: {}\r\n\r\n", way.origin),
    };
    let target = way.proxy.unwrap_or(way.origin);
    rate(way, clients, length, move |_| {
        const BATCH: u64 = 10_000;
        let mut stream = TcpStream::connect(target).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        let mut buffer = vec![0; 16 * 1024];
        let started = Instant::now();
        for count in 0..BATCH {
            // The deadline is looked at here too, so that a batch cannot outlast the measurement by much.
            if count % 64 == 0 && started.elapsed() > Duration::from_millis(500) {
                return count;
            }
            let answered =
                stream.write_all(line.as_bytes()).ok().and_then(|()| try_read_head(&mut stream, &mut buffer));
            // A proxy of HTTP/1.0 manners closes without a word.
            let Some((head, mut have)) = answered else { return count };
            assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.0 200"), "{head}");
            while have < 1024 {
                match stream.read(&mut buffer).expect("body") {
                    0 => panic!("the body ended early"),
                    length => have += length,
                }
            }
            if head.to_ascii_lowercase().contains("connection: close") {
                return count + 1;
            }
        }
        BATCH
    });
}

/// Downloads the big file over one connection.
fn tunnel(way: &Way) {
    let mut stream = way.open();
    write!(stream, "GET /big HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", way.origin).expect("ask");
    let mut buffer = vec![0; 256 * 1024];
    let (mut total, started) = (0_u64, Instant::now());
    loop {
        match stream.read(&mut buffer).expect("read") {
            0 => break,
            length => total += length as u64,
        }
    }
    println!("{{\"mb_per_second\":{:.0}}}", total as f64 / 1e6 / started.elapsed().as_secs_f64());
}

/// Opens tunnels, says so, and holds them until standard input ends.
fn idle(way: &Way, count: u64) {
    let tunnels: Vec<TcpStream> = (0..count).map(|_| way.open()).collect();
    println!("{{\"open\":{}}}", tunnels.len());
    std::io::stdout().flush().expect("flush");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Other processes of the sandbox, of 100 descriptors each, that may own the connection: `same` program or `other`.
fn neighbours(count: u64, kind: &str) -> Vec<Neighbour> {
    (1..count)
        .map(|_| {
            let descriptors: Vec<File> = (0..97).map(|_| File::open("/dev/null").expect("open")).collect();
            let mut command = if kind == "same" {
                let mut command = Command::new(std::env::current_exe().expect("own path"));
                command.args(["client", "hold"]);
                command
            } else {
                let mut command = Command::new("/bin/sleep");
                command.arg("600");
                command
            };
            for descriptor in &descriptors {
                nix::fcntl::fcntl(descriptor, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
                    .expect("inherit");
            }
            Neighbour(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a neighbour"))
        })
        .collect()
}

/// A process that ends with the load.
struct Neighbour(Child);

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads a head that must come; returns it and how much of the body came along.
fn read_head(stream: &mut TcpStream, buffer: &mut [u8]) -> (String, usize) {
    try_read_head(stream, buffer).expect("a head before the end")
}

/// Reads a head; `None` where the connection ends before it.
fn try_read_head(stream: &mut TcpStream, buffer: &mut [u8]) -> Option<(String, usize)> {
    let mut filled = 0;
    loop {
        let length = stream.read(&mut buffer[filled..]).ok().filter(|&length| length > 0)?;
        filled += length;
        if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            return Some((String::from_utf8_lossy(&buffer[..end]).into_owned(), filled - end - 4));
        }
    }
}
