//! What the workload trusts: the sandbox's CA beside everybody that the image trusts already, and the variables that
//! tell programs where that is written.
//!
//! Two files: `ca.pem`, for programs that add to what they trust, and `bundle.pem`, for those that replace it. In a
//! combined sandbox they exist in the workload's view alone ([`crate::netns::Provided`]), and the bundle also stands in
//! the place of the system's own, so that programs without a variable find the CA too (GnuTLS's wget, whatever clears
//! its environment). In a sidecar pod nobody may mount anything: they lie in a volume that `network` alone can write.
//!
//! Java reads neither: its key store is no PEM, and no variable but JAVA_TOOL_OPTIONS, which every JVM repeats on
//! stderr, would name another. `keytool -importcert -cacerts -file $NODE_EXTRA_CA_CERTS` in the image or a Java user's
//! own trustStore does it. Firefox and Chromium have stores of their own as well.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use crate::contract::TRUST_DIRECTORY;
use crate::egress::tls::roots::{self, BundleError};
use crate::netns::{Provided, ProvidedFile};

/// The CA, and whom the operator and the image add.
const CA: &str = "ca.pem";

/// Everybody.
const BUNDLE: &str = "bundle.pem";

/// Most bytes of certificates that a workload is given: a distribution's and a corporation's fit ten times over. They
/// lie in memory, once a sandbox.
pub const TRUST_BYTES: usize = 4 << 20;

/// Most notes that are taken over: one for each variable and then some.
const NOTES: usize = 32;

/// Variables whose file is all that the program trusts: OpenSSL and so Python, Ruby, and by the same name Go and
/// rustls-native-certs; requests; curl; pip; git (of OpenSSL and GnuTLS alike); npm; cargo; the AWS tools; gRPC; Nix;
/// httplib2; the Google Cloud tools; LWP; Bundler; Composer; Hex.
const REPLACING: &[&str] = &[
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "npm_config_cafile",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
    "HTTPLIB2_CA_CERTS",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "PERL_LWP_SSL_CA_FILE",
    "BUNDLE_SSL_CA_CERT",
    "COMPOSER_CAFILE",
    "HEX_CACERTS_PATH",
];

/// Variables whose file is trusted beside what is built in: Node, Deno. SSL_CERT_DIR is of this kind too, and stays as
/// it is.
const ADDING: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Whom the workload's image trusts by itself, in PEM, as it travels to the other supervisor: certificates and nothing
/// else of any file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// Everybody: the system's, and those of bundles that variables put in its place.
    pub everybody: String,
    /// Whom variables add.
    pub added: String,
    /// What could not be taken over, as sentences.
    pub notes: Vec<String>,
}

impl From<Image> for Gathered {
    fn from(image: Image) -> Self {
        let Image { everybody, added, mut notes } = image;
        let (everybody, added) = (Pile::of(&everybody), Pile::of(&added));
        notes.extend((everybody.full || added.full).then(too_much));
        Self { everybody: everybody.text(), added: added.text(), notes }
    }
}

/// Whom the workload's image trusts by itself, as its files say.
#[derive(Clone, Debug, Default)]
pub struct Image {
    everybody: Vec<Vec<u8>>,
    added: Vec<Vec<u8>>,
    notes: Vec<String>,
}

impl From<Gathered> for Image {
    fn from(gathered: Gathered) -> Self {
        let Gathered { everybody, added, notes } = gathered;
        Self { everybody: vec![everybody.into_bytes()], added: vec![added.into_bytes()], notes }
    }
}

