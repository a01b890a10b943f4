//! Where an API server is: the `server` of a kubeconfig.

use std::fmt;

use hyper::Uri;

use crate::policy::host::Host;

/// Of an https URL that names none.
const HTTPS_PORT: u16 = 443;

/// An https URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) host: Host,
    pub(super) port: u16,
    /// What all paths begin with: a proxy for many clusters tells them apart by it. Without a slash at its end.
    pub(super) prefix: String,
}

impl Server {
    /// Reads `https://host[:port][/prefix]`.
    ///
    /// # Errors
    /// What is wrong with it; never the text itself, which could hold a password.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| "it is no URL".to_owned())?;
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") => return Err("it is http, and a token would be sent to whoever listens".to_owned()),
            _ => return Err("its scheme is not https".to_owned()),
        }
        let authority = uri.authority().ok_or_else(|| "it names no host".to_owned())?;
        if authority.as_str().contains('@') {
            return Err("it holds a user name".to_owned());
        }
        if text.contains(['?', '#']) {
            return Err("it holds a query or a fragment".to_owned());
        }
        let host = Host::parse(authority.host()).map_err(|error| error.to_string())?;
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => HTTPS_PORT,
            _ => match authority.port_u16() {
                Some(port @ 1..) => port,
                _ => return Err("its port is no number from 1 to 65535".to_owned()),
            },
        };
        Ok(Self { host, port, prefix: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Host and port as URLs and `Host` fields spell them (RFC 3986 §3.2.2).
    pub(super) fn authority(&self) -> String {
        match &self.host {
            Host::Address(std::net::IpAddr::V6(address)) => format!("[{address}]:{}", self.port),
            host => format!("{host}:{}", self.port),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}{}", self.authority(), self.prefix)
    }
}
