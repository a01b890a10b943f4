//! A ruleset as netlink sees it, and the one transaction that puts it in force.
//!
//! Expressions are those of the kernel's nf_tables (`include/uapi/linux/netfilter/nf_tables.h`): each loads into or
//! reads from register 1, and a comparison that fails ends its rule.

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage,
};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Cmp, DataAttribute, Expressions, Hook, HookNumber, Immediate, InetHookNumber,
    ListAttribute, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register, RuleAttribute, RuleMessage,
    TableAttribute, TableMessage, Verdict, VerdictAttribute,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};

/// `NFNL_SUBSYS_NFTABLES`: which subsystem a batch is for.
const SUBSYSTEM: u16 = 10;

/// Header version of nfnetlink (`NFNETLINK_V0`).
const VERSION: u8 = 0;

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4 alone: for kernels that have no IPv6, whose nf_tables has no `inet` family either.
    Ipv4,
}

impl Family {
    /// The name that `nft` gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ipv4 => "ip",
        }
    }

    /// The family of netlink's header.
    #[must_use]
    pub fn protocol(self) -> NetfilterProtoFamily {
        match self {
            Self::Inet => NetfilterProtoFamily::Inet,
            Self::Ipv4 => NetfilterProtoFamily::IPv4,
        }
    }
}

/// What becomes of a packet that no rule decided (`NF_DROP` and `NF_ACCEPT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is dropped.
    Drop = 0,
    /// It passes.
    Accept = 1,
}

/// A rule: expressions in the order of their evaluation.
pub type Rule = Vec<Expressions>;

/// A base chain of type `filter`.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// Where packets meet it.
    pub hook: InetHookNumber,
    /// Its place among the chains of that hook.
    pub priority: i32,
    /// What becomes of the undecided.
    pub policy: Policy,
    /// Its rules, first to last.
    pub rules: Vec<Rule>,
}

/// A table and all that is in it.
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// Which packets it sees.
    pub family: Family,
    /// Its name.
    pub table: &'static str,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// Netlink messages that take effect together or not at all.
#[derive(Debug)]
pub struct Transaction {
    /// The messages.
    pub bytes: Vec<u8>,
    /// How many acknowledgements the kernel sends when all of it is in force.
    pub acknowledgements: usize,
}

impl Ruleset {
    /// The transaction that creates this ruleset where no table of its name is.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        let mut transaction = Transaction { bytes: Vec::with_capacity(4096), acknowledgements: 0 };
        transaction.control(ControlMessage::BatchBegin);
        let table = vec![TableAttribute::Name(self.table.to_string())];
        transaction.request(
            self.family,
            NfTablesMessage::NewTable(TableMessage { attributes: table }),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        for chain in &self.chains {
            let attributes = vec![
                ChainAttribute::Table(self.table.to_string()),
                ChainAttribute::Name(chain.name.to_string()),
                ChainAttribute::Hook(vec![
                    Hook::Number(HookNumber::Inet(chain.hook)),
                    // Signed in the kernel, carried as its bit pattern.
                    Hook::Priority(chain.priority.cast_unsigned()),
                ]),
                ChainAttribute::Policy(chain.policy as u32),
                ChainAttribute::Type("filter".to_string()),
            ];
            transaction.request(
                self.family,
                NfTablesMessage::NewChain(ChainMessage { attributes }),
                NLM_F_CREATE | NLM_F_EXCL,
            );
            for rule in &chain.rules {
                let attributes = vec![
                    RuleAttribute::Table(self.table.to_string()),
                    RuleAttribute::Chain(chain.name.to_string()),
                    RuleAttribute::Expressions(rule.iter().cloned().map(ListAttribute::from).collect()),
                ];
                transaction.request(
                    self.family,
                    NfTablesMessage::NewRule(RuleMessage { attributes }),
                    NLM_F_CREATE | NLM_F_APPEND,
                );
            }
        }
        transaction.control(ControlMessage::BatchEnd);
        transaction
    }
}

impl Transaction {
    fn control(&mut self, message: ControlMessage) {
        let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, VERSION, SUBSYSTEM);
        self.bytes.extend(message_bytes(header, message, NLM_F_REQUEST));
    }

    fn request(&mut self, family: Family, message: NfTablesMessage, flags: u16) {
        let header = NetfilterHeader::new(family.protocol(), VERSION, 0);
        self.bytes.extend(message_bytes(header, message, NLM_F_REQUEST | NLM_F_ACK | flags));
        self.acknowledgements += 1;
    }
}