impl Image {
    /// Reads the files: `variable` looks up what the image or the person who runs the sandbox had set, and bundles named
    /// there are taken along.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<OsString>, system: Option<(PathBuf, Vec<u8>)>) -> Self {
        let mut notes = Vec::new();
        let (mut replacing, mut adding) = (Vec::new(), Vec::new());
        let mut known = HashSet::new();
        match system {
            Some((path, bytes)) => {
                replacing.push(bytes);
                known.insert(path);
            }
            None => notes.push(
                "this system has no bundle of certificates, so the workload is told to trust the sandbox's CA alone; \
                 install ca-certificates for destinations that are not inspected"
                    .to_owned(),
            ),
        }
        for (names, files, mut read) in [(REPLACING, &mut replacing, known), (ADDING, &mut adding, HashSet::new())] {
            for name in names {
                let Some(path) = variable(name).filter(|value| !value.is_empty()).map(PathBuf::from) else { continue };
                // Those are usually one file.
                if !read.insert(path.clone()) {
                    continue;
                }
                match roots::read(&path) {
                    Ok(bytes) => files.push(bytes),
                    Err(error) => notes.push(format!("{name} is not taken over into the workload's trust: {error}")),
                }
            }
        }
        Self { everybody: replacing, added: adding, notes }
    }
}

/// What to show the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The sandbox's CA, and whom the operator and the image add.
    pub ca: String,
    /// Everybody.
    pub bundle: String,
    /// What could not be taken over, as sentences.
    pub notes: Vec<String>,
}

impl Trust {
    /// Adds `authority`, the sandbox's CA in PEM, and the operator's further files to whom the image trusts.
    ///
    /// Of files nothing but certificates is copied: they may be read by root here, and this is shown to the workload. What
    /// comes from another container is certificates here, whatever it was called there.
    #[must_use]
    pub fn extend(image: impl Into<Image>, authority: &str, corporate: &[PathBuf]) -> Self {
        let Image { everybody, added, mut notes } = image.into();
        notes.truncate(NOTES);
        let mut further = Vec::new();
        for path in corporate {
            // It was read before, by whoever speaks to origins.
            match roots::read(path) {
                Ok(bytes) => further.push(bytes),
                Err(error) => notes.push(format!("--upstream-ca is not taken over into the workload's trust: {error}")),
            }
        }
        let (mut ca, mut bundle) = (Pile::default(), Pile::default());
        [&mut bundle, &mut ca].into_iter().for_each(|pile| pile.add(authority.as_bytes()));
        everybody.iter().for_each(|file| bundle.add(file));
        added.iter().for_each(|file| ca.add(file));
        for file in &further {
            [&mut bundle, &mut ca].into_iter().for_each(|pile| pile.add(file));
        }
        // For a program that adds, whatever others are told to trust is no loss.
        added.iter().for_each(|file| bundle.add(file));
        // Unless it was told when they were gathered.
        notes.extend(Some(too_much()).filter(|note| (bundle.full || ca.full) && !notes.contains(note)));
        Self { ca: ca.text(), bundle: bundle.text(), notes }
    }

    /// As files of the workload's view.
    #[must_use]
    pub fn provided(self) -> Provided {
        let file = |name: &str, text: String, in_place_of: &[&str]| ProvidedFile {
            name: name.to_owned(),
            content: text.into(),
            in_place_of: in_place_of.iter().map(PathBuf::from).collect(),
        };
        let files = vec![file(CA, self.ca, &[]), file(BUNDLE, self.bundle, roots::SYSTEM_BUNDLES)];
        Provided { directory: TRUST_DIRECTORY.into(), files }
    }

    /// Writes both files into `directory`, for all to read, each at once.
    ///
    /// # Errors
    /// What a call on the file answered, which is named.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        for (name, text) in [(CA, &self.ca), (BUNDLE, &self.bundle)] {
            let path = directory.join(name);
            let temporary = directory.join(format!(".{name}.new"));
            // One of a run that was killed may not be writable any more.
            let _ = fs::remove_file(&temporary);
            let written = fs::write(&temporary, text)
                .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(0o444)))
                .and_then(|()| fs::rename(&temporary, &path));
            written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

