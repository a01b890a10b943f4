//! The key that a sandbox's two supervisors share, and what is derived from it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::O_NONBLOCK;
use ring::{hkdf, hmac};

use super::wire::{ID, NONCE};

/// Least bytes of a key: as many as the hash that it is used with gives out (RFC 2104 §3).
const LEAST: usize = 32;

/// Most: a key is random bytes, and nothing of this size is.
const MOST: u64 = 4096;

/// Keeps what is derived here apart from whatever else the same bytes may be used for.
const SALT: &[u8] = b"openshell attestation 1";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("{}: {source}; mount the sandbox's attestation key there, readable for this user", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What reading it answered.
        source: io::Error,
    },
    /// It is too short to be safe.
    #[error("{}: {found} bytes, expected {LEAST} at least: write random ones, such as `openssl rand 32` gives", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: usize,
    },
    /// It is no key.
    #[error("{}: longer than {MOST} bytes, which no key is", .0.display())]
    TooLong(PathBuf),
}

/// What is derived from the sandbox's key; the key itself is not kept.
pub struct Key {
    derive: hkdf::Prk,
    prove: hmac::Key,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Bytes to derive.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Key {
    /// Reads the key's file.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
        // A pipe would be waited for, and is none.
        let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is no regular file")));
        }
        // Room for all of it at once: a vector that grows leaves copies behind.
        let mut bytes = Vec::with_capacity(MOST as usize + 2);
        file.take(MOST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        let key = match bytes.len() {
            found if found < LEAST => Err(KeyError::TooShort { path: path.to_owned(), found }),
            found if found as u64 > MOST => Err(KeyError::TooLong(path.to_owned())),
            _ => Ok(Self::of(&bytes)),
        };
        bytes.fill(0);
        // So that the zeros are not left out as nobody's.
        std::hint::black_box(&bytes);
        key
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let derive = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(bytes);
        let prove = hmac::Key::new(hmac::HMAC_SHA256, &expand::<32>(&derive, &[b"handshake"]));
        Self { derive, prove }
    }

    /// The code by which the side called `who` shows that it has the key.
    pub(super) fn proof(&self, who: Side, nonces: &Nonces) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.prove);
        [who.label(), &nonces.client, &nonces.server].into_iter().for_each(|part| context.update(part));
        context.sign()
    }

    /// Whether `code` is that of [`proof`](Self::proof), in a time that tells nothing.
    pub(super) fn is_proof(&self, who: Side, nonces: &Nonces, code: &[u8]) -> bool {
        let said = [who.label(), &nonces.client, &nonces.server].concat();
        hmac::verify(&self.prove, &said, code).is_ok()
    }

    /// Name and key of the session that two random numbers make.
    pub(super) fn session(&self, nonces: &Nonces) -> ([u8; ID], hmac::Key) {
        let of = |label: &'static [u8]| [label, nonces.client.as_slice(), nonces.server.as_slice()];
        let id = expand::<ID>(&self.derive, &of(b"session name"));
        let key = expand::<32>(&self.derive, &of(b"session key"));
        (id, hmac::Key::new(hmac::HMAC_SHA256, &key))
    }
}

fn expand<const N: usize>(from: &hkdf::Prk, info: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    // Fails for more than 255 times the hash's length, and asks for one (RFC 5869 §2.3).
    if from.expand(info, Length(N)).and_then(|okm| okm.fill(&mut out)).is_err() {
        unreachable!("{N} bytes are within what HKDF gives");
    }
    out
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// `process`.
    Client,
    /// The proxy.
    Server,
}

impl Side {
    /// Different, so that one side's code is of no use in the other's place.
    fn label(self) -> &'static [u8] {
        match self {
            Self::Client => b"process",
            Self::Server => b"network",
        }
    }
}

/// The random numbers of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nonces {
    pub client: [u8; NONCE],
    pub server: [u8; NONCE],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_too_short_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            Key::read(file.path()).map(drop).map_err(|error| error.to_string())
        };
        assert!(read(&[7; 31]).unwrap_err().contains("31 bytes, expected 32"));
        assert!(read(&[]).is_err() && read(&[7; 5000]).unwrap_err().contains("longer than 4096"));
        assert_eq!(read(&[7; 32]), Ok(()));
        assert!(Key::read(Path::new("/nonexistent")).unwrap_err().to_string().contains("attestation key"));
        assert!(Key::read(Path::new("/dev/zero")).unwrap_err().to_string().contains("no regular file"));
    }

    #[test]
    fn proofs_are_of_one_side_and_one_pair_of_numbers() {
        let (key, other) = (Key::of(&[1; 32]), Key::of(&[2; 32]));
        let nonces = Nonces { client: [3; NONCE], server: [4; NONCE] };
        let swapped = Nonces { client: nonces.server, server: nonces.client };
        let proof = key.proof(Side::Client, &nonces);
        assert!(key.is_proof(Side::Client, &nonces, proof.as_ref()));
        assert!(!key.is_proof(Side::Server, &nonces, proof.as_ref()));
        assert!(!key.is_proof(Side::Client, &swapped, proof.as_ref()));
        assert!(!other.is_proof(Side::Client, &nonces, proof.as_ref()));
        assert_eq!(key.session(&nonces).0, Key::of(&[1; 32]).session(&nonces).0);
        assert_ne!(key.session(&nonces).0, key.session(&swapped).0);
        assert_ne!(key.session(&nonces).0, other.session(&nonces).0);
        assert_eq!(format!("{key:?}"), "Key");
    }
}