/// One netfilter message, netlink header included.
#[must_use]
pub fn message_bytes(header: NetfilterHeader, inner: impl Into<NetfilterMessageInner>, flags: u16) -> Vec<u8> {
    let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Loads a property of the packet.
#[must_use]
pub fn meta(key: MetaKey) -> Expressions {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(Register::Reg1)])
}

/// Loads `length` bytes at `offset` of the network header.
#[must_use]
pub fn network_header(offset: u32, length: u32) -> Expressions {
    /// `NFT_PAYLOAD_NETWORK_HEADER`.
    const NETWORK: u32 = 1;
    Expressions::Payload(vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(NETWORK),
        Payload::Offset(offset),
        Payload::Len(length),
    ])
}

/// Goes on only when what was loaded is `value`.
#[must_use]
pub fn equals(value: &[u8]) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(Operator::Equal),
        Cmp::Data(DataAttribute::Value(value.to_vec())),
    ])
}

/// Lets the packet pass this table.
#[must_use]
pub fn accept() -> Expressions {
    Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(vec![VerdictAttribute::Code(Verdict::Other(Policy::Accept as u32))])),
    ])
}

/// Counts packets and bytes.
#[must_use]
pub fn counter() -> Expressions {
    const BYTES: u16 = 1;
    const PACKETS: u16 = 2;
    let zero = || 0u64.to_be_bytes().to_vec();
    other("counter", vec![DefaultNla::new(BYTES, zero()), DefaultNla::new(PACKETS, zero())])
}

/// Goes on for `rate` packets a second, and for `burst` more after a quiet time.
#[must_use]
pub fn limit(rate: u64, burst: u32) -> Expressions {
    const RATE: u16 = 1;
    const UNIT: u16 = 2;
    const BURST: u16 = 3;
    const TYPE: u16 = 4;
    const FLAGS: u16 = 5;
    const SECOND: u64 = 1;
    const PACKETS: u32 = 0;
    other(
        "limit",
        vec![
            DefaultNla::new(RATE, rate.to_be_bytes().to_vec()),
            DefaultNla::new(UNIT, SECOND.to_be_bytes().to_vec()),
            DefaultNla::new(BURST, burst.to_be_bytes().to_vec()),
            DefaultNla::new(TYPE, PACKETS.to_be_bytes().to_vec()),
            DefaultNla::new(FLAGS, 0u32.to_be_bytes().to_vec()),
        ],
    )
}

/// Sends the packet's first `length` bytes to whoever listens to NFLOG `group`.
#[must_use]
pub fn log(group: u16, prefix: &str, length: u32) -> Expressions {
    const GROUP: u16 = 1;
    const PREFIX: u16 = 2;
    const SNAPLEN: u16 = 3;
    let prefix = [prefix.as_bytes(), &[0]].concat();
    other(
        "log",
        vec![
            DefaultNla::new(GROUP, group.to_be_bytes().to_vec()),
            DefaultNla::new(PREFIX, prefix),
            DefaultNla::new(SNAPLEN, length.to_be_bytes().to_vec()),
        ],
    )
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A TCP reset.
    Reset,
    /// ICMP or ICMPv6 "administratively prohibited", whichever fits; `inet` tables only.
    Prohibited,
    /// The same where there is only IPv4.
    ProhibitedIpv4,
}

/// Refuses the packet and tells its sender.
#[must_use]
pub fn reject(rejection: Rejection) -> Expressions {
    const TYPE: u16 = 1;
    const CODE: u16 = 2;
    // enum nft_reject_types, enum nft_reject_inet_code, and ICMP_PKT_FILTERED.
    let (kind, code): (u32, Option<u8>) = match rejection {
        Rejection::ProhibitedIpv4 => (0, Some(13)),
        Rejection::Reset => (1, None),
        Rejection::Prohibited => (2, Some(3)),
    };
    let mut attributes = vec![DefaultNla::new(TYPE, kind.to_be_bytes().to_vec())];
    attributes.extend(code.map(|code| DefaultNla::new(CODE, vec![code])));
    other("reject", attributes)
}

fn other(expression: &str, attributes: Vec<DefaultNla>) -> Expressions {
    Expressions::Other { expression_type: expression.to_string(), attributes }
}