/// The certificates of a file that is to hold a sandbox's CA, and nothing else of it: a key beside them stays there.
///
/// # Errors
/// It cannot be read, or holds no certificate, or one that is none.
pub fn authority(path: &Path) -> Result<String, BundleError> {
    roots::certificates(path)?;
    Ok(Pile::of(&[roots::read(path)?]).text())
}

/// The first of the files that [`Trust::write`] makes that is not in `directory`.
#[must_use]
pub fn missing_from(directory: &Path) -> Option<PathBuf> {
    [CA, BUNDLE].into_iter().map(|name| directory.join(name)).find(|path| !path.is_file())
}

fn too_much() -> String {
    format!(
        "the certificates to be trusted exceed {TRUST_BYTES} bytes, and the last of them are left out; give the image a \
         smaller bundle"
    )
}

/// Which variable names which file.
#[must_use]
pub fn variables(directory: &Path) -> BTreeMap<String, String> {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (ca, bundle) = (path(CA), path(BUNDLE));
    let replacing = REPLACING.iter().map(|name| ((*name).to_owned(), bundle.clone()));
    replacing.chain(ADDING.iter().map(|name| ((*name).to_owned(), ca.clone()))).collect()
}

/// Certificates of several files, each once: this is on the way of every start, and nothing is copied until all are known.
#[derive(Debug, Default)]
struct Pile<'f> {
    bodies: Vec<&'f str>,
    /// The same, to be looked up. Ordered, because two certificates differ within some bytes and hashing reads all.
    known: BTreeSet<&'f str>,
    /// Length of [`Pile::text`].
    length: usize,
    full: bool,
}

impl<'f> Pile<'f> {
    fn of(files: &'f [Vec<u8>]) -> Self {
        let mut pile = Self::default();
        files.iter().for_each(|file| pile.add(file));
        pile
    }

    /// Adds the certificates in a file, in its order, and nothing else of it.
    fn add(&mut self, file: &'f [u8]) {
        for body in certificates(file) {
            let length = AROUND + body.len();
            if self.known.contains(body) {
                continue;
            }
            if self.length + length > TRUST_BYTES {
                self.full = true;
                return;
            }
            self.length += length;
            self.bodies.push(body);
            self.known.insert(body);
        }
    }

    /// All of them, in PEM.
    fn text(&self) -> String {
        let mut text = String::with_capacity(self.length);
        for body in &self.bodies {
            [BEGIN, "\n", body, "\n", END, "\n"].into_iter().for_each(|part| text.push_str(part));
        }
        text
    }
}

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// What [`Pile::text`] writes around a body: both lines and three ends of lines.
const AROUND: usize = BEGIN.len() + END.len() + 3;

/// What stands between the lines of every certificate (RFC 7468 §2), where it is Base64: a key or a password file is
/// not copied for being dressed up as one. This is on the way of every start.
fn certificates(file: &[u8]) -> impl Iterator<Item = &str> {
    memmem::find_iter(file, BEGIN.as_bytes()).filter_map(move |begin| {
        let rest = &file[begin + BEGIN.len()..];
        let body = rest[..memmem::find(rest, END.as_bytes())?].trim_ascii();
        // A certificate is a DER sequence of more than 127 bytes: 0x30 0x81 or 0x30 0x82.
        let fits = body.starts_with(b"MI") && is_base64(body);
        std::str::from_utf8(body).ok().filter(|_| fits)
    })
}

/// Whether these are letters of Base64 (RFC 4648 §4) and ends of lines, nothing else. Without a branch, so that many are
/// looked at in one step.
fn is_base64(text: &[u8]) -> bool {
    let strange = text.iter().fold(0_u8, |strange, &byte| {
        let letter = ((byte | 0x20).wrapping_sub(b'a') < 26) | (byte.wrapping_sub(b'0') < 10);
        let other = (byte == b'+') | (byte == b'/') | (byte == b'=') | (byte == b'\r') | (byte == b'\n');
        strange | u8::from(!(letter | other))
    });
    strange == 0
}

#[cfg(test)]
mod tests;
