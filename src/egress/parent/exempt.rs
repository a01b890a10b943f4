//! `--upstream-no-proxy`: what is dialled directly although there is an upstream proxy.
//!
//! Names are read as curl reads its NO_PROXY: a name covers itself and everything below it, with or without a leading
//! dot. Beyond curl, an entry may end in a port, `*` may stand among others, and an address or range also covers names
//! that resolve into it. What curl would never match, a range of 40 bits or a pattern, is an error here: who wrote it
//! believes that it covers something.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::policy::host::Host;

/// Destinations that do not go through the upstream proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    what: What,
    /// Only this port; all of them without one.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Everything,
    /// This name and all below it; canonical.
    Name(Arc<str>),
    /// This range, or the one address.
    Range(IpNet),
}

/// Why a list cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExemptionError {
    /// Nothing in it.
    #[error("the list is empty; name hosts, such as example.com,10.0.0.0/8, or leave the flag out")]
    Empty,
    /// A pattern.
    #[error("{0:?} is a pattern; write .example.com for a name with all below it, or * alone for everything")]
    Pattern(String),
    /// A port that is none.
    #[error("{0:?} does not end in a port between 1 and 65535")]
    Port(String),
    /// A range that is none.
    #[error("{0:?} is no range of addresses; write one such as 10.0.0.0/8 or fd00::/8")]
    Range(String),
    /// No host.
    #[error("{entry:?}: {reason}")]
    Host {
        /// As written.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Exemptions {
    /// Whether `host`, which resolves to `addresses`, is dialled directly. A name is covered by ranges only if each of
    /// its addresses is in one: a direct dial may use any of them.
    #[must_use]
    pub fn cover(&self, host: &Host, port: u16, addresses: &[IpAddr]) -> bool {
        let here = || self.0.iter().filter(|entry| entry.port.is_none_or(|only| only == port));
        let in_range = |address: &IpAddr| {
            here().any(|entry| matches!(&entry.what, What::Range(range) if range.contains(&address.to_canonical())))
        };
        let named = |entry: &Entry| match (&entry.what, host) {
            (What::Everything, _) => true,
            (What::Name(name), Host::Name(host)) => is_at_or_below(host, name),
            (What::Name(_), Host::Address(_)) | (What::Range(_), _) => false,
        };
        here().any(named)
            || match host {
                Host::Address(address) => in_range(address),
                Host::Name(_) => !addresses.is_empty() && addresses.iter().all(in_range),
            }
    }
}

