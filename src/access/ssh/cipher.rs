//! Packets, in the clear and sealed: `chacha20-poly1305@openssh.com` and `aes{128,256}-gcm@openssh.com`, which
//! authenticate what they encrypt, and need no MAC beside them (RFC 5647, and PROTOCOL.chacha20poly1305 of OpenSSH).

use bytes::{Buf, BytesMut};
use ring::aead::chacha20_poly1305_openssh::{OpeningKey, SealingKey};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::SshError;
use super::wire::Malformed;

/// Names of the ciphers, the one that this side likes best first.
pub const NAMES: [&str; 3] = ["aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "chacha20-poly1305@openssh.com"];

/// Bytes that every message has in front, for the packet's length and that of its padding.
pub const HEAD: usize = 5;

/// Largest packet that is read: what OpenSSH reads too, eight times what RFC 4253 §6.1 demands. A command of 128 KiB, the
/// most that one argument can have, fits.
pub const PACKET_LIMIT: usize = 256 << 10;

/// Bytes of an authentication tag, of either kind.
const TAG: usize = 16;

/// Least padding (RFC 4253 §6).
const LEAST_PADDING: usize = 4;

/// Which cipher, from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// `chacha20-poly1305@openssh.com`.
    ChaCha20,
    /// `aes128-gcm@openssh.com`.
    Aes128,
    /// `aes256-gcm@openssh.com`.
    Aes256,
}

impl Cipher {
    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "chacha20-poly1305@openssh.com" => Some(Self::ChaCha20),
            "aes128-gcm@openssh.com" => Some(Self::Aes128),
            "aes256-gcm@openssh.com" => Some(Self::Aes256),
            _ => None,
        }
    }

    /// Bytes of its key, and of its first nonce.
    #[must_use]
    pub fn material(self) -> (usize, usize) {
        match self {
            Self::ChaCha20 => (64, 0),
            Self::Aes128 => (16, 12),
            Self::Aes256 => (32, 12),
        }
    }
}

/// AES-GCM with the nonce that SSH counts: four bytes that stay, eight that count packets (RFC 5647 §7.1).
struct Gcm {
    key: LessSafeKey,
    fixed: [u8; 4],
    invocation: u64,
}

impl Gcm {
    fn new(cipher: Cipher, key: &[u8], nonce: &[u8]) -> Result<Self, SshError> {
        let algorithm = if cipher == Cipher::Aes128 { &AES_128_GCM } else { &AES_256_GCM };
        let key = UnboundKey::new(algorithm, key).map_err(|_| SshError::Protocol("a key of a wrong length"))?;
        let (fixed, counted) = nonce.split_first_chunk().ok_or(SshError::Protocol("a nonce of a wrong length"))?;
        let counted = counted.try_into().map_err(|_| SshError::Protocol("a nonce of a wrong length"))?;
        Ok(Self { key: LessSafeKey::new(key), fixed: *fixed, invocation: u64::from_be_bytes(counted) })
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.fixed);
        nonce[4..].copy_from_slice(&self.invocation.to_be_bytes());
        // Keys are changed long before it could come round.
        self.invocation = self.invocation.wrapping_add(1);
        Nonce::assume_unique_for_key(nonce)
    }
}

enum Sealing {
    Clear,
    ChaCha(Box<SealingKey>),
    Gcm(Box<Gcm>),
}

/// Seals outgoing packets.
pub struct Sealer {
    how: Sealing,
    sequence: u32,
    /// Bytes sealed since the keys were new.
    pub sealed: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

fn chacha_key(key: &[u8]) -> Result<[u8; 64], SshError> {
    key.try_into().map_err(|_| SshError::Protocol("a key of a wrong length"))
}

impl Sealer {
    /// For the beginning of a connection.
    #[must_use]
    pub fn clear() -> Self {
        Self { how: Sealing::Clear, sequence: 0, sealed: 0 }
    }

