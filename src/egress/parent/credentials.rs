//! `--upstream-proxy-auth-file`: what the upstream proxy knows us by. The secret is in a file because argv and
//! environment can be read by others, and it leaves this process on one hop only.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;
use nix::libc;

use crate::egress::limits::PARENT_AUTH_BYTES;

/// A user and a password, in the form of the Basic scheme (RFC 7617).
#[derive(Clone)]
pub struct Credentials(HeaderValue);

/// Why a file holds no credentials.
#[derive(Debug, thiserror::Error)]
#[error("--upstream-proxy-auth-file {}: {reason}", path.display())]
pub struct CredentialsError {
    /// The file.
    path: PathBuf,
    /// What is wrong with it, and what would be right; nothing of what is in it.
    reason: String,
}

impl Credentials {
    /// Reads `USER:PASSWORD` from a file.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let wrong = |reason: String| CredentialsError { path: path.to_owned(), reason };
        let unreadable = |error: std::io::Error| {
            wrong(format!("cannot be read: {error}; check the path, and that this user may read it"))
        };
        // Without O_NONBLOCK opening a FIFO would wait for a writer (open(2)).
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(wrong("it is not a regular file; name one that holds USER:PASSWORD".to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(PARENT_AUTH_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > PARENT_AUTH_BYTES {
            return Err(wrong(format!(
                "it holds more than {PARENT_AUTH_BYTES} bytes; it should hold USER:PASSWORD and nothing else"
            )));
        }
        Self::parse(&bytes).map_err(|reason| wrong(reason.to_owned()))
    }

    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8; save it as UTF-8")?.trim();
        if text.chars().any(char::is_control) {
            return Err("it holds a control character or more than one line; write USER:PASSWORD on one line");
        }
        // The user ends at the first colon, the password may hold more of them (RFC 7617 §2).
        match text.split_once(':') {
            None => return Err("it holds no colon; write USER:PASSWORD on one line"),
            Some(("", _)) => return Err("the user before the colon is empty; write USER:PASSWORD on one line"),
            Some(_) => {}
        }
        let mut value = HeaderValue::try_from(format!("Basic {}", base64(text.as_bytes())))
            .map_err(|_| "it makes no header field; write USER:PASSWORD on one line")?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The value of Proxy-Authorization.
    pub(super) fn field(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(not shown)")
    }
}

/// RFC 4648 §4, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let sextet = (bits >> (18 - 6 * at)) as usize & 63;
            text.push(if at > group.len() { '=' } else { char::from(ALPHABET[sextet]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648 §10.
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfb]), "//77");
    }

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_file_holds_a_user_and_a_password() {
        // RFC 7617 §2 and §2.1.
        for (content, field) in [
            (&b"Aladdin:open sesame"[..], "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            (b"  Aladdin:open sesame \r\n\n", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            ("test:123£".as_bytes(), "Basic dGVzdDoxMjPCow=="),
            (b"user:", "Basic dXNlcjo="),
            (b"user:a:b", "Basic dXNlcjphOmI="),
        ] {
            let credentials = Credentials::read(file(content).path()).unwrap();
            assert_eq!(credentials.field(), field);
            assert!(credentials.field().is_sensitive());
            let shown = format!("{credentials:?} {:?}", credentials.field());
            assert!(!shown.contains("QWxh") && !shown.contains("Aladdin"), "{shown}");
        }
        let most = format!("u:{}", "p".repeat(PARENT_AUTH_BYTES as usize - 2));
        assert!(Credentials::read(file(most.as_bytes()).path()).is_ok());
    }

    #[test]
    fn anything_else_is_refused_and_not_repeated() {
        let large = format!("secret:{}", "p".repeat(PARENT_AUTH_BYTES as usize));
        for content in [
            &b""[..],
            b"\n",
            b"secret",
            b":secret",
            b"secret:a\nsecret:b",
            b"secret:a\0",
            b"secret:\x7f.",
            b"secret:a\tb",
            b"secret:\xff",
            large.as_bytes(),
        ] {
            let error = Credentials::read(file(content).path()).unwrap_err().to_string();
            assert!(error.starts_with("--upstream-proxy-auth-file /") && !error.contains("secret"), "{error}");
        }
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [directory.path(), &fifo, Path::new("/dev/null"), &directory.path().join("missing")] {
            assert!(Credentials::read(path).is_err(), "{}", path.display());
        }
    }
}
