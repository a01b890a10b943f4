//! The machine's own certificates, and those that an operator adds: files in PEM (RFC 7468).
//!
//! Files are named by what is written here or on the command line, never by `SSL_CERT_FILE`: an image can bake
//! environment, and the supervisor would believe whom the image believes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::O_NONBLOCK;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};

/// Where distributions keep all their roots in one file: Debian and Alpine, Fedora, openSUSE, and BSD's way, which
/// Alpine has as well. The first that is there is taken.
pub const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Largest file of certificates: distributions' bundles have a quarter of a megabyte, corporate ones two.
pub const BUNDLE_BYTES: u64 = 16 << 20;

/// Why a file of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It cannot be read.
    #[error("{}: {source}; name a readable file of certificates in PEM", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What reading it answered.
        source: io::Error,
    },
    /// It is too long.
    #[error("{}: longer than {BUNDLE_BYTES} bytes, which no bundle of certificates is", .0.display())]
    TooLarge(PathBuf),
    /// Part of it is no certificate.
    #[error("{}: certificate {index} cannot be read ({reason}); expected PEM, `-----BEGIN CERTIFICATE-----`", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which one, from 1.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is none in it.
    #[error("{}: no certificate in it; expected PEM, `-----BEGIN CERTIFICATE-----`", .0.display())]
    Empty(PathBuf),
}

/// Reads a file of at most [`BUNDLE_BYTES`].
///
/// # Errors
/// [`BundleError::Unreadable`], [`BundleError::TooLarge`].
pub fn read(path: &Path) -> Result<Vec<u8>, BundleError> {
    let unreadable = |source| BundleError::Unreadable { path: path.to_owned(), source };
    // A pipe would be waited for, and is none.
    let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path).map_err(unreadable)?;
    let status = file.metadata().map_err(unreadable)?;
    if !status.is_file() {
        return Err(unreadable(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(status.len().min(BUNDLE_BYTES)).unwrap_or_default() + 1);
    file.take(BUNDLE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > BUNDLE_BYTES {
        return Err(BundleError::TooLarge(path.to_owned()));
    }
    Ok(bytes)
}

/// The certificates of a file that was named by an operator: all of them must be readable.
///
/// # Errors
/// [`BundleError`].
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BundleError> {
    let bytes = read(path)?;
    let mut certificates = Vec::new();
    for section in CertificateDer::pem_slice_iter(&bytes) {
        let malformed =
            |reason| BundleError::Malformed { path: path.to_owned(), index: certificates.len() + 1, reason };
        let certificate = section.map_err(|error| malformed(reason(&error)))?;
        if super::x509::Summary::read(&certificate).is_none() {
            return Err(malformed("it is no X.509 certificate".to_owned()));
        }
        certificates.push(certificate);
    }
    if certificates.is_empty() { Err(BundleError::Empty(path.to_owned())) } else { Ok(certificates) }
}

/// What is wrong with PEM, without the bytes that are: a key could be among them.
pub(crate) fn reason(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "its END line is missing".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "its BEGIN line is malformed".to_owned(),
        pem::Error::Base64Decode(_) => "it is not Base64".to_owned(),
        pem::Error::NoItemsFound => "there is none".to_owned(),
        pem::Error::SectionTooLarge => "it is too long".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        _ => "it is not PEM".to_owned(),
    }
}

/// The file of the system's roots, where there is one that can be read and holds any.
#[must_use]
pub fn system_bundle() -> Option<(PathBuf, Vec<u8>)> {
    let bundle = |path: &&str| {
        let path = PathBuf::from(path);
        let bytes = read(&path).ok()?;
        CertificateDer::pem_slice_iter(&bytes).any(|section| section.is_ok()).then_some((path, bytes))
    };
    SYSTEM_BUNDLES.iter().find_map(bundle)
}

#[cfg(test)]
mod tests;
