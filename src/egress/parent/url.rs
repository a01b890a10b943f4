//! `--upstream-proxy`: a scheme, a host and a port, and nothing else.

use std::fmt;
use std::str::FromStr;

use crate::egress::intent::{Intent, IntentError};
use crate::event::Via;

/// Where the upstream proxy is, and whether TLS leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyUrl {
    /// `https://`.
    pub(super) tls: bool,
    /// Host and port.
    pub(super) at: Intent,
}

/// Why a text is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyUrlError {
    /// Neither of the two schemes.
    #[error(
        "it starts with neither http:// nor https://; write http://HOST:PORT, such as http://proxy.example.com:3128"
    )]
    Scheme,
    /// A user name or a password, which every process could read on the command line.
    #[error("it holds user information; put USER:PASSWORD into a file and name it by --upstream-proxy-auth-file")]
    UserInformation,
    /// Something behind the port.
    #[error("a path, query or fragment follows the port; end the URL with the port")]
    Tail,
    /// Host or port.
    #[error("{0}; write http://HOST:PORT, with an IPv6 address in brackets")]
    Authority(String),
}

impl ProxyUrl {
    /// Whether what is sent to the proxy itself can be read on the way.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.tls
    }

    pub(super) fn via(&self) -> Via {
        Via { host: self.at.host.to_string(), port: self.at.port }
    }
}

impl FromStr for ProxyUrl {
    type Err = ProxyUrlError;

    fn from_str(text: &str) -> Result<Self, ProxyUrlError> {
        let (tls, authority) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            (None, None) => return Err(ProxyUrlError::Scheme),
        };
        if authority.contains(['/', '?', '#']) {
            return Err(ProxyUrlError::Tail);
        }
        match Intent::parse(authority, None) {
            Ok(at) => Ok(Self { tls, at }),
            // Not quoted: what was written there may be a password.
            Err(IntentError::UserInformation) => Err(ProxyUrlError::UserInformation),
            Err(error) => Err(ProxyUrlError::Authority(error.to_string())),
        }
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_scheme_host_and_port() {
        for (given, shown) in [
            ("http://proxy.example.com:3128", "http://proxy.example.com:3128"),
            ("https://Proxy.Example.com.:443", "https://proxy.example.com:443"),
            ("http://192.0.2.1:8080", "http://192.0.2.1:8080"),
            ("http://[2001:DB8::1]:3128", "http://[2001:db8::1]:3128"),
        ] {
            let url: ProxyUrl = given.parse().unwrap();
            assert_eq!((url.to_string().as_str(), url.is_plain()), (shown, given.starts_with("http:")));
        }
    }

    #[test]
    fn anything_more_or_less_is_refused() {
        for (given, error) in [
            ("", ProxyUrlError::Scheme),
            ("proxy.example.com:3128", ProxyUrlError::Scheme),
            ("socks5://proxy.example.com:1080", ProxyUrlError::Scheme),
            (" http://proxy.example.com:3128", ProxyUrlError::Scheme),
            ("http://proxy.example.com:3128/", ProxyUrlError::Tail),
            ("http://proxy.example.com:3128?x", ProxyUrlError::Tail),
            ("http://proxy.example.com:3128#x", ProxyUrlError::Tail),
            ("http://me:secret@proxy.example.com:3128", ProxyUrlError::UserInformation),
        ] {
            assert_eq!(given.parse::<ProxyUrl>(), Err(error), "{given:?}");
        }
        for given in [
            "http://proxy.example.com",
            "http://proxy.example.com:",
            "http://proxy.example.com:0",
            "http://proxy.example.com:65536",
            "http://proxy.example.com:3128 ",
            "http://2001:db8::1:3128",
            "http://[192.0.2.1]:3128",
            "http://:3128",
            "http://",
        ] {
            assert!(matches!(given.parse::<ProxyUrl>(), Err(ProxyUrlError::Authority(_))), "{given:?}");
        }
        let told = "http://me:secret@proxy.example.com:3128".parse::<ProxyUrl>().unwrap_err().to_string();
        assert!(!told.contains("secret"), "{told}");
    }
}
