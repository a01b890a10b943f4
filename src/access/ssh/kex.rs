//! Key exchange: what the two sides have in common, a secret by Curve25519 (RFC 8731), and the keys that follow from it
//! (RFC 4253 §7).

use ring::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey, X25519};
use ring::digest::{Context, SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{self, Ed25519KeyPair, KeyPair};

use super::cipher::{self, Cipher, HEAD, Opener, Sealer};
use super::wire::{Reader, Writer};
use super::{SshError, number};

/// Key exchanges, the same under two names.
const EXCHANGES: [&str; 2] = ["curve25519-sha256", "curve25519-sha256@libssh.org"];

/// The host key's algorithm.
const HOST_KEY: &str = "ssh-ed25519";

/// Never used: the ciphers authenticate. A list must not be empty all the same.
const MACS: &str = "hmac-sha2-256";

/// Each side says that it numbers packets anew with new keys, and takes no other packet during the first exchange: nobody
/// in between can then drop any (PROTOCOL of OpenSSH, 1.10).
const STRICT: [&str; 2] = ["kex-strict-s-v00@openssh.com", "kex-strict-c-v00@openssh.com"];

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was connected to.
    Server,
    /// The one that connected.
    Client,
}

/// The server's key. A new one with every start: what proves a sandbox is the socket, which nobody else can be behind.
pub struct HostKey(Ed25519KeyPair);

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKey")
    }
}

impl HostKey {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, SshError> {
        let failed = |_| SshError::Protocol("no random numbers for a host key");
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref());
        pair.map(Self).map_err(|_| SshError::Protocol("a host key that cannot be used"))
    }

    /// Its public part, as it travels (RFC 8709 §4).
    fn public(&self) -> Vec<u8> {
        let mut blob = Vec::new();
        blob.put_string(HOST_KEY.as_bytes());
        blob.put_string(self.0.public_key().as_ref());
        blob
    }

    fn sign(&self, hash: &[u8]) -> Vec<u8> {
        let mut blob = Vec::new();
        blob.put_string(HOST_KEY.as_bytes());
        blob.put_string(self.0.sign(hash).as_ref());
        blob
    }
}

/// What an exchange begins with, and what it is to be signed over.
#[derive(Debug)]
pub struct Exchange {
    side: Side,
    /// Our KEXINIT, without its packet.
    ours: Vec<u8>,
    secret: Option<EphemeralPrivateKey>,
    public: Vec<u8>,
    agreed: Option<Agreed>,
    theirs: Vec<u8>,
}

/// What both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// From client to server.
    pub to_server: Cipher,
    /// From server to client.
    pub to_client: Cipher,
    /// Whether packets are numbered anew.
    pub strict: bool,
    /// Whether the peer's next packet is a wrong guess, to be passed over (RFC 4253 §7).
    pub wrong_guess: bool,
}

/// New keys.
#[derive(Debug)]
pub struct Keys {
    /// For what goes out.
    pub sealer: Sealer,
    /// For what comes in.
    pub opener: Opener,
}

/// The two identification lines, without their ends, the client's first.
#[derive(Clone, Debug)]
pub struct Versions {
    /// The client's.
    pub client: Vec<u8>,
    /// The server's.
    pub server: Vec<u8>,
}

/// A message with room for its packet's head.
#[must_use]
pub fn message(kind: u8) -> Vec<u8> {
    let mut message = vec![0; HEAD];
    message.push(kind);
    message
}

