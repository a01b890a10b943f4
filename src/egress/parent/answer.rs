//! What the upstream proxy answers to CONNECT, up to the last byte of its head: what follows belongs to the tunnel, and
//! a server that speaks first may have sent it together with the head.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt};

use super::Leg;
use crate::egress::limits::PARENT_HEAD_BYTES;

/// A head, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    /// The reason phrase, as far as it can be shown.
    pub phrase: String,
    /// Authentication schemes offered (RFC 9110 §11.7.1).
    pub schemes: Vec<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// It ended early.
    #[error("it closed the connection without an answer")]
    Closed,
    /// No end within the bound.
    #[error("the head of its answer exceeds {PARENT_HEAD_BYTES} bytes")]
    TooLarge,
    /// Something else than HTTP/1.
    #[error("its answer is not HTTP/1.1; is there an HTTP proxy at this port, and does it expect TLS?")]
    Malformed,
}

/// Longest text of the proxy's that is shown: a phrase is some words.
const SHOWN_CHARACTERS: usize = 80;

/// Reads the final answer; interim ones are passed over (RFC 9110 §15.2), within the bound for all of them together.
pub(super) async fn read(leg: &mut Leg) -> Result<Answer, AnswerError> {
    let mut room = PARENT_HEAD_BYTES;
    loop {
        let head = head(leg, &mut room).await?;
        let answer = parse(&head).ok_or(AnswerError::Malformed)?;
        // 101 would be an answer to an Upgrade that nobody sent.
        if !(100..200).contains(&answer.status) || answer.status == 101 {
            return Ok(answer);
        }
    }
}

/// Takes exactly one head off the connection.
async fn head(leg: &mut Leg, room: &mut usize) -> Result<Vec<u8>, AnswerError> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        let ended = match leg {
            Leg::Tcp(stream) => {
                // Looked at before it is taken, which is two system calls and not one for every byte.
                let mut window = [0; 1024];
                let arrived = stream.peek(&mut window).await?;
                let (taken, ended) = take(&mut head, &window[..arrived]);
                stream.read_exact(&mut window[..taken]).await?;
                ended
            }
            Leg::Tls(stream) => {
                let arrived = stream.fill_buf().await?;
                let (taken, ended) = take(&mut head, arrived);
                stream.consume(taken);
                ended
            }
        };
        let taken = head.len() - before;
        if taken == 0 {
            return Err(AnswerError::Closed);
        }
        *room = room.checked_sub(taken).ok_or(AnswerError::TooLarge)?;
        if ended {
            return Ok(head);
        }
    }
}

/// Moves bytes into `head` up to its end: how many, and whether it has ended.
fn take(head: &mut Vec<u8>, bytes: &[u8]) -> (usize, bool) {
    for (at, &byte) in bytes.iter().enumerate() {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            return (at + 1, true);
        }
    }
    (bytes.len(), false)
}

/// RFC 9112 §4: `HTTP/1.x SP 3DIGIT [SP phrase]`.
fn parse(head: &[u8]) -> Option<Answer> {
    let mut lines = head.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = lines.next()?;
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let (code, phrase) = match rest {
        [minor, b' ', a, b, c, phrase @ ..] if minor.is_ascii_digit() => ([*a, *b, *c], phrase),
        _ => return None,
    };
    if !code.iter().all(u8::is_ascii_digit) || !(phrase.is_empty() || phrase.starts_with(b" ")) {
        return None;
    }
    let status: u16 = std::str::from_utf8(&code).ok()?.parse().ok().filter(|&status| status >= 100)?;
    let schemes = lines.filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let value = line.get(colon + 1..)?.trim_ascii();
        line[..colon]
            .eq_ignore_ascii_case(b"proxy-authenticate")
            .then(|| shown(value.split(|byte| matches!(byte, b' ' | b',')).next().unwrap_or_default()))
    });
    Some(Answer { status, phrase: shown(phrase.trim_ascii()), schemes: schemes.collect() })
}

/// Printable ASCII only: it ends in logs and in answers to the workload.
fn shown(bytes: &[u8]) -> String {
    let legible = |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' };
    bytes.iter().take(SHOWN_CHARACTERS).map(legible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_are_read_strictly() {
        let read = |text: &str| parse(text.as_bytes()).map(|answer| (answer.status, answer.phrase));
        assert_eq!(read("HTTP/1.1 200 Connection established\r\n\r\n"), Some((200, "Connection established".into())));
        assert_eq!(read("HTTP/1.0 200 OK\r\nVia: x\r\n\r\n"), Some((200, "OK".into())));
        assert_eq!(read("HTTP/1.1 200\r\n\r\n"), Some((200, String::new())));
        assert_eq!(read("HTTP/1.1 503 \x1b[31mno\r\n\r\n"), Some((503, "?[31mno".into())));
        for bad in [
            "",
            "\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "http/1.1 200 OK\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn schemes_offered_are_named() {
        let head =
            b"HTTP/1.1 407 Wants it\r\nProxy-Authenticate: Negotiate\r\nproxy-authenticate:Basic realm=\"x\"\r\n\r\n";
        assert_eq!(parse(head).unwrap().schemes, ["Negotiate", "Basic"]);
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics_and_every_cut_ends_alike(bytes: Vec<u8>, cut: usize) {
            let _ = parse(&bytes);
            let whole = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &bytes].concat();
            let (first, second) = whole.split_at(cut % whole.len());
            let mut head = Vec::new();
            let (taken, ended) = take(&mut head, first);
            let more = if ended { (0, true) } else { take(&mut head, second) };
            proptest::prop_assert!(more.1);
            proptest::prop_assert_eq!(taken + more.0, 19);
        }
    }
}
