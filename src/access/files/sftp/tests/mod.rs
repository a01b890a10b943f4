//! A client of a few lines against the server, over a socket.

mod files;
mod hostile;
mod uploads;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use super::wire::{Fields, reply, request};
use super::{SftpError, serve, upload};
use crate::access::files::NoNames;
pub(super) use crate::access::files::staged::is_tidy;

/// The body of a packet, field by field.
#[derive(Clone, Debug, Default)]
pub(super) struct Body(pub Vec<u8>);

impl Body {
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn string(self, bytes: impl AsRef<[u8]>) -> Self {
        let mut longer = self.u32(u32::try_from(bytes.as_ref().len()).unwrap());
        longer.0.extend_from_slice(bytes.as_ref());
        longer
    }

    pub fn path(self, path: &Path) -> Self {
        self.string(path.as_os_str().as_bytes())
    }
}

/// A packet: length, type, body.
pub(super) fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = u32::try_from(body.len() + 1).unwrap().to_be_bytes().to_vec();
    packet.push(kind);
    packet.extend_from_slice(body);
    packet
}

/// A session; dropping it is the connection's end.
pub(super) struct Client {
    stream: UnixStream,
    server: Option<JoinHandle<Result<(), SftpError>>>,
    id: u32,
}

impl Client {
    pub fn start() -> Self {
        let (stream, other) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(&other, &other, &NoNames, &mut |_| ()));
        let mut client = Self { stream, server: Some(server), id: 0 };
        client.stream.write_all(&packet(request::INIT, &Body::default().u32(3).0)).unwrap();
        assert_eq!(client.receive()[..5], [reply::VERSION, 0, 0, 0, 3]);
        client
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut packet = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut packet).unwrap();
        packet
    }

    /// Asks, and takes the answer: its type and its body.
    pub fn ask(&mut self, kind: u8, body: Body) -> (u8, Vec<u8>) {
        self.id += 1;
        let id = self.id.to_be_bytes();
        self.stream.write_all(&packet(kind, &[&id, &body.0[..]].concat())).unwrap();
        let answer = self.receive();
        assert_eq!(answer[1..5], id);
        (answer[0], answer[5..].to_vec())
    }

    /// Asks for something that is answered by a status.
    pub fn status(&mut self, kind: u8, body: Body) -> u32 {
        let (kind, answer) = self.ask(kind, body);
        assert_eq!(kind, reply::STATUS);
        Fields(&answer).u32().unwrap()
    }

    pub fn extended(&mut self, name: &str, rest: Body) -> u32 {
        let mut body = Body::default().string(name);
        body.0.extend(rest.0);
        self.status(request::EXTENDED, body)
    }

    pub fn try_open(&mut self, path: &Path, flags: u32) -> Result<Vec<u8>, u32> {
        match self.ask(request::OPEN, Body::default().path(path).u32(flags).u32(0)) {
            (reply::HANDLE, body) => Ok(Fields(&body).string().unwrap().to_vec()),
            (_, body) => Err(Fields(&body).u32().unwrap()),
        }
    }

    pub fn open(&mut self, path: &Path, flags: u32) -> Vec<u8> {
        self.try_open(path, flags).unwrap()
    }

    pub fn write(&mut self, handle: &[u8], offset: u64, data: &[u8]) -> u32 {
        self.status(request::WRITE, Body::default().string(handle).u64(offset).string(data))
    }

    pub fn read(&mut self, handle: &[u8], offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        match self.ask(request::READ, Body::default().string(handle).u64(offset).u32(length)) {
            (reply::DATA, body) => Ok(Fields(&body).string().unwrap().to_vec()),
            (_, body) => Err(Fields(&body).u32().unwrap()),
        }
    }

    pub fn close(&mut self, handle: &[u8]) -> u32 {
        self.status(request::CLOSE, Body::default().string(handle))
    }

    /// The size that the session sees under a path.
    pub fn size(&mut self, path: &Path) -> Result<u64, u32> {
        match self.ask(request::LSTAT, Body::default().path(path)) {
            (reply::ATTRS, body) => {
                let mut fields = Fields(&body);
                fields.u32().unwrap();
                Ok(fields.u64().unwrap())
            }
            (_, body) => Err(Fields(&body).u32().unwrap()),
        }
    }

    /// The names in a directory, sorted, and how many replies they took.
    pub fn list(&mut self, path: &Path) -> (Vec<Vec<u8>>, usize) {
        let (kind, body) = self.ask(request::OPENDIR, Body::default().path(path));
        assert_eq!(kind, reply::HANDLE);
        let handle = Fields(&body).string().unwrap().to_vec();
        let (mut names, mut replies) = (Vec::new(), 0);
        while let (reply::NAME, body) = self.ask(request::READDIR, Body::default().string(&handle)) {
            let mut fields = Fields(&body);
            for _ in 0..fields.u32().unwrap() {
                names.push(fields.string().unwrap().to_vec());
                fields.string().unwrap();
                super::attributes::Attributes::read(&mut fields).unwrap();
            }
            replies += 1;
        }
        self.close(&handle);
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        (names, replies)
    }

    /// Ends the connection and waits for the server.
    pub fn end(mut self) -> Result<(), SftpError> {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self.server.take().unwrap().join().unwrap()
    }
}

pub(super) const NEW: u32 = upload::WRITE | upload::CREATE | upload::TRUNCATE;