impl Exchange {
    /// Begins one: the exchange, and the message to send.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn begin(side: Side) -> Result<(Self, Vec<u8>), SshError> {
        let failed = |_| SshError::Protocol("no random numbers for a key exchange");
        let random = SystemRandom::new();
        let secret = EphemeralPrivateKey::generate(&X25519, &random).map_err(failed)?;
        let public = secret.compute_public_key().map_err(failed)?.as_ref().to_vec();
        let mut cookie = [0; 16];
        random.fill(&mut cookie).map_err(failed)?;
        let mut hello = message(number::KEXINIT);
        hello.extend_from_slice(&cookie);
        let strict = STRICT[usize::from(side == Side::Client)];
        hello.put_string(format!("{},{strict}", EXCHANGES.join(",")).as_bytes());
        hello.put_string(HOST_KEY.as_bytes());
        let ciphers = cipher::NAMES.join(",");
        for list in [&*ciphers, &*ciphers, MACS, MACS, "none", "none", "", ""] {
            hello.put_string(list.as_bytes());
        }
        hello.put_boolean(false);
        hello.put_u32(0);
        let ours = hello[HEAD..].to_vec();
        Ok((Self { side, ours, secret: Some(secret), public, agreed: None, theirs: Vec::new() }, hello))
    }

    /// Whether the peer's KEXINIT has been heard.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.agreed.is_some()
    }

    /// Takes in the peer's KEXINIT. A client has something to send then.
    ///
    /// # Errors
    /// [`SshError::NoneInCommon`]; a message that cannot be read.
    pub fn hear(&mut self, theirs: &[u8]) -> Result<(Agreed, Option<Vec<u8>>), SshError> {
        if self.agreed.is_some() {
            return Err(SshError::Protocol("a second KEXINIT in one key exchange"));
        }
        let mut reader = Reader::new(theirs);
        reader.bytes(1 + 16)?;
        let mut list = || reader.text();
        let (exchanges, host_keys, to_server, to_client) = (list()?, list()?, list()?, list()?);
        let (_macs, _to_client) = (list()?, list()?);
        let (compression, to_client_compression) = (list()?, list()?);
        let (_languages, _to_client) = (list()?, list()?);
        let guessed = reader.boolean()?;
        let exchange = self.choose("key exchange", exchanges, &EXCHANGES)?;
        let host_key = self.choose("host key algorithm", host_keys, &[HOST_KEY])?;
        for list in [compression, to_client_compression] {
            self.choose("compression", list, &["none"])?;
        }
        let cipher = |list| {
            let name = self.choose("cipher", list, &cipher::NAMES)?;
            Cipher::named(name).ok_or(SshError::Protocol("a cipher without a name"))
        };
        let first = |list: &str, chosen: &str| list.split(',').next() == Some(chosen);
        let agreed = Agreed {
            to_server: cipher(to_server)?,
            to_client: cipher(to_client)?,
            strict: exchanges.split(',').any(|name| name == STRICT[usize::from(self.side == Side::Server)]),
            wrong_guess: guessed && !(first(exchanges, exchange) && first(host_keys, host_key)),
        };
        self.agreed = Some(agreed);
        self.theirs = theirs.to_vec();
        let initiation = (self.side == Side::Client).then(|| {
            let mut initiation = message(number::KEX_ECDH_INIT);
            initiation.put_string(&self.public);
            initiation
        });
        Ok((agreed, initiation))
    }

    /// The first of the client's that the server has too (RFC 4253 §7.1).
    fn choose<'n>(&self, what: &'static str, theirs: &'n str, ours: &[&'n str]) -> Result<&'n str, SshError> {
        let chosen = match self.side {
            Side::Server => theirs.split(',').find(|name| ours.contains(name)),
            Side::Client => ours.iter().copied().find(|name| theirs.split(',').any(|their| their == *name)),
        };
        chosen.ok_or_else(|| SshError::NoneInCommon { what, offered: theirs.to_owned(), ours: ours.join(",") })
    }

    /// Server: answers KEX_ECDH_INIT, and has the new keys.
    ///
    /// # Errors
    /// A public key that is none.
    pub fn answer(
        mut self,
        initiation: &[u8],
        versions: &Versions,
        key: &HostKey,
        session: &mut Option<Vec<u8>>,
    ) -> Result<(Vec<u8>, Keys), SshError> {
        let mut reader = Reader::new(initiation);
        reader.u8()?;
        let theirs = reader.string()?;
        let shared = self.agree(theirs)?;
        let host_key = key.public();
        let ours = std::mem::take(&mut self.public);
        let hash = hash(versions, [&self.theirs, &self.ours], &host_key, [theirs, &ours], &shared);
        let mut reply = message(number::KEX_ECDH_REPLY);
        reply.put_string(&host_key);
        reply.put_string(&ours);
        reply.put_string(&key.sign(&hash));
        let keys = self.keys(&shared, &hash, session)?;
        Ok((reply, keys))
    }

    /// Client: takes in KEX_ECDH_REPLY, and has the new keys. Which key the server has does not matter here; that it has
    /// the one that it shows does.
    ///
    /// # Errors
    /// A signature that is none.
    pub fn conclude(
        mut self,
        reply: &[u8],
        versions: &Versions,
        session: &mut Option<Vec<u8>>,
    ) -> Result<Keys, SshError> {
        let mut reader = Reader::new(reply);
        reader.u8()?;
        let (host_key, theirs, signed) = (reader.string()?, reader.string()?, reader.string()?);
        let shared = self.agree(theirs)?;
        let hash = hash(versions, [&self.ours, &self.theirs], host_key, [&self.public, theirs], &shared);
        let (mut key, mut signed) = (Reader::new(host_key), Reader::new(signed));
        if key.text()? != HOST_KEY || signed.text()? != HOST_KEY {
            return Err(SshError::Protocol("a host key of another algorithm than agreed"));
        }
        signature::UnparsedPublicKey::new(&signature::ED25519, key.string()?)
            .verify(&hash, signed.string()?)
            .map_err(|_| SshError::Forged)?;
        self.keys(&shared, &hash, session)
    }

    fn agree(&mut self, theirs: &[u8]) -> Result<Vec<u8>, SshError> {
        let secret = self.secret.take().ok_or(SshError::Protocol("a key exchange is over"))?;
        // A key of a wrong length, or one that makes the secret zero, is refused (RFC 8731 §3).
        agreement::agree_ephemeral(secret, &UnparsedPublicKey::new(&X25519, theirs), <[u8]>::to_vec)
            .map_err(|_| SshError::Protocol("a public key that is none"))
    }

    fn keys(&self, shared: &[u8], hash: &[u8], session: &mut Option<Vec<u8>>) -> Result<Keys, SshError> {
        let agreed = self.agreed.ok_or(SshError::Protocol("a key exchange without a KEXINIT"))?;
        let session = session.get_or_insert_with(|| hash.to_vec());
        let derive = |letter: u8, length: usize| {
            let mut secret = Vec::new();
            secret.put_mpint(shared);
            let mut out = digest(&SHA256, &[&secret, hash, &[letter], session].concat()).as_ref().to_vec();
            while out.len() < length {
                let more = digest(&SHA256, &[&secret, hash, &out].concat());
                out.extend_from_slice(more.as_ref());
            }
            out.truncate(length);
            out
        };
        let direction = |cipher: Cipher, nonce: u8, key: u8| {
            let (key_length, nonce_length) = cipher.material();
            (cipher, derive(key, key_length), derive(nonce, nonce_length))
        };
        let to_server = direction(agreed.to_server, b'A', b'C');
        let to_client = direction(agreed.to_client, b'B', b'D');
        let (out, come) = match self.side {
            Side::Server => (to_client, to_server),
            Side::Client => (to_server, to_client),
        };
        Ok(Keys { sealer: Sealer::new(out.0, &out.1, &out.2)?, opener: Opener::new(come.0, &come.1, &come.2)? })
    }
}

/// The exchange hash (RFC 8731 §3.1); of each pair the client's part comes first.
fn hash(versions: &Versions, hellos: [&[u8]; 2], host_key: &[u8], publics: [&[u8]; 2], shared: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for part in [&versions.client, &versions.server, hellos[0], hellos[1], host_key, publics[0], publics[1]] {
        text.put_string(part);
    }
    text.put_mpint(shared);
    let mut context = Context::new(&SHA256);
    context.update(&text);
    context.finish().as_ref().to_vec()
}
