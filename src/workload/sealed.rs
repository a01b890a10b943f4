//! The orders as they travel, in a sealed memfd.

use std::io::{self, Write};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Orders;
use super::terminal::Plan;

/// Largest orders: the kernel takes 2 MiB of arguments and environment (execve(2)), and each byte costs up to four as
/// JSON; certificates are bounded by [`super::trust::TRUST_BYTES`].
const ORDERS_LIMIT: u64 = 16 << 20;

/// What the memfd holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The caller's orders.
    pub orders: Orders,
    /// How the workload stands to the terminal.
    pub plan: Plan,
}

/// The beginning of it. The content of the provided files follows as it is: a bundle of certificates is many times longer
/// than all the rest, and as JSON it would take a tenth of the time that the whole start may take.
#[derive(Debug, Serialize, Deserialize)]
struct Head<O> {
    orders: O,
    plan: Plan,
    lengths: Vec<usize>,
}

impl Sealed {
    /// Writes it.
    ///
    /// # Errors
    /// What write(2) answered; orders that exceed [`ORDERS_LIMIT`].
    pub fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let files = self.orders.isolation.iter().flat_map(|isolation| &isolation.provided).flat_map(|all| &all.files);
        let contents: Vec<&[u8]> = files.map(|file| &*file.content).collect();
        let lengths = contents.iter().map(|content| content.len()).collect();
        let head = serde_json::to_vec(&Head { orders: &self.orders, plan: self.plan, lengths })?;
        let length = (head.len() as u64).to_ne_bytes();
        let total = contents.iter().map(|content| content.len() as u64).sum::<u64>() + head.len() as u64;
        if total > ORDERS_LIMIT {
            return Err(io::Error::other(format!(
                "arguments, environment and certificates exceed {ORDERS_LIMIT} bytes"
            )));
        }
        let parts = [&length[..], &head].into_iter().chain(contents);
        for part in parts {
            file.write_all(part)?;
        }
        Ok(())
    }

    /// Takes it from what was written.
    ///
    /// # Errors
    /// `InvalidData` or `UnexpectedEof` for what [`Sealed::write`] has not written.
    pub fn read(mut written: Bytes) -> io::Result<Self> {
        let mut part = |length: usize| {
            if length > written.len() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            Ok(written.split_to(length))
        };
        let length = part(size_of::<u64>())?;
        let length = u64::from_ne_bytes(length[..].try_into().map_err(io::Error::other)?);
        let head = part(usize::try_from(length).unwrap_or(usize::MAX))?;
        let Head { mut orders, plan, lengths } = serde_json::from_slice::<Head<Orders>>(&head)?;
        let files =
            orders.isolation.iter_mut().flat_map(|isolation| &mut isolation.provided).flat_map(|all| &mut all.files);
        for (file, length) in files.zip(lengths) {
            file.content = part(length)?;
        }
        Ok(Self { orders, plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{Isolation, Namespaces, Provided, ProvidedFile};

    #[test]
    fn what_is_written_is_read() {
        let mut orders = crate::workload::tests::orders();
        let file = |name: &str, text: &str| ProvidedFile {
            name: name.into(),
            content: text.to_owned().into(),
            in_place_of: Vec::new(),
        };
        orders.isolation = Some(Isolation {
            namespaces: Namespaces { user: false, pid: true, proxy_port: 3128 },
            private_tmp: false,
            hide: Vec::new(),
            provided: Some(Provided {
                directory: "/run/x".into(),
                files: vec![file("a", "one\n"), file("b", ""), file("c", "\"two")],
            }),
            keep: Vec::new(),
        });
        let sealed = Sealed { orders, plan: Plan::here() };
        let mut bytes = Vec::new();
        sealed.write(&mut bytes).unwrap();
        assert_eq!(Sealed::read(bytes.clone().into()).unwrap(), sealed);
        for cut in [0, 7, 8, 20, bytes.len() - 1] {
            assert!(Sealed::read(bytes[..cut].to_vec().into()).is_err(), "{cut}");
        }
        bytes[..8].fill(0xff);
        assert_eq!(Sealed::read(bytes.into()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
