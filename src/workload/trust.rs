//! What the workload trusts: the sandbox's CA beside everybody that the image trusts already, and the variables that
//! tell programs where that is written.
//!
//! Two files, which exist in the workload's view alone ([`crate::netns::Provided`]): `ca.pem`, for programs that add to
//! what they trust, and `bundle.pem`, for those that replace it. The bundle also stands in the place of the system's
//! own, so that programs without a variable find the CA too (GnuTLS's wget, whatever clears its environment).
//!
//! Java reads neither: its key store is no PEM, and no variable but JAVA_TOOL_OPTIONS, which every JVM repeats on
//! stderr, would name another. `keytool -importcert -cacerts -file $NODE_EXTRA_CA_CERTS` in the image or a Java user's
//! own trustStore does it. Firefox and Chromium have stores of their own as well.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::contract::TRUST_DIRECTORY;
use crate::egress::tls::roots;
use crate::netns::{Provided, ProvidedFile};

/// The CA, and whom the operator and the image add.
const CA: &str = "ca.pem";

/// Everybody.
const BUNDLE: &str = "bundle.pem";

/// Most bytes of certificates that a workload is given: a distribution's and a corporation's fit ten times over. They
/// lie in memory, once a sandbox.
const TRUST_BYTES: usize = 4 << 20;

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

/// What to show the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// For [`crate::netns::Isolation`].
    pub provided: Provided,
    /// What could not be taken over, as sentences.
    pub notes: Vec<String>,
}

impl Trust {
    /// Collects it: `authority` is the sandbox's CA in PEM, `corporate` the operator's further files, and `variable`
    /// looks up what the image or the person who runs the sandbox had set: bundles named there are taken along.
    ///
    /// Of files nothing but certificates is copied: this may be read by root and is shown to the workload.
    #[must_use]
    pub fn collect(
        authority: &str,
        corporate: &[PathBuf],
        variable: impl Fn(&str) -> Option<OsString>,
        system: Option<(PathBuf, Vec<u8>)>,
    ) -> Self {
        let mut notes = Vec::new();
        let mut ca = Pile::default();
        let mut bundle = Pile::default();
        let mut in_bundle = HashSet::new();
        match system {
            Some((path, bytes)) => {
                bundle.add(&bytes);
                in_bundle.insert(path);
            }
            None => notes.push(
                "this system has no bundle of certificates, so the workload is told to trust the sandbox's CA alone; \
                 install ca-certificates for destinations that are not inspected"
                    .to_owned(),
            ),
        }
        for (names, pile, mut read) in [(REPLACING, &mut bundle, in_bundle), (ADDING, &mut ca, HashSet::new())] {
            for name in names {
                let Some(path) = variable(name).filter(|value| !value.is_empty()).map(PathBuf::from) else { continue };
                // Those are usually one file.
                if !read.insert(path.clone()) {
                    continue;
                }
                match roots::read(&path) {
                    Ok(bytes) => pile.add(&bytes),
                    Err(error) => notes.push(format!("{name} is not taken over into the workload's trust: {error}")),
                }
            }
        }
        for path in corporate {
            // It was read before, by whoever speaks to origins.
            match roots::read(path) {
                Ok(bytes) => [&mut bundle, &mut ca].into_iter().for_each(|pile| pile.add(&bytes)),
                Err(error) => notes.push(format!("--upstream-ca is not taken over into the workload's trust: {error}")),
            }
        }
        // For a program that adds, whatever others are told to trust is no loss.
        let added = ca.text.clone();
        bundle.add(added.as_bytes());
        [&mut bundle, &mut ca].into_iter().for_each(|pile| pile.put_first(authority));
        if bundle.full || ca.full {
            notes.push(format!(
                "the certificates to be trusted exceed {TRUST_BYTES} bytes, and the last of them are left out; give the \
                 image a smaller bundle"
            ));
        }
        let file = |name: &str, text, in_place_of: &[&str]| ProvidedFile {
            name: name.to_owned(),
            text,
            in_place_of: in_place_of.iter().map(PathBuf::from).collect(),
        };
        let files = vec![file(CA, ca.text, &[]), file(BUNDLE, bundle.text, roots::SYSTEM_BUNDLES)];
        Self { provided: Provided { directory: TRUST_DIRECTORY.into(), files }, notes }
    }
}

/// Which variable names which file.
#[must_use]
pub fn variables() -> Vec<(&'static str, String)> {
    let path = |name: &str| Path::new(TRUST_DIRECTORY).join(name).to_string_lossy().into_owned();
    let (ca, bundle) = (path(CA), path(BUNDLE));
    let replacing = REPLACING.iter().map(|name| (*name, bundle.clone()));
    replacing.chain(ADDING.iter().map(|name| (*name, ca.clone()))).collect()
}

/// Certificates in PEM, each once.
#[derive(Debug, Default)]
struct Pile {
    text: String,
    known: HashSet<String>,
    full: bool,
}

impl Pile {
    /// Adds the certificates in a file, in its order, and nothing else of it.
    fn add(&mut self, file: &[u8]) {
        for body in certificates(&String::from_utf8_lossy(file)) {
            if self.known.contains(body) {
                continue;
            }
            if self.text.len() + body.len() > TRUST_BYTES {
                self.full = true;
                return;
            }
            self.text.push_str(&framed(body));
            self.known.insert(body.to_owned());
        }
    }

    /// Puts what must not be left out before the rest.
    fn put_first(&mut self, file: &str) {
        let first: String =
            certificates(file).filter(|body| self.known.insert((*body).to_owned())).map(framed).collect();
        self.text.insert_str(0, &first);
    }
}

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

fn framed(body: &str) -> String {
    format!("{BEGIN}\n{body}\n{END}\n")
}

/// What stands between the lines of every certificate (RFC 7468 §2), where it is Base64: a key or a password file is
/// not copied for being dressed up as one.
fn certificates(text: &str) -> impl Iterator<Item = &str> {
    text.split(BEGIN).skip(1).filter_map(|rest| {
        let body = rest.split_once(END)?.0.trim();
        let base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'\r' | b'\n');
        // A certificate is a DER sequence of more than 127 bytes: 0x30 0x81 or 0x30 0x82.
        (body.starts_with("MI") && body.bytes().all(base64)).then_some(body)
    })
}

#[cfg(test)]
mod tests;