    /// With keys.
    ///
    /// # Errors
    /// Key material of a wrong length.
    pub fn new(cipher: Cipher, key: &[u8], nonce: &[u8]) -> Result<Self, SshError> {
        let how = match cipher {
            Cipher::ChaCha20 => Sealing::ChaCha(Box::new(SealingKey::new(&chacha_key(key)?))),
            _ => Sealing::Gcm(Box::new(Gcm::new(cipher, key, nonce)?)),
        };
        Ok(Self { how, sequence: 0, sealed: 0 })
    }

    /// Takes the place of `previous`, whose numbers go on unless `restart` (strict key exchange) says otherwise.
    pub fn follow(&mut self, previous: &Self, restart: bool) {
        self.sequence = if restart { 0 } else { previous.sequence };
    }

    /// Turns a message, which has [`HEAD`] bytes of room in front, into a packet.
    pub fn seal(&mut self, message: &mut Vec<u8>) {
        let payload = message.len() - HEAD;
        // In the clear the length counts as well.
        let (block, counted) = match self.how {
            Sealing::Clear => (8, HEAD + payload),
            Sealing::ChaCha(_) => (8, 1 + payload),
            Sealing::Gcm(_) => (16, 1 + payload),
        };
        let mut padding = block - counted % block;
        if padding < LEAST_PADDING {
            padding += block;
        }
        // Bounded by what is in memory as one message.
        let length = (1 + payload + padding) as u32;
        message[..4].copy_from_slice(&length.to_be_bytes());
        message[4] = padding as u8;
        // It is encrypted and authenticated, so that zeros tell as little as random bytes.
        message.resize(message.len() + padding, 0);
        match &mut self.how {
            Sealing::Clear => {}
            Sealing::ChaCha(key) => {
                let mut tag = [0; TAG];
                key.seal_in_place(self.sequence, message, &mut tag);
                message.extend_from_slice(&tag);
            }
            Sealing::Gcm(gcm) => {
                let nonce = gcm.nonce();
                let (length, body) = message.split_at_mut(4);
                // Only a message of many gigabytes can fail.
                match gcm.key.seal_in_place_separate_tag(nonce, Aad::from(&*length), body) {
                    Ok(tag) => message.extend_from_slice(tag.as_ref()),
                    Err(_) => message.clear(),
                }
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.sealed += message.len() as u64;
    }
}

enum Opening {
    Clear,
    ChaCha(Box<OpeningKey>),
    Gcm(Box<Gcm>),
}

/// Opens incoming packets.
pub struct Opener {
    how: Opening,
    sequence: u32,
    /// Bytes opened since the keys were new.
    pub opened: u64,
    /// The length of the packet that is coming in, once it is known.
    length: Option<usize>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

impl Opener {
    /// For the beginning of a connection.
    #[must_use]
    pub fn clear() -> Self {
        Self { how: Opening::Clear, sequence: 0, opened: 0, length: None }
    }

    /// With keys.
    ///
    /// # Errors
    /// Key material of a wrong length.
    pub fn new(cipher: Cipher, key: &[u8], nonce: &[u8]) -> Result<Self, SshError> {
        let how = match cipher {
            Cipher::ChaCha20 => Opening::ChaCha(Box::new(OpeningKey::new(&chacha_key(key)?))),
            _ => Opening::Gcm(Box::new(Gcm::new(cipher, key, nonce)?)),
        };
        Ok(Self { how, sequence: 0, opened: 0, length: None })
    }

    /// Takes the place of `previous`, see [`Sealer::follow`].
    pub fn follow(&mut self, previous: &Self, restart: bool) {
        self.sequence = if restart { 0 } else { previous.sequence };
    }

    /// Whether no keys are in force yet.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        matches!(self.how, Opening::Clear)
    }

    /// Number of the packet that comes next.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The next message in `buffer`, if all of it is there.
    ///
    /// # Errors
    /// [`SshError::Forged`], and packets of impossible lengths.
    pub fn open(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, SshError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(head) = buffer.first_chunk::<4>() else { return Ok(None) };
                let clear = match &self.how {
                    Opening::ChaCha(key) => key.decrypt_packet_length(self.sequence, *head),
                    _ => *head,
                };
                let length = u32::from_be_bytes(clear) as usize;
                if !(8..=PACKET_LIMIT).contains(&length) {
                    return Err(Malformed("a packet of an impossible length").into());
                }
                *self.length.insert(length)
            }
        };
        let tag = if matches!(self.how, Opening::Clear) { 0 } else { TAG };
        let whole = 4 + length + tag;
        if buffer.len() < whole {
            buffer.reserve(whole - buffer.len());
            return Ok(None);
        }
        let mut packet = buffer.split_to(whole);
        self.length = None;
        match &mut self.how {
            Opening::Clear => {}
            Opening::ChaCha(key) => {
                let (sealed, tag) = packet.split_at_mut(4 + length);
                let tag: [u8; TAG] = (&*tag).try_into().map_err(|_| SshError::Forged)?;
                key.open_in_place(self.sequence, sealed, &tag).map_err(|_| SshError::Forged)?;
            }
            Opening::Gcm(gcm) => {
                let nonce = gcm.nonce();
                let (head, sealed) = packet.split_at_mut(4);
                gcm.key.open_in_place(nonce, Aad::from(&*head), sealed).map_err(|_| SshError::Forged)?;
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.opened += whole as u64;
        let padding = usize::from(packet[4]);
        let payload = length
            .checked_sub(1 + padding)
            .filter(|&payload| payload > 0 && padding >= LEAST_PADDING)
            .ok_or(Malformed("a packet of padding"))?;
        packet.advance(HEAD);
        packet.truncate(payload);
        Ok(Some(packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(cipher: Cipher) -> (Sealer, Opener) {
        let (key, nonce) = cipher.material();
        let (key, nonce) = (vec![7; key], vec![9; nonce]);
        (Sealer::new(cipher, &key, &nonce).unwrap(), Opener::new(cipher, &key, &nonce).unwrap())
    }

    fn message(payload: &[u8]) -> Vec<u8> {
        [&[0; HEAD], payload].concat()
    }

    #[test]
    fn what_is_sealed_is_opened_whatever_its_length() {
        let ciphers = [Cipher::ChaCha20, Cipher::Aes128, Cipher::Aes256].map(pair);
        for (mut sealer, mut opener) in ciphers.into_iter().chain([(Sealer::clear(), Opener::clear())]) {
            let mut buffer = BytesMut::new();
            for length in [1, 2, 7, 8, 9, 100, 32 << 10] {
                let mut packet = message(&vec![1; length]);
                sealer.seal(&mut packet);
                // Byte by byte, as a slow stream would bring it.
                for (index, byte) in packet.iter().enumerate() {
                    buffer.extend_from_slice(&[*byte]);
                    let opened = opener.open(&mut buffer).unwrap();
                    assert_eq!(opened.is_some(), index + 1 == packet.len(), "{length}");
                    if let Some(opened) = opened {
                        assert_eq!(&opened[..], vec![1; length]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed() {
        for cipher in [Cipher::ChaCha20, Cipher::Aes128, Cipher::Aes256] {
            let mut packet = message(b"word");
            pair(cipher).0.seal(&mut packet);
            for at in 0..packet.len() {
                let mut changed = BytesMut::from(&packet[..]);
                changed[at] ^= 1;
                // A changed length may also make it wait for more.
                assert!(!matches!(pair(cipher).1.open(&mut changed), Ok(Some(_))), "{cipher:?} {at}");
            }
            let mut whole = BytesMut::from(&packet[..]);
            assert!(pair(cipher).1.open(&mut whole).unwrap().is_some(), "control");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_kept() {
        for length in [0_u32, 7, PACKET_LIMIT as u32 + 1, u32::MAX] {
            let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
            assert!(Opener::clear().open(&mut buffer).is_err(), "{length}");
        }
        // Padding alone.
        let mut buffer = BytesMut::from(&[0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0][..]);
        assert!(Opener::clear().open(&mut buffer).is_err());
    }
}