fn is_at_or_below(host: &str, name: &str) -> bool {
    host.strip_suffix(name).is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

impl FromStr for Exemptions {
    type Err = ExemptionError;

    fn from_str(text: &str) -> Result<Self, ExemptionError> {
        let words = text.split(|c: char| c == ',' || c.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let entries: Vec<Entry> = words.map(entry).collect::<Result<_, _>>()?;
        if entries.is_empty() { Err(ExemptionError::Empty) } else { Ok(Self(entries)) }
    }
}

fn entry(word: &str) -> Result<Entry, ExemptionError> {
    // An IPv6 address or range of addresses has colons of its own, and takes a port only behind brackets.
    let (text, port) = if let Some(rest) = word.strip_prefix('[') {
        let wrong = || ExemptionError::Range(word.to_owned());
        let (inside, behind) = rest.split_once(']').ok_or_else(wrong)?;
        if !inside.contains(':') {
            return Err(wrong());
        }
        match behind.strip_prefix(':') {
            Some(port) => (inside, Some(port)),
            None if behind.is_empty() => (inside, None),
            None => return Err(ExemptionError::Port(word.to_owned())),
        }
    } else if word.matches(':').count() > 1 {
        (word, None)
    } else {
        word.split_once(':').map_or((word, None), |(text, port)| (text, Some(port)))
    };
    let port = match port {
        None => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
            Ok(port) if port != 0 => Some(port),
            _ => return Err(ExemptionError::Port(word.to_owned())),
        },
        Some(_) => return Err(ExemptionError::Port(word.to_owned())),
    };
    Ok(Entry { what: what(text, word)?, port })
}

fn what(text: &str, word: &str) -> Result<What, ExemptionError> {
    if text == "*" {
        return Ok(What::Everything);
    }
    if text.contains('*') {
        return Err(ExemptionError::Pattern(word.to_owned()));
    }
    if text.contains('/') {
        return text.parse().map(What::Range).map_err(|_| ExemptionError::Range(word.to_owned()));
    }
    match Host::parse(text.strip_prefix('.').unwrap_or(text)) {
        Ok(Host::Name(name)) => Ok(What::Name(name)),
        Ok(Host::Address(address)) => Ok(What::Range(address.into())),
        Err(error) => Err(ExemptionError::Host { entry: word.to_owned(), reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::process::Command;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Whether `list` covers `host` at `port`, without any address.
    fn covers(list: &str, host: &str, port: u16) -> bool {
        let list: Exemptions = list.parse().unwrap_or_else(|error| panic!("{list:?}: {error}"));
        list.cover(&Host::parse(host).unwrap(), port, &[])
    }

    /// List, host, whether it is covered.
    const AS_CURL: &[(&str, &str, bool)] = &[
        ("example.com", "example.com", true),
        ("example.com", "www.example.com", true),
        ("example.com", "a.b.example.com", true),
        ("example.com", "nonexample.com", false),
        ("example.com", "example.com.evil.example", false),
        ("example.com", "example.org", false),
        (".example.com", "example.com", true),
        (".example.com", "www.example.com", true),
        (".example.com", "nonexample.com", false),
        ("www.example.com", "example.com", false),
        ("example.com.", "www.example.com", true),
        ("example.com", "www.example.com.", true),
        ("EXAMPLE.com", "www.Example.COM", true),
        ("other.example,example.com", "example.com", true),
        ("other.example example.com", "example.com", true),
        ("other.example\texample.com", "example.com", true),
        (" , ,other.example ,  example.com,", "example.com", true),
        ("other.example,another.example", "example.com", false),
        ("com", "example.com", true),
        ("*", "example.com", true),
        ("*", "127.0.0.1", true),
        ("127.0.0.1", "127.0.0.1", true),
        ("127.0.0.1", "127.0.0.2", false),
        ("127.0.0.0/8", "127.1.2.3", true),
        ("127.1.2.3/8", "127.200.0.1", true),
        ("127.0.0.0/9", "127.200.0.1", false),
        ("127.0.0.0/32", "127.0.0.1", false),
        ("example.com,127.0.0.0/8", "127.1.2.3", true),
        ("0.0.1", "127.0.0.1", false),
        ("::1", "[::1]", true),
        ("::2", "[::1]", false),
        ("fd00::/8", "[::1]", false),
        ("127.0.0.0/8", "[::1]", false),
        ("localhost", "127.0.0.1", false),
    ];

    #[test]
    fn lists_are_read_as_curl_reads_them() {
        for &(list, host, covered) in AS_CURL {
            assert_eq!(covers(list, host, 80), covered, "{list:?} {host:?}");
        }
        if Command::new("curl").arg("--version").output().is_err() {
            eprintln!("no curl here: only our own reading was tested");
            return;
        }
        // A proxy that answers everything; where curl goes directly, nobody listens.
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", proxy.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in proxy.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for &(list, host, covered) in AS_CURL {
            let mut curl = Command::new("curl");
            curl.env_clear().args(["-q", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "10"]).args([
                "--proxy",
                &url,
                "--noproxy",
                list,
            ]);
            if Host::parse(host).unwrap().name().is_some() {
                curl.args(["--resolve", &format!("{host}:{closed}:127.0.0.1")]);
            }
            let output = curl.arg(format!("http://{host}:{closed}/")).output().unwrap();
            match (output.status.code(), output.stdout.as_slice()) {
                (Some(0), b"200") => assert!(!covered, "curl uses the proxy: {list:?} {host:?}"),
                // CURLE_COULDNT_CONNECT, to the place where nobody listens.
                (Some(7), _) => assert!(covered, "curl goes directly: {list:?} {host:?}"),
                _ => panic!("{list:?} {host:?}: {output:?}"),
            }
        }
    }

    #[test]
    fn where_curl_is_left_behind() {
        // curl matches no entry that has a port.
        assert!(covers("example.com:443", "www.example.com", 443));
        assert!(!covers("example.com:443", "www.example.com", 80));
        assert!(covers("192.0.2.1:443", "192.0.2.1", 443) && !covers("192.0.2.1:443", "192.0.2.1", 80));
        assert!(covers("10.0.0.0/8:443", "10.1.2.3", 443) && !covers("10.0.0.0/8:443", "10.1.2.3", 80));
        assert!(covers("[::1]:443", "[::1]", 443) && !covers("[::1]:443", "[::1]", 80));
        assert!(covers("[fd00::/8]:443", "[fd00::1]", 443) && covers("[::1]", "[::1]", 80));
        assert!(covers("*:443", "example.com", 443) && !covers("*:443", "example.com", 80));
        // curl takes an asterisk for everything only where it is the whole list.
        assert!(covers("other.example,*", "example.com", 80));
        // curl compares an address with a prefix of no bits as it stands; here it is the whole family.
        assert!(covers("10.0.0.0/0", "192.0.2.1", 80));
        // curl 7.88 matches no range of IPv6 addresses, and no brackets.
        assert!(
            covers("::/64", "[::1]", 80) && covers("fd00::/8", "[fd00::1]", 80) && !covers("fd00::/8", "[::1]", 80)
        );
        // curl knows addresses by one spelling.
        assert!(covers("127.0.0.1", "0x7f.1", 80) && covers("127.1", "127.0.0.1", 80));
        assert!(covers("192.0.2.1", "[::ffff:192.0.2.1]", 80));
        assert!(covers("bücher.example", "xn--bcher-kva.example", 80));
    }

    #[test]
    fn ranges_cover_names_by_all_their_addresses() {
        let list: Exemptions = "10.0.0.0/8,fd00::/8".parse().unwrap();
        let host = Host::parse("db.example.com").unwrap();
        assert!(list.cover(&host, 5432, &[ip("10.1.2.3")]));
        assert!(list.cover(&host, 5432, &[ip("10.1.2.3"), ip("10.3.2.1")]));
        assert!(list.cover(&host, 5432, &[ip("10.1.2.3"), ip("fd00::1")]));
        assert!(list.cover(&host, 5432, &[ip("::ffff:10.1.2.3")]));
        assert!(!list.cover(&host, 5432, &[ip("10.1.2.3"), ip("192.0.2.1")]));
        assert!(!list.cover(&host, 5432, &[]));
    }

    #[test]
    fn what_would_never_match_is_refused() {
        for (list, entry) in [
            ("", ExemptionError::Empty),
            (" ,\t, ", ExemptionError::Empty),
            ("example.com,*.example.org", ExemptionError::Pattern("*.example.org".into())),
            ("api*.example.com", ExemptionError::Pattern("api*.example.com".into())),
            ("10.0.0.0/33", ExemptionError::Range("10.0.0.0/33".into())),
            ("10.0.0.0/", ExemptionError::Range("10.0.0.0/".into())),
            ("fd00::/129", ExemptionError::Range("fd00::/129".into())),
            ("example.com/8", ExemptionError::Range("example.com/8".into())),
            ("[::1", ExemptionError::Range("[::1".into())),
            ("[127.0.0.1]", ExemptionError::Range("[127.0.0.1]".into())),
            ("[::1]443", ExemptionError::Port("[::1]443".into())),
            ("example.com:0", ExemptionError::Port("example.com:0".into())),
            ("example.com:", ExemptionError::Port("example.com:".into())),
            ("example.com:https", ExemptionError::Port("example.com:https".into())),
            ("example.com:65536", ExemptionError::Port("example.com:65536".into())),
        ] {
            assert_eq!(list.parse::<Exemptions>(), Err(entry), "{list:?}");
        }
        for list in
            ["..example.com", ".", "a..b", "user@example.com", "http://example.com", "1.2.3.4.5", "example.com;x"]
        {
            assert!(list.parse::<Exemptions>().is_err(), "{list:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(list in "[a-z0-9.:*/, \\[\\]]{0,40}") {
            let _ = list.parse::<Exemptions>();
        }
    }
}
