//! The sandbox's certificate authority, and the certificates that it signs for the hosts that policy has inspected.
//!
//! A generated CA's key never leaves this process: no file, no child, no log has it. What the workload gets to know is
//! the certificate. (A sandbox whose proxy is elsewhere is given one that is made for that: [`pair`].)

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};

use super::roots::{self, BundleError};
use super::x509::{Summary, moment};
use crate::policy::host::Host;

/// Common name of generated CAs, by which people recognise one in a certificate viewer.
pub const COMMON_NAME: &str = "OpenShell Sandbox CA";

/// Longest of a name's parts: RFC 5280 appendix A, ub-common-name and ub-organizational-unit-name.
const NAME_PART: usize = 64;

const DAY: u64 = 86_400;

/// How long a generated CA holds. Its key ends with the process, so a short life would protect nothing and end the
/// sandboxes that run for months.
pub const CA_VALIDITY: Duration = Duration::from_secs(3650 * DAY);

/// How long a certificate of a host holds. Below the 398 days that clients allow at most; renewed at half of it.
pub const LEAF_VALIDITY: Duration = Duration::from_secs(90 * DAY);

/// How far back validity begins: clocks of a virtual machine and its host may differ by a time zone.
const BACKDATED: Duration = Duration::from_secs(DAY);

/// Hosts, times protocols, whose certificates are kept. One takes about 3 kB and 0.03 ms to make; an agent works with
/// some tens of hosts.
pub const CONFIGURATIONS: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// Certificates in a file of a CA, itself and the chain above it: nobody has so many.
const CHAIN_LENGTH: usize = 8;

/// Why there is no authority, or no certificate of it.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The CA's file.
    #[error(transparent)]
    Certificate(#[from] BundleError),
    /// More certificates than make one chain.
    #[error(
        "{}: certificate {index} is not the issuer of the one before it; expected the CA's certificate first and behind \
         it, if it is not self-signed, its issuers in order", path.display()
    )]
    NoChain {
        /// The file.
        path: PathBuf,
        /// Which one, from 1.
        index: usize,
    },
    /// It is no CA.
    #[error(
        "{}: not a CA's certificate; expected basicConstraints CA:TRUE and, if there is a keyUsage, keyCertSign in it",
        .0.display()
    )]
    NotAuthority(PathBuf),
    /// It is not valid now.
    #[error("{}: {what}; renew the CA, or mend this machine's clock", path.display())]
    Outdated {
        /// The file.
        path: PathBuf,
        /// Expired or not yet valid, and when.
        what: String,
    },
    /// The key cannot be used.
    #[error("{}: {reason}; expected a private key in PKCS #8, as `openssl pkcs8 -topk8 -nocrypt` writes it", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        reason: String,
    },
    /// Key and certificate are of different pairs.
    #[error("{}: not the key of the certificate in {}; name a pair that belongs together", key.display(), certificate.display())]
    Mismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// A signature by it does not verify.
    #[error("{}: a certificate signed by this CA is not accepted: {reason}; use an ECDSA P-256 CA without name constraints", path.display())]
    Unusable {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The CA's time is over.
    #[error("the sandbox's CA has expired on {0}; renew it and start the sandbox again")]
    Expired(String),
    /// Cryptography failed.
    #[error("a certificate cannot be made: {0}")]
    Make(String),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error.to_string())
    }
}

impl From<rustls::Error> for AuthorityError {
    fn from(error: rustls::Error) -> Self {
        Self::Make(error.to_string())
    }
}

/// One CA, and the server configurations of the hosts that it has signed for.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// In PEM: the CA, and what stands above it.
    pem: String,
    /// What is sent behind a host's certificate: nothing for a self-signed CA, which clients have.
    chain: Vec<CertificateDer<'static>>,
    not_before: u64,
    not_after: u64,
    /// One for all hosts: another pair for each would cost time and protect nothing, all of them being in this process.
    leaf_key: KeyPair,
    leaf_signer: Arc<dyn SigningKey>,
    configurations: Mutex<LruCache<Presented, Served>>,
}

/// Who a client is shown, and the protocol that is chosen.
type Presented = (Host, Option<&'static [u8]>);

/// A host's configuration and when it is to be made anew.
#[derive(Debug)]
struct Served {
    config: Arc<ServerConfig>,
    renew: u64,
}

/// A CA that was made, its certificate in PEM.
struct Made {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
    validity: (u64, u64),
}

fn make(sandbox: Option<&str>) -> Result<Made, AuthorityError> {
    let now = UnixTime::now().as_secs();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "OpenShell");
    let unit: String = sandbox.unwrap_or_default().chars().filter(|c| !c.is_control()).take(NAME_PART).collect();
    if !unit.is_empty() {
        name.push(DnType::OrganizationalUnitName, unit);
    }
    name.push(DnType::CommonName, COMMON_NAME);
    let (not_before, not_after) = (now.saturating_sub(BACKDATED.as_secs()), now + CA_VALIDITY.as_secs());
    let mut params = blank(not_before, not_after)?;
    params.distinguished_name = name;
    // No CA below it.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let pem = certificate.pem();
    Ok(Made { params, key, pem, validity: (not_before, not_after) })
}

