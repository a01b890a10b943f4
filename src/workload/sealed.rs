//! The orders as they travel, in a sealed memfd.

use std::io::{self, Read, Write};

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

/// The beginning of it. The text of the provided files follows as it is: a bundle of certificates is many times longer
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
        let texts: Vec<&str> = files.map(|file| file.text.as_str()).collect();
        let lengths = texts.iter().map(|text| text.len()).collect();
        let head = serde_json::to_vec(&Head { orders: &self.orders, plan: self.plan, lengths })?;
        let length = (head.len() as u64).to_ne_bytes();
        let total = texts.iter().map(|text| text.len() as u64).sum::<u64>() + head.len() as u64;
        if total > ORDERS_LIMIT {
            return Err(io::Error::other(format!(
                "arguments, environment and certificates exceed {ORDERS_LIMIT} bytes"
            )));
        }
        let parts = [&length[..], &head].into_iter().chain(texts.iter().map(|text| text.as_bytes()));
        for part in parts {
            file.write_all(part)?;
        }
        Ok(())
    }

    /// Reads it.
    ///
    /// # Errors
    /// What read(2) answered; `InvalidData` for what [`Sealed::write`] has not written.
    pub fn read(file: &mut impl Read) -> io::Result<Self> {
        let mut length = [0; size_of::<u64>()];
        file.read_exact(&mut length)?;
        let mut room = ORDERS_LIMIT;
        let mut part = |length: u64| {
            room = room.checked_sub(length).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("they exceed {ORDERS_LIMIT} bytes"))
            })?;
            let mut bytes = Vec::with_capacity(length as usize);
            match file.by_ref().take(length).read_to_end(&mut bytes)? as u64 {
                read if read == length => Ok(bytes),
                _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            }
        };
        let Head { mut orders, plan, lengths } =
            serde_json::from_slice::<Head<Orders>>(&part(u64::from_ne_bytes(length))?)?;
        let files =
            orders.isolation.iter_mut().flat_map(|isolation| &mut isolation.provided).flat_map(|all| &mut all.files);
        for (file, length) in files.zip(lengths) {
            let text = String::from_utf8(part(length as u64)?);
            file.text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        Ok(Self { orders, plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{Isolation, Provided, ProvidedFile};

    #[test]
    fn what_is_written_is_read() {
        let mut orders = crate::workload::tests::orders();
        let file =
            |name: &str, text: &str| ProvidedFile { name: name.into(), text: text.into(), in_place_of: Vec::new() };
        orders.isolation = Some(Isolation {
            user_namespace: false,
            pid_namespace: true,
            private_tmp: false,
            proxy_port: 3128,
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
        assert_eq!(Sealed::read(&mut bytes.as_slice()).unwrap(), sealed);
        for cut in [0, 7, 8, 20, bytes.len() - 1] {
            assert!(Sealed::read(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        bytes[..8].fill(0xff);
        assert!(Sealed::read(&mut bytes.as_slice()).unwrap_err().to_string().contains("exceed"));
    }
}
