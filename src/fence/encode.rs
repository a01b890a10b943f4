//! A ruleset as netlink sees it, and the one transaction that puts it in force.
//!
//! Expressions are those of the kernel's nf_tables (`include/uapi/linux/netfilter/nf_tables.h`): each loads into or
//! reads from register 1, and a comparison that fails ends its rule.

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage,
};
use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, Expressions, Hook, HookNumber, Immediate,
    InetHookNumber, ListAttribute, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register, RuleAttribute,
    RuleMessage, TableAttribute, TableMessage, Verdict, VerdictAttribute,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};

/// `NFNL_SUBSYS_NFTABLES`: which subsystem a batch is for.
const SUBSYSTEM: u16 = 10;

/// Header version of nfnetlink (`NFNETLINK_V0`).
const VERSION: u8 = 0;

/// The `filter` priority of nft: after mangling and destination NAT, so that what is judged is where a packet goes.
pub const FILTER: i32 = 0;

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
pub const IPV4: u8 = 2;
/// See [`IPV4`].
pub const IPV6: u8 = 10;

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

/// What is to happen to a table of the ruleset's name that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is an error: where the namespace is new, nobody else has any business in it.
    Refused,
    /// The new ruleset takes its place, in the same instant: a role that is run again repairs what it finds.
    Replaced,
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
    /// The transaction that puts this ruleset in force.
    #[must_use]
    pub fn transaction(&self, existing: Existing) -> Transaction {
        let mut transaction = Transaction { bytes: Vec::with_capacity(4096), acknowledgements: 0 };
        let table = || TableMessage { attributes: vec![TableAttribute::Name(self.table.to_string())] };
        transaction.control(ControlMessage::BatchBegin);
        if existing == Existing::Replaced {
            // What is not there cannot be deleted, so it is made first.
            transaction.request(self.family, NfTablesMessage::NewTable(table()), NLM_F_CREATE);
            transaction.request(self.family, NfTablesMessage::DeleteTable(table()), 0);
        }
        transaction.request(self.family, NfTablesMessage::NewTable(table()), NLM_F_CREATE | NLM_F_EXCL);
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
    payload(NETWORK, offset, length)
}

/// Loads `length` bytes at `offset` of the transport header; a rule must have matched its protocol before.
#[must_use]
pub fn transport_header(offset: u32, length: u32) -> Expressions {
    /// `NFT_PAYLOAD_TRANSPORT_HEADER`.
    const TRANSPORT: u32 = 2;
    payload(TRANSPORT, offset, length)
}

fn payload(base: u32, offset: u32, length: u32) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(length),
    ])
}

/// Keeps only these bits of what was loaded.
#[must_use]
pub fn masked(bits: &[u8]) -> Expressions {
    Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(u32::try_from(bits.len()).unwrap_or(u32::MAX)),
        Bitwise::Mask(DataAttribute::Value(bits.to_vec())),
        Bitwise::Xor(DataAttribute::Value(vec![0; bits.len()])),
    ])
}

/// Goes on only when what was loaded is `value`.
#[must_use]
pub fn equals(value: &[u8]) -> Expressions {
    compare(Operator::Equal, value)
}

/// Goes on only when what was loaded is not `value`.
#[must_use]
pub fn differs(value: &[u8]) -> Expressions {
    compare(Operator::NotEqual, value)
}

/// Goes on only when what was loaded is `value` or more, as a number in network order.
#[must_use]
pub fn at_least(value: &[u8]) -> Expressions {
    compare(Operator::GreatherThanEqual, value)
}

/// Goes on only when what was loaded is `value` or less, as a number in network order.
#[must_use]
pub fn at_most(value: &[u8]) -> Expressions {
    compare(Operator::LessThanEqual, value)
}

fn compare(operator: Operator, value: &[u8]) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value.to_vec())),
    ])
}

/// Properties of the connection that a packet belongs to (`enum nft_ct_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Where it stands in its life, one bit a state.
    State = 0,
    /// A number that the ruleset gave it.
    Mark = 3,
}

/// The bit of [`Connection::State`] that says that the packet is a connection's first
/// (`NF_CT_STATE_BIT(IP_CT_NEW)`).
pub const NEW: u32 = 1 << 3;

const CT_DESTINATION_REGISTER: u16 = 1;
const CT_KEY: u16 = 2;
const CT_SOURCE_REGISTER: u16 = 4;

/// Loads a property of the packet's connection.
#[must_use]
pub fn connection(key: Connection) -> Expressions {
    connection_attributes(CT_DESTINATION_REGISTER, key)
}

/// Marks the packet's connection, in whatever direction its packets go.
#[must_use]
pub fn mark_connection(mark: u32) -> [Expressions; 2] {
    let load = Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Reg1),
        Immediate::Data(DataAttribute::Value(mark.to_ne_bytes().to_vec())),
    ]);
    [load, connection_attributes(CT_SOURCE_REGISTER, Connection::Mark)]
}

fn connection_attributes(register: u16, key: Connection) -> Expressions {
    let number = |value: u32| value.to_be_bytes().to_vec();
    other(
        "ct",
        vec![DefaultNla::new(register, number(Register::Reg1.into())), DefaultNla::new(CT_KEY, number(key as u32))],
    )
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
