//! Reads back the ruleset that the kernel holds and compares it, structure by structure, with the one that was meant:
//! the table's flags, every chain with its hook, priority and policy, every rule with its expressions in their order.

use netlink_packet_core::{
    Emitable, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, NlaBuffer, NlasIterator,
};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, ExpressionAttribute, Expressions, Hook, ListAttribute, NfTablesMessage,
    RuleAttribute, RuleMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner};

use super::Error;
use super::encode::{Chain, Ruleset, message_bytes};
use crate::sys::netlink::Socket;

/// `NFT_TABLE_F_DORMANT`: the table's chains are unhooked.
const DORMANT: u32 = 1;

/// The attribute bits that say how a value is encoded, not which one it is (`NLA_TYPE_MASK` is what remains).
const TYPE_MASK: u16 = 0x3fff;

/// `NFTA_BITWISE_OP`.
const BITWISE_OPERATION: u16 = 6;

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

/// What the kernel holds of one table.
#[derive(Debug, Default)]
struct Held {
    /// Its flags, when it is there.
    table: Option<u32>,
    chains: Vec<Vec<ChainAttribute>>,
    rules: Vec<Vec<RuleAttribute>>,
}

impl Held {
    fn read(socket: &Socket, ruleset: &Ruleset) -> std::io::Result<Self> {
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
            let mut problem = None;
            socket.exchange(&bytes, 0, |answer| match NetlinkMessage::<NetfilterMessage>::deserialize(answer) {
                Ok(message) => held.add(message, ruleset.table),
                Err(error) => problem = Some(error),
            })?;
            if let Some(error) = problem {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()));
            }
        }
        Ok(held)
    }

    fn add(&mut self, message: NetlinkMessage<NetfilterMessage>, table: &str) {
        let NetlinkPayload::InnerMessage(NetfilterMessage { inner: NetfilterMessageInner::NfTables(message), .. }) =
            message.payload
        else {
            return;
        };
        match message {
            NfTablesMessage::NewTable(TableMessage { attributes }) => {
                let named = attributes.iter().any(|a| matches!(a, TableAttribute::Name(name) if name == table));
                if named {
                    let flags = attributes.iter().find_map(|a| match a {
                        TableAttribute::Flags(flags) => Some(flags.bits()),
                        _ => None,
                    });
                    self.table = Some(flags.unwrap_or(0));
                }
            }
            NfTablesMessage::NewChain(ChainMessage { attributes })
                if attributes.iter().any(|a| matches!(a, ChainAttribute::Table(name) if name == table)) =>
            {
                self.chains.push(attributes);
            }
            NfTablesMessage::NewRule(RuleMessage { attributes })
                if attributes.iter().any(|a| matches!(a, RuleAttribute::Table(name) if name == table)) =>
            {
                self.rules.push(attributes);
            }
            _ => {}
        }
    }

    fn compare(&self, ruleset: &Ruleset) -> Result<(), Difference> {
        match self.table {
            None => return Err(Difference::TableMissing),
            Some(flags) if flags & DORMANT != 0 => return Err(Difference::Dormant),
            Some(_) => {}
        }
        let foreign = self
            .chains
            .iter()
            .map(|chain| chain_name(chain))
            .find(|name| !ruleset.chains.iter().any(|chain| Some(chain.name) == *name));
        if let Some(name) = foreign {
            return Err(Difference::ChainForeign(name.unwrap_or("without a name").to_string()));
        }
        ruleset.chains.iter().try_for_each(|chain| self.compare_chain(chain))
    }

    fn compare_chain(&self, chain: &Chain) -> Result<(), Difference> {
        let held = self
            .chains
            .iter()
            .find(|attributes| chain_name(attributes) == Some(chain.name))
            .ok_or(Difference::ChainMissing(chain.name))?;
        let differs =
            |property, found, expected| Err(Difference::Chain { chain: chain.name, property, found, expected });

        let (hook, priority) = hook(held);
        let expected = u32::from(chain.hook);
        if hook != Some(expected) {
            return differs("hook", shown(hook), expected.to_string());
        }
        if priority != Some(chain.priority) {
            return differs("priority", shown(priority), chain.priority.to_string());
        }
        let policy = held.iter().find_map(|a| match a {
            ChainAttribute::Policy(policy) => Some(*policy),
            _ => None,
        });
        if policy != Some(chain.policy as u32) {
            return differs("policy", shown(policy), (chain.policy as u32).to_string());
        }
        let kind = held.iter().find_map(|a| match a {
            ChainAttribute::Type(kind) => Some(kind.as_str()),
            _ => None,
        });
        if kind != Some("filter") {
            return differs("type", shown(kind), "filter".to_string());
        }

        let rules: Vec<_> = self
            .rules
            .iter()
            .filter(|rule| rule_chain(rule) == Some(chain.name))
            .map(|rule| expressions(rule))
            .collect();
        for (index, (found, expected)) in rules.iter().zip(&chain.rules).enumerate() {
            let (found, expected): (Vec<_>, Vec<_>) =
                (found.iter().map(|e| normal(e)).collect(), expected.iter().map(normal).collect());
            if found != expected {
                return Err(Difference::Rule {
                    chain: chain.name,
                    number: index + 1,
                    found: spelled(&found),
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

fn chain_name(attributes: &[ChainAttribute]) -> Option<&str> {
    attributes.iter().find_map(|a| match a {
        ChainAttribute::Name(name) => Some(name.as_str()),
        _ => None,
    })
}

fn rule_chain(attributes: &[RuleAttribute]) -> Option<&str> {
    attributes.iter().find_map(|a| match a {
        RuleAttribute::Chain(name) => Some(name.as_str()),
        _ => None,
    })
}

fn hook(attributes: &[ChainAttribute]) -> (Option<u32>, Option<i32>) {
    let (mut number, mut priority) = (None, None);
    for attribute in attributes {
        if let ChainAttribute::Hook(parts) = attribute {
            for part in parts {
                match part {
                    Hook::Number(held) => number = Some(u32::from(*held)),
                    Hook::Priority(held) => priority = Some(held.cast_signed()),
                    _ => {}
                }
            }
        }
    }
    (number, priority)
}

fn expressions(rule: &[RuleAttribute]) -> Vec<&Expressions> {
    let lists = rule.iter().filter_map(|a| match a {
        RuleAttribute::Expressions(list) => Some(list),
        _ => None,
    });
    let elements = lists.flatten().filter_map(|element| match element {
        ListAttribute::Element(attributes) => Some(attributes),
        _ => None,
    });
    elements
        .flatten()
        .filter_map(|a| match a {
            ExpressionAttribute::Data(expression) => Some(expression),
            _ => None,
        })
        .collect()
}

/// An expression in a form that is the same however it was written: its name, and its attributes in order of their
/// numbers. What a counter has counted is left out.
#[derive(Debug, PartialEq, Eq)]
struct Normal {
    name: String,
    attributes: Vec<(u16, Vec<u8>)>,
}

fn normal(expression: &Expressions) -> Normal {
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
    let mut attributes: Vec<_> = if name == "counter" {
        Vec::new()
    } else {
        NlasIterator::new(&bytes)
            .filter_map(Result::ok)
            .map(|attribute: NlaBuffer<&[u8]>| (attribute.kind() & TYPE_MASK, attribute.value().to_vec()))
            .collect()
    };
    if name == "bitwise" {
        // Mask and xor is what an absent operation means; kernels since 5.6 say so, older ones do not know the number.
        attributes.retain(|(kind, value)| *kind != BITWISE_OPERATION || value.iter().any(|byte| *byte != 0));
    }
    attributes.sort();
    Normal { name: name.to_string(), attributes }
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
