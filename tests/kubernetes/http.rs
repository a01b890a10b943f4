//! HTTP/1.1, one exchange per connection.

use std::io::{BufRead, BufReader, Read, Write};

use serde_json::Value;

/// A request as far as the stand-in looks at it.
pub struct Request {
    pub method: String,
    pub path: String,
    pub token: Option<String>,
    pub accept: String,
    pub content_type: String,
    pub body: String,
}

impl Request {
    /// Reads one; nothing when the connection ends before it does.
    pub fn read(stream: &mut (impl Read + Write)) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let line = |reader: &mut BufReader<_>| {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            Some(line.trim_end().to_owned())
        };
        let first = line(&mut reader)?;
        let mut words = first.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut request =
            Self { method, path, token: None, accept: String::new(), content_type: String::new(), body: String::new() };
        let mut length = 0;
        loop {
            let field = line(&mut reader)?;
            let Some((name, value)) = field.split_once(':') else { break };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_owned),
                "accept" => request.accept = value.to_owned(),
                "content-type" => request.content_type = value.to_owned(),
                "content-length" => length = value.parse().ok()?,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8(body).ok()?;
        Some(request)
    }
}

/// An answer.
pub struct Answer {
    pub status: u16,
    fields: String,
    body: String,
}

impl Answer {
    pub fn new((status, body): (u16, Value)) -> Self {
        Self { status, fields: "Content-Type: application/json\r\n".to_owned(), body: body.to_string() }
    }

    /// That there is none.
    pub fn none() -> Self {
        Self { status: 0, fields: String::new(), body: String::new() }
    }

    /// What a load balancer's maintenance looks like.
    pub fn page() -> Self {
        let body = "<html><body>Welcome!</body></html>".to_owned();
        Self { status: 200, fields: "Content-Type: text/html\r\n".to_owned(), body }
    }

    /// A head, and a piece of a body that goes on and on.
    pub fn endless() -> Vec<u8> {
        let piece = "x".repeat(0xffff);
        format!("HTTP/1.1 200 OK\r\n\r\n{piece}").into_bytes()
    }

    pub fn with(mut self, name: &str, value: Option<String>) -> Self {
        if let Some(value) = value {
            self.fields += &format!("{name}: {value}\r\n");
        }
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let Self { status, fields, body } = self;
        let length = body.len();
        format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .into_bytes()
    }
}
