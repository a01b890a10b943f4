//! What a client asks for, in canonical form: the one reading that the decision, the resolver and the dialler share.

use crate::policy::host::Host;

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Intent {
    /// Canonical host.
    pub host: Host,
    /// Port.
    pub port: u16,
}

/// Why a destination could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum IntentError {
    /// `user@host`: the part before the sign misleads readers of logs, and no proxy has a use for it.
    #[error("the target holds user information before an @ sign; send credentials in an Authorization field")]
    UserInformation,
    /// No usable port.
    #[error("the target {0:?} does not end in a port between 1 and 65535, as in api.example.com:443")]
    Port(String),
    /// Brackets or colons where none belong.
    #[error("the target {0:?} is neither NAME:PORT nor [IPV6]:PORT")]
    Shape(String),
    /// The host is no host.
    #[error("the target {authority:?} names no host that could be reached: {reason}")]
    Host { authority: String, reason: String },
}

impl Intent {
    /// Reads `HOST:PORT`, or `HOST` where there is a default port.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(authority: &str, default_port: Option<u16>) -> Result<Self, IntentError> {
        if authority.contains('@') {
            return Err(IntentError::UserInformation);
        }
        let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(|| IntentError::Shape(authority.to_owned()))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(IntentError::Shape(authority.to_owned()));
            }
            (host, after)
        } else {
            let end = authority.find(':').unwrap_or(authority.len());
            if authority[end..].matches(':').count() > 1 {
                return Err(IntentError::Shape(authority.to_owned()));
            }
            authority.split_at(end)
        };
        let port = match (port.strip_prefix(':'), default_port) {
            (Some(digits), _) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok()
            }
            (None, Some(default)) if port.is_empty() => Some(default),
            _ => None,
        };
        let port = port.filter(|&port| port != 0).ok_or_else(|| IntentError::Port(authority.to_owned()))?;
        let host = Host::parse(host)
            .map_err(|error| IntentError::Host { authority: authority.to_owned(), reason: error.to_string() })?;
        Ok(Self { host, port })
    }
}

impl std::fmt::Display for Intent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            Host::Address(std::net::IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_have_one_reading() {
        let text = |authority, default| Intent::parse(authority, default).map(|intent| intent.to_string());
        assert_eq!(text("API.Example.com:443", None).as_deref(), Ok("api.example.com:443"));
        assert_eq!(text("api.example.com.:443", None).as_deref(), Ok("api.example.com:443"));
        assert_eq!(text("api.example.com", Some(80)).as_deref(), Ok("api.example.com:80"));
        assert_eq!(text("[2001:DB8::1]:443", None).as_deref(), Ok("[2001:db8::1]:443"));
        assert_eq!(text("[2001:db8::1]", Some(80)).as_deref(), Ok("[2001:db8::1]:80"));
        assert_eq!(text("192.0.2.1:0443", None).as_deref(), Ok("192.0.2.1:443"));
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        for bad in [
            "api.example.com",
            "api.example.com:",
            "api.example.com:0",
            "api.example.com:65536",
            "api.example.com:+443",
            "api.example.com:443:1",
            "2001:db8::1:443",
            "[2001:db8::1",
            "[2001:db8::1]443",
            "[fe80::1%eth0]:443",
            "[api.example.com]:443",
            "[127.0.0.1]:443",
            "user@api.example.com:443",
            ":443",
            "",
            "a b:443",
            "api.example.com%00.github.com:443",
            "http://api.example.com:443",
            "api.example.com:443/",
        ] {
            assert!(Intent::parse(bad, None).is_err(), "{bad:?}: {:?}", Intent::parse(bad, None));
        }
        assert!(Intent::parse("api.example.com:", Some(80)).is_err());
    }
}