/// Makes a CA for a proxy elsewhere: its certificate and its private key, both in PEM, as [`Authority::load`] takes them.
///
/// # Errors
/// [`AuthorityError::Make`], without randomness.
pub fn pair(sandbox: &str) -> Result<(String, String), AuthorityError> {
    let Made { key, pem, .. } = make(Some(sandbox))?;
    Ok((pem, key.serialize_pem()))
}

impl Authority {
    /// Makes a CA for this process. The sandbox's name, if it has one, is part of the CA's.
    ///
    /// # Errors
    /// [`AuthorityError::Make`], without randomness.
    pub fn generate(sandbox: Option<&str>) -> Result<Self, AuthorityError> {
        let Made { params, key, pem, validity } = make(sandbox)?;
        Self::new(Issuer::new(params, key), pem, Vec::new(), validity)
    }

    /// Takes an operator's CA: `certificate` holds its certificate in PEM, with the chain above it in order where it
    /// is not self-signed; `key` its private key in PKCS #8.
    ///
    /// # Errors
    /// Says which file is not what it must be.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, AuthorityError> {
        let certificates = roots::certificates(certificate)?;
        let summaries: Vec<Summary> = certificates.iter().filter_map(|der| Summary::read(der)).collect();
        let apart =
            summaries.windows(2).position(|pair| matches!(pair, [below, above] if below.issuer != above.subject));
        // A self-signed one has no issuer but itself.
        let beyond = summaries.iter().take(summaries.len() - 1).position(Summary::is_self_issued);
        if let Some(index) = apart.or(beyond).or((summaries.len() > CHAIN_LENGTH).then_some(CHAIN_LENGTH - 1)) {
            return Err(AuthorityError::NoChain { path: certificate.to_owned(), index: index + 2 });
        }
        let now = UnixTime::now().as_secs();
        for summary in &summaries {
            if !summary.signs {
                return Err(AuthorityError::NotAuthority(certificate.to_owned()));
            }
            let outdated = |what| AuthorityError::Outdated { path: certificate.to_owned(), what };
            let when = |seconds| moment(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
            if now > summary.not_after {
                return Err(outdated(format!("expired since {}", when(summary.not_after))));
            }
            if now < summary.not_before {
                return Err(outdated(format!("not valid before {}", when(summary.not_before))));
            }
        }
        let (Some(summary), Some(first)) = (summaries.first(), certificates.first()) else {
            return Err(BundleError::Empty(certificate.to_owned()).into());
        };
        let pair = read_key(key)?;
        if pair.public_key_raw() != summary.public_key {
            return Err(AuthorityError::Mismatch { key: key.to_owned(), certificate: certificate.to_owned() });
        }
        let unusable = |reason: String| AuthorityError::Unusable { path: certificate.to_owned(), reason };
        let issuer = Issuer::from_ca_cert_der(first, pair).map_err(|error| unusable(error.to_string()))?;
        let pem = certificates.iter().map(|der| pem(der)).collect();
        let chain = certificates
            .iter()
            .zip(&summaries)
            .filter(|(_, summary)| !summary.is_self_issued())
            .map(|(der, _)| der.clone())
            .collect();
        let not_before = summaries.iter().map(|summary| summary.not_before).max().unwrap_or(0);
        let not_after = summaries.iter().map(|summary| summary.not_after).min().unwrap_or(0);
        let authority = Self::new(issuer, pem, chain, (not_before, not_after))?;
        authority.try_out(first).map_err(unusable)?;
        Ok(authority)
    }

    fn new(
        issuer: Issuer<'static, KeyPair>,
        pem: String,
        chain: Vec<CertificateDer<'static>>,
        (not_before, not_after): (u64, u64),
    ) -> Result<Self, AuthorityError> {
        let leaf_key = KeyPair::generate()?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
        let leaf_signer = rustls::crypto::ring::sign::any_ecdsa_type(&der)?;
        let configurations = Mutex::new(LruCache::new(CONFIGURATIONS));
        Ok(Self { issuer, pem, chain, not_before, not_after, leaf_key, leaf_signer, configurations })
    }

