//! Certificates, keys and tokens, in a file or written out. What is in a file is read again whenever it is needed, since
//! tokens live for an hour and certificates are renewed; none of it is ever shown.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use hyper::header::HeaderValue;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::access::AccessError;
use crate::egress::tls::roots::{self, BundleError};

/// Longest token: those of service accounts have one to two kilobytes, those of identity providers a few more.
pub(super) const TOKEN_BYTES: usize = 16 * 1024;

/// Something of a kubeconfig or a service account.
pub(super) struct Material {
    /// File and field that name it, for errors.
    place: String,
    source: Source,
}

enum Source {
    Inline(Vec<u8>),
    File(PathBuf),
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Inline(bytes) => write!(f, "{} bytes in {}", bytes.len(), self.place),
            Source::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Material {
    /// In a file, which may come and change later.
    pub(super) fn file(place: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { place: place.into(), source: Source::File(path.into()) }
    }

    /// Written out as it is.
    pub(super) fn inline(place: impl Into<String>, text: &str) -> Self {
        Self { place: place.into(), source: Source::Inline(text.into()) }
    }

    /// Written out in Base64, as `…-data` fields are (RFC 4648 §4).
    ///
    /// # Errors
    /// It is not Base64.
    pub(super) fn encoded(place: impl Into<String>, text: &str) -> Result<Self, AccessError> {
        let place = place.into();
        let in_alphabet = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        // YAML folds what was wrapped.
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let well_formed = digits.len().is_multiple_of(4) && digits.iter().all(in_alphabet);
        // The content of a PEM section is the same encoding (RFC 7468 §2), and its decoder is at hand.
        let section = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        let decoded = well_formed.then(|| CertificateDer::from_pem_slice(section.as_bytes()));
        match decoded {
            Some(Ok(bytes)) if !bytes.is_empty() => Ok(Self { place, source: Source::Inline(bytes.to_vec()) }),
            _ => Err(AccessError::new(place, "it is not Base64", "encode the whole PEM file: base64 -w0 FILE")),
        }
    }

    /// Where it stands, for errors.
    fn place(&self) -> String {
        match &self.source {
            Source::Inline(_) => self.place.clone(),
            Source::File(path) => format!("{}: {}", self.place, path.display()),
        }
    }

    /// What is wrong with it, at its place.
    pub(super) fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> AccessError {
        AccessError::new(self.place(), problem, remedy)
    }

    fn read(&self) -> Result<Cow<'_, [u8]>, AccessError> {
        match &self.source {
            Source::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            Source::File(path) => roots::read(path).map(Cow::Owned).map_err(|error| match error {
                BundleError::Unreadable { source, .. } => {
                    self.error(source.to_string(), "name a file that this process may read")
                }
                _ => self.error("it is too long", "name the file that is meant"),
            }),
        }
    }

    /// Certificates in PEM, all readable, never none.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, AccessError> {
        const REMEDY: &str = "expected certificates in PEM, `-----BEGIN CERTIFICATE-----`";
        let bytes = self.read()?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match found {
            Ok(certificates) if certificates.is_empty() => Err(self.error("no certificate in it", REMEDY)),
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(self.error(format!("not PEM: {}", roots::reason(&error)), REMEDY)),
        }
    }

    /// A private key in PEM.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, AccessError> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| {
            let problem = format!("no private key: {}", roots::reason(&error));
            self.error(problem, "expected one in PEM, `-----BEGIN PRIVATE KEY-----`, without a passphrase")
        })
    }

    /// A bearer token as `Authorization` carries it (RFC 6750 §2.1).
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub(super) fn bearer(&self) -> Result<HeaderValue, AccessError> {
        const REMEDY: &str = "expected one line that is a bearer token";
        let bytes = self.read()?;
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(self.error("it is empty", REMEDY));
        }
        if token.len() > TOKEN_BYTES {
            return Err(self.error(format!("it is longer than {TOKEN_BYTES} bytes"), REMEDY));
        }
        let no_token = || self.error("it holds what no token has: a space, a control or a foreign character", REMEDY);
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(no_token());
        }
        let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat()).map_err(|_| no_token())?;
        value.set_sensitive(true);
        Ok(value)
    }
}
