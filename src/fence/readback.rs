//! Reads back the ruleset that the kernel holds and compares it, structure by structure, with the one that was meant:
//! the table's flags, every chain with its hook, priority and policy, every rule with its expressions in their order.

use std::io;

use netlink_packet_core::{Emitable, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_netfilter::NetfilterHeader;
use netlink_packet_netfilter::nftables::{
    ChainMessage, Expressions, NfTablesMessage, RuleAttribute, RuleMessage, TableMessage,
};

use super::Error;
use super::encode::{Chain, Ruleset, message_bytes};
use crate::sys::netlink::Socket;

/// `NFT_TABLE_F_DORMANT`: the table's chains are unhooked.
const DORMANT: u32 = 1;

/// The attribute bits that say how a value is encoded, not which one it is (`NLA_TYPE_MASK` is what remains).
const TYPE_MASK: u16 = 0x3fff;

/// What precedes the attributes of an answer: `struct nlmsghdr` and `struct nfgenmsg`.
const HEADERS: usize = 20;

/// `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;

/// Messages: `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWTABLE`, `NFT_MSG_NEWCHAIN`, `NFT_MSG_NEWRULE`.
const NEW_TABLE: u16 = 0x0a00;
const NEW_CHAIN: u16 = 0x0a03;
const NEW_RULE: u16 = 0x0a06;

/// `NFTA_TABLE_NAME`, and of chains and rules their table.
const TABLE: u16 = 1;
/// `NFTA_TABLE_FLAGS`.
const TABLE_FLAGS: u16 = 2;
/// `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`, `NFTA_CHAIN_TYPE`.
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
/// `NFTA_HOOK_HOOKNUM`, `NFTA_HOOK_PRIORITY`.
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
/// `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`.
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_LIST_ELEM`, `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_BITWISE_OP`.
const BITWISE_OPERATION: u16 = 6;
/// `NFTA_DATA_VERDICT`.
const DATA_VERDICT: u16 = 2;
/// Attributes that hold data, attributes in their turn: `NFTA_CMP_DATA`, `NFTA_BITWISE_MASK`, `NFTA_BITWISE_XOR`,
/// `NFTA_BITWISE_DATA`, `NFTA_IMMEDIATE_DATA`.
const DATA: [(&str, &[u16]); 3] = [("cmp", &[3]), ("bitwise", &[4, 5, 7]), ("immediate", &[2])];

/// What differs from the ruleset that was meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// It is not there.
    #[error("the table is missing")]
    TableMissing,
    /// It is there, and none of its chains is in force.
    #[error("the table is dormant")]
    Dormant,
    /// A chain is not there.
    #[error("chain {0} is missing")]
    ChainMissing(&'static str),
    /// A chain is there that nobody asked for.
    #[error("chain {0} was not asked for")]
    ChainForeign(String),
    /// A chain is not where it should be, or decides otherwise.
    #[error("chain {chain}: {property} is {found}, expected {expected}")]
    Chain {
        /// Its name.
        chain: &'static str,
        /// `hook`, `priority`, `policy` or `type`.
        property: &'static str,
        /// What the kernel holds.
        found: String,
        /// What was meant.
        expected: String,
    },
    /// A chain has more rules than it should, or fewer.
    #[error("chain {chain} has {found} rules, expected {expected}")]
    RuleCount {
        /// Its name.
        chain: &'static str,
        /// How many the kernel holds.
        found: usize,
        /// How many were meant.
        expected: usize,
    },
    /// A rule says something else.
    #[error("rule {number} of chain {chain} reads {found}, expected {expected}")]
    Rule {
        /// The chain's name.
        chain: &'static str,
        /// Counted from 1.
        number: usize,
        /// Its expressions in the kernel.
        found: String,
        /// The expressions that were meant.
        expected: String,
    },
}

/// Compares what the kernel holds under the ruleset's table with the ruleset.
///
/// # Errors
/// [`Error::Unreadable`] when the kernel cannot be asked, [`Error::Differs`] with the first difference.
pub fn verify(socket: &Socket, ruleset: &Ruleset) -> Result<(), Error> {
    let name = ruleset.family.name();
    let held = Held::read(socket, ruleset).map_err(|source| Error::Unreadable { family: name, source })?;
    held.compare(ruleset).map_err(|difference| Error::Differs(difference, name))
}

/// What the kernel holds of one table. It is taken from the messages as they are: the library that they are written with
/// describes in words, for errors that do not come, everything that it reads, and that was a quarter of the time of a pod's
/// fence.
#[derive(Debug, Default)]
struct Held {
    /// Its flags, when it is there.
    table: Option<u32>,
    chains: Vec<HeldChain>,
    rules: Vec<HeldRule>,
}

#[derive(Debug, Default)]
struct HeldChain {
    name: Option<String>,
    hook: Option<u32>,
    priority: Option<i32>,
    policy: Option<u32>,
    kind: Option<String>,
}

#[derive(Debug, Default)]
struct HeldRule {
    chain: Option<String>,
    expressions: Vec<Normal>,
}

impl Held {
    fn read(socket: &Socket, ruleset: &Ruleset) -> io::Result<Self> {
        let mut held = Self::default();
        let header = || NetfilterHeader::new(ruleset.family.protocol(), 0, 0);
        // The kernel filters dumps of rules by table; tables and chains are few, and are filtered here.
        let requests = [
            NfTablesMessage::GetTable(TableMessage { attributes: vec![] }),
            NfTablesMessage::GetChain(ChainMessage { attributes: vec![] }),
            NfTablesMessage::GetRule(RuleMessage { attributes: vec![RuleAttribute::Table(ruleset.table.to_string())] }),
        ];
        for request in requests {
            let bytes = message_bytes(header(), request, NLM_F_REQUEST | NLM_F_DUMP);
            let mut outcome = Ok(());
            socket.exchange(&bytes, 0, |answer| {
                if outcome.is_ok() {
                    outcome = held.add(answer, ruleset.table);
                }
            })?;
            outcome?;
        }
        Ok(held)
    }

    fn add(&mut self, message: &[u8], table: &str) -> io::Result<()> {
        let (Some(kind), Some(body)) = (message.get(4..6), message.get(HEADERS..)) else { return Err(malformed()) };
        let attributes = attributes(body)?;
        let one = |wanted| attributes.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
        if one(TABLE).map(text).as_deref() != Some(table) {
            return Ok(());
        }
        match u16::from_ne_bytes([kind[0], kind[1]]) {
            NEW_TABLE => self.table = Some(one(TABLE_FLAGS).map(number).transpose()?.unwrap_or(0)),
            NEW_CHAIN => {
                let hook = one(CHAIN_HOOK).map(self::attributes).transpose()?.unwrap_or_default();
                let part =
                    |wanted| hook.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| number(value)).transpose();
                self.chains.push(HeldChain {
                    name: one(CHAIN_NAME).map(text),
                    hook: part(HOOK_NUMBER)?,
                    priority: part(HOOK_PRIORITY)?.map(u32::cast_signed),
                    policy: one(CHAIN_POLICY).map(number).transpose()?,
                    kind: one(CHAIN_TYPE).map(text),
                });
            }
            NEW_RULE => {
                let list = one(RULE_EXPRESSIONS).map(self::attributes).transpose()?.unwrap_or_default();
                let elements = list.into_iter().filter(|(kind, _)| *kind == LIST_ELEMENT);
                self.rules.push(HeldRule {
                    chain: one(RULE_CHAIN).map(text),
                    expressions: elements.map(|(_, element)| Normal::held(element)).collect::<io::Result<_>>()?,
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn compare(&self, ruleset: &Ruleset) -> Result<(), Difference> {
        match self.table {
            None => return Err(Difference::TableMissing),
            Some(flags) if flags & DORMANT != 0 => return Err(Difference::Dormant),
            Some(_) => {}
        }
        let known = |held: &&HeldChain| ruleset.chains.iter().any(|chain| held.name.as_deref() == Some(chain.name));
        if let Some(foreign) = self.chains.iter().find(|held| !known(held)) {
            let name = foreign.name.as_deref().unwrap_or("without a name");
            return Err(Difference::ChainForeign(name.to_string()));
        }
        ruleset.chains.iter().try_for_each(|chain| self.compare_chain(chain))
    }

    fn compare_chain(&self, chain: &Chain) -> Result<(), Difference> {
        let held = self
            .chains
            .iter()
            .find(|held| held.name.as_deref() == Some(chain.name))
            .ok_or(Difference::ChainMissing(chain.name))?;
        let differs =
            |property, found, expected| Err(Difference::Chain { chain: chain.name, property, found, expected });

        let expected = u32::from(chain.hook);
        if held.hook != Some(expected) {
            return differs("hook", shown(held.hook), expected.to_string());
        }
        if held.priority != Some(chain.priority) {
            return differs("priority", shown(held.priority), chain.priority.to_string());
        }
        if held.policy != Some(chain.policy as u32) {
            return differs("policy", shown(held.policy), (chain.policy as u32).to_string());
        }
        if held.kind.as_deref() != Some("filter") {
            return differs("type", shown(held.kind.as_deref()), "filter".to_string());
        }

        let rules: Vec<_> = self.rules.iter().filter(|rule| rule.chain.as_deref() == Some(chain.name)).collect();
        for (index, (found, expected)) in rules.iter().zip(&chain.rules).enumerate() {
            let expected: Vec<_> = expected.iter().map(Normal::meant).collect();
            if found.expressions != expected {
                return Err(Difference::Rule {
                    chain: chain.name,
                    number: index + 1,
                    found: spelled(&found.expressions),
                    expected: spelled(&expected),
                });
            }
        }
        if rules.len() != chain.rules.len() {
            let (found, expected) = (rules.len(), chain.rules.len());
            return Err(Difference::RuleCount { chain: chain.name, found, expected });
        }
        Ok(())
    }
}

/// An expression in a form that is the same however it was written: its name, and its attributes in order of their
/// numbers. What a counter has counted is left out.
#[derive(Debug, PartialEq, Eq)]
struct Normal {
    name: String,
    attributes: Vec<(u16, Vec<u8>)>,
}

impl Normal {
    /// Of an expression that was meant.
    fn meant(expression: &Expressions) -> Self {
        let name = match expression {
            Expressions::Bitwise(_) => "bitwise",
            Expressions::Cmp(_) => "cmp",
            Expressions::Immediate(_) => "immediate",
            Expressions::Lookup(_) => "lookup",
            Expressions::Meta(_) => "meta",
            Expressions::Payload(_) => "payload",
            Expressions::Other { expression_type, .. } => expression_type,
            _ => "unknown",
        };
        let mut bytes = vec![0; expression.buffer_len()];
        expression.emit(&mut bytes);
        // What was encoded here is well formed.
        Self::of(name, attributes(&bytes).unwrap_or_default())
    }

    /// Of an element of a rule as the kernel tells it.
    fn held(element: &[u8]) -> io::Result<Self> {
        let parts = attributes(element)?;
        let one = |wanted| parts.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
        let name = one(EXPRESSION_NAME).map(text).unwrap_or_default();
        Ok(Self::of(&name, one(EXPRESSION_DATA).map(attributes).transpose()?.unwrap_or_default()))
    }

    fn of(name: &str, mut found: Vec<(u16, &[u8])>) -> Self {
        match name {
            "counter" => found.clear(),
            // Mask and xor is what an absent operation means; kernels since 5.6 say so, older ones do not know the number.
            "bitwise" => {
                found.retain(|(kind, value)| *kind != BITWISE_OPERATION || value.iter().any(|byte| *byte != 0));
            }
            _ => {}
        }
        let data = DATA.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, kinds)| kinds);
        let plain = |(kind, value): (u16, &[u8])| {
            (kind, if data.contains(&kind) { without_flags(value) } else { value.to_vec() })
        };
        let mut attributes: Vec<_> = found.into_iter().map(plain).collect();
        attributes.sort();
        Self { name: name.to_string(), attributes }
    }
}

/// Data without the bits that say how it is encoded.
fn without_flags(value: &[u8]) -> Vec<u8> {
    let Ok(parts) = attributes(value) else { return value.to_vec() };
    let mut plain = Vec::with_capacity(value.len());
    for (kind, value) in parts {
        plain.extend(kind.to_ne_bytes());
        plain.extend(if kind == DATA_VERDICT { without_flags(value) } else { value.to_vec() });
    }
    plain
}

/// Attributes by their numbers, in their order (`struct nlattr`: length, type; each begins at a multiple of four).
fn attributes(mut bytes: &[u8]) -> io::Result<Vec<(u16, &[u8])>> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_ne_bytes(*length));
        let (Some((kind, _)), Some(value)) = (rest.split_first_chunk(), bytes.get(ATTRIBUTE_HEADER..length)) else {
            return Err(malformed());
        };
        found.push((u16::from_ne_bytes(*kind) & TYPE_MASK, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    if bytes.is_empty() { Ok(found) } else { Err(malformed()) }
}

/// A number, which nf_tables writes in network byte order.
fn number(value: &[u8]) -> io::Result<u32> {
    value.try_into().map(u32::from_be_bytes).map_err(|_| malformed())
}

/// A string, which ends in a zero.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer that is none of nf_tables")
}

fn spelled(rule: &[Normal]) -> String {
    let expression = |normal: &Normal| {
        let attributes: Vec<String> = normal
            .attributes
            .iter()
            .map(|(kind, value)| {
                let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{kind}={hex}")
            })
            .collect();
        format!("{}({})", normal.name, attributes.join(" "))
    };
    let all: Vec<String> = rule.iter().map(expression).collect();
    format!("[{}]", all.join(" "))
}

fn shown<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "missing".to_string(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_to_the_end_or_not_at_all() {
        let two = [5, 0, 1, 0x80, b'a', 0, 0, 0, 8, 0, 2, 0, 0, 0, 1, 0];
        let found = attributes(&two).unwrap();
        assert_eq!(found, [(1, &b"a"[..]), (2, &[0, 0, 1, 0])]);
        assert_eq!(number(found[1].1).unwrap(), 256);
        assert!(number(found[0].1).is_err());
        // The last one need not be filled up.
        assert_eq!(attributes(&two[..5]).unwrap(), [(1, &b"a"[..])]);
        // Shorter than its own header, longer than what is there, or part of one.
        for malformed in [&[3, 0, 1, 0][..], &[9, 0, 1, 0, 1, 2, 3, 4], &[4, 0], &[4], &[0; 8]] {
            assert!(attributes(malformed).is_err(), "{malformed:?}");
        }
        assert_eq!((text(b"a\0"), text(b"a"), text(b"")), ("a".into(), "a".into(), String::new()));
        // The bits that say how data is encoded count for nothing.
        assert_eq!(without_flags(&[8, 0, 2, 0x80, 4, 0, 1, 0x40]), without_flags(&[8, 0, 2, 0, 4, 0, 1, 0]));
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_an_error() {
        let mut held = Held::default();
        let mut message = vec![0; HEADERS];
        message[4..6].copy_from_slice(&NEW_TABLE.to_ne_bytes());
        message.extend([6, 0, 1, 0, b'x', 0, 0, 0]);
        held.add(&message, "y").unwrap();
        assert_eq!(held.table, None);
        held.add(&message, "x").unwrap();
        assert_eq!(held.table, Some(0));
        assert!(held.add(&message[..HEADERS - 1], "x").is_err());
        assert!(held.add(&message[..HEADERS + 5], "x").is_err());
    }
}