    /// The CA's certificate in PEM, with the chain above it where it was loaded with one: what the workload is to
    /// trust.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// How to be `host` towards a client, and speak the one protocol that was agreed on with the origin; `None` where
    /// the client offered none, or the origin chose none.
    ///
    /// A session is resumed only with the host and protocol that it began with: each configuration encrypts its
    /// tickets (RFC 8446 §4.6.1, RFC 5077) by a key of its own. No early data is taken, which could be replayed.
    ///
    /// # Errors
    /// [`AuthorityError::Expired`], [`AuthorityError::Make`].
    pub fn server_config(&self, host: &Host, alpn: Option<&'static [u8]>) -> Result<Arc<ServerConfig>, AuthorityError> {
        let now = UnixTime::now().as_secs();
        let key = (host.clone(), alpn);
        let mut configurations = self.configurations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(served) = configurations.get(&key)
            && now < served.renew
        {
            return Ok(served.config.clone());
        }
        // Under the lock: whoever waits is likely to want the same.
        let (leaf, not_after) = self.leaf(host, now)?;
        let mut chain = vec![leaf];
        chain.extend(self.chain.iter().cloned());
        let certified = CertifiedKey::new(chain, self.leaf_signer.clone());
        let mut config = ServerConfig::builder_with_provider(super::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = alpn.map(<[u8]>::to_vec).into_iter().collect();
        config.ticketer = rustls::crypto::ring::Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let config = Arc::new(config);
        let renew = now + (not_after - now) / 2;
        configurations.put(key, Served { config: config.clone(), renew });
        Ok(config)
    }

    /// Signs for a host; also the last second of the certificate.
    fn leaf(&self, host: &Host, now: u64) -> Result<(CertificateDer<'static>, u64), AuthorityError> {
        if now >= self.not_after {
            let when = UnixTime::since_unix_epoch(Duration::from_secs(self.not_after));
            return Err(AuthorityError::Expired(moment(when)));
        }
        // Never beyond the CA's own time.
        let not_before = now.saturating_sub(BACKDATED.as_secs()).max(self.not_before);
        let not_after = (now + LEAF_VALIDITY.as_secs()).min(self.not_after);
        let mut params = blank(not_before, not_after)?;
        let name = host.to_string();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.to_string().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        // For people; clients read the alternative name alone (RFC 9525 §2).
        if name.len() <= NAME_PART {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&self.leaf_key, &self.issuer)?;
        Ok((certificate.der().clone(), not_after))
    }

    /// Signs for a host that is none and verifies it as a client would, so that a CA which cannot do that (a name that
    /// is encoded unusually, a name constraint, an algorithm that nobody takes) is found out at start.
    fn try_out(&self, ca: &CertificateDer<'static>) -> Result<(), String> {
        let (leaf, _) =
            self.leaf(&Host::Name("sandbox.invalid".into()), UnixTime::now().as_secs()).map_err(|e| e.to_string())?;
        let mut store = rustls::RootCertStore::empty();
        store.add(ca.clone()).map_err(|error| error.to_string())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), super::provider())
            .build()
            .map_err(|error| error.to_string())?;
        let name = ServerName::try_from("sandbox.invalid").map_err(|error| error.to_string())?;
        verifier
            .verify_server_cert(&leaf, &[], &name, &[], UnixTime::now())
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

/// Parameters of validity and a serial number that nobody has had: 16 random bytes (RFC 5280 §4.1.2.2). Without a
/// name.
fn blank(not_before: u64, not_after: u64) -> Result<CertificateParams, AuthorityError> {
    let mut serial = [0; 16];
    super::provider().secure_random.fill(&mut serial).map_err(|_| AuthorityError::Make("no random bytes".into()))?;
    // Positive, and not zero.
    serial[0] = serial[0] & 0x7f | 0x40;
    let moment = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let mut params = CertificateParams::default();
    params.not_before = moment(not_before);
    params.not_after = moment(not_after);
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

fn read_key(path: &Path) -> Result<KeyPair, AuthorityError> {
    let wrong = |reason: String| AuthorityError::Key { path: path.to_owned(), reason };
    let bytes = roots::read(path)?;
    // The parser knows no encrypted keys, and would find none.
    if String::from_utf8_lossy(&bytes).contains("BEGIN ENCRYPTED PRIVATE KEY") {
        return Err(wrong("it is encrypted, and nobody can be asked for the password".to_owned()));
    }
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(PrivateKeyDer::Pkcs8(der)) => {
            KeyPair::try_from(der.secret_pkcs8_der()).map_err(|error| wrong(format!("it cannot be used: {error}")))
        }
        Ok(PrivateKeyDer::Sec1(_)) => Err(wrong("it is an `EC PRIVATE KEY`".to_owned())),
        Ok(PrivateKeyDer::Pkcs1(_)) => Err(wrong("it is an `RSA PRIVATE KEY`".to_owned())),
        Ok(_) => Err(wrong("it is of a kind unknown".to_owned())),
        Err(error) => Err(wrong(format!("no private key can be read from it: {}", roots::reason(&error)))),
    }
}

/// RFC 7468 §2 and §5.
fn pem(der: &[u8]) -> String {
    use std::fmt::Write as _;
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    // Lines of 64 characters.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits =
                group.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
            for at in 0..4 {
                let index = (bits >> (18 - 6 * at)) as usize & 63;
                text.push(if at <= group.len() { char::from(ALPHABET[index]) } else { '=' });
            }
        }
        let _ = writeln!(text);
    }
    text + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests;
