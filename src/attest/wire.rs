//! The bytes of the messages. All begin alike, with what no HTTP message begins with.

/// How a message begins: a byte that no token of HTTP has (RFC 9110 §5.6.2), a name, a version.
pub const BEGIN: [u8; 4] = [0xa7, b'O', b'S', 1];

/// Bytes of a random number, as many as of the hash.
pub(super) const NONCE: usize = 32;

/// Bytes of a session's name: enough that none is ever guessed or met twice.
pub(super) const ID: usize = 16;

/// Bytes of a code (HMAC-SHA256).
pub(super) const CODE: usize = 32;

/// Most bytes of a statement: a program's path of `PATH_MAX`, each byte of which may take three to show, and ancestors.
pub(super) const STATEMENT_BYTES: usize = 16 * 1024;

/// What a message is, in the byte after [`BEGIN`].
const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const OPENED: u8 = 4;
const PREFACE: u8 = 5;
const UNKNOWN: u8 = 6;

/// Bytes before what a message holds.
const HEAD: usize = BEGIN.len() + 1;

/// Bytes of each message; of a preface those before the statement.
pub(super) const HELLO_BYTES: usize = HEAD + NONCE;
pub(super) const CHALLENGE_BYTES: usize = HEAD + NONCE + CODE;
pub(super) const PROOF_BYTES: usize = HEAD + CODE;
pub(super) const OPENED_BYTES: usize = HEAD;
pub(super) const PREFACE_HEAD: usize = HEAD + ID + 8 + 2;

/// The answer to a preface whose session the proxy does not know.
pub const UNKNOWN_SESSION: [u8; HEAD] = head(UNKNOWN);

const fn head(kind: u8) -> [u8; HEAD] {
    let [a, b, c, d] = BEGIN;
    [a, b, c, d, kind]
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nothing of ours: a client's own request.
    Other,
    /// Not enough to tell; so many bytes at least.
    Short(usize),
    /// A message that opens a session, of so many bytes.
    Hello(usize),
    /// A preface of so many bytes.
    Preface(usize),
    /// Ours by its first byte, and nothing that a peer of this version sends.
    Malformed,
}

/// Looks at the first bytes of a connection.
#[must_use]
pub fn begun(bytes: &[u8]) -> Begun {
    let known = bytes.len().min(BEGIN.len());
    if bytes.first().is_some_and(|first| *first != BEGIN[0]) {
        return Begun::Other;
    }
    if bytes[..known] != BEGIN[..known] {
        return Begun::Malformed;
    }
    match bytes.get(BEGIN.len()) {
        None => Begun::Short(HEAD),
        Some(&HELLO) if bytes.len() < HELLO_BYTES => Begun::Short(HELLO_BYTES),
        Some(&HELLO) => Begun::Hello(HELLO_BYTES),
        Some(&PREFACE) if bytes.len() < PREFACE_HEAD => Begun::Short(PREFACE_HEAD),
        Some(&PREFACE) => {
            let length = usize::from(u16::from_be_bytes([bytes[PREFACE_HEAD - 2], bytes[PREFACE_HEAD - 1]]));
            let whole = PREFACE_HEAD + length + CODE;
            match length {
                too_long if too_long > STATEMENT_BYTES => Begun::Malformed,
                _ if bytes.len() < whole => Begun::Short(whole),
                _ => Begun::Preface(whole),
            }
        }
        Some(_) => Begun::Malformed,
    }
}

/// A message of fixed parts.
fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = head(kind).to_vec();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

pub(super) fn hello(nonce: &[u8; NONCE]) -> Vec<u8> {
    message(HELLO, &[nonce])
}

pub(super) fn challenge(nonce: &[u8; NONCE], code: &[u8]) -> Vec<u8> {
    message(CHALLENGE, &[nonce, code])
}

pub(super) fn proof(code: &[u8]) -> Vec<u8> {
    message(PROOF, &[code])
}

pub(super) fn opened() -> Vec<u8> {
    message(OPENED, &[])
}

/// A preface up to its code.
pub(super) fn preface(session: &[u8; ID], counter: u64, statement: &[u8]) -> Vec<u8> {
    let length = u16::try_from(statement.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(PREFACE_HEAD + statement.len() + CODE);
    bytes.extend_from_slice(&head(PREFACE));
    bytes.extend_from_slice(session);
    bytes.extend_from_slice(&counter.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(statement);
    bytes
}

/// What a message of `kind` holds, if it is one.
fn content<const N: usize>(bytes: &[u8], kind: u8) -> Option<&[u8; N]> {
    bytes.strip_prefix(head(kind).as_slice())?.try_into().ok()
}

pub(super) fn read_hello(bytes: &[u8]) -> Option<[u8; NONCE]> {
    content::<NONCE>(bytes, HELLO).copied()
}

pub(super) fn read_challenge(bytes: &[u8]) -> Option<([u8; NONCE], &[u8])> {
    let content: &[u8; NONCE + CODE] = content(bytes, CHALLENGE)?;
    let (nonce, code) = content.split_first_chunk::<NONCE>()?;
    Some((*nonce, code))
}

pub(super) fn read_proof(bytes: &[u8]) -> Option<&[u8]> {
    content::<CODE>(bytes, PROOF).map(<[u8; CODE]>::as_slice)
}

pub(super) fn is_opened(bytes: &[u8]) -> bool {
    bytes == head(OPENED)
}

/// A preface taken apart.
pub(super) struct Preface<'b> {
    pub session: [u8; ID],
    pub counter: u64,
    pub statement: &'b [u8],
    /// All that the code is over.
    pub said: &'b [u8],
    pub code: &'b [u8],
}

/// Takes a whole preface apart.
pub(super) fn read_preface(bytes: &[u8]) -> Option<Preface<'_>> {
    let (said, code) = bytes.split_at_checked(bytes.len().checked_sub(CODE)?)?;
    let rest = said.strip_prefix(head(PREFACE).as_slice())?;
    let (session, rest) = rest.split_first_chunk::<ID>()?;
    let (counter, rest) = rest.split_first_chunk::<8>()?;
    let (length, statement) = rest.split_first_chunk::<2>()?;
    (usize::from(u16::from_be_bytes(*length)) == statement.len()).then_some(Preface {
        session: *session,
        counter: u64::from_be_bytes(*counter),
        statement,
        said,
        code,
    })
}
