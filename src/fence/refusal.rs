//! How every fence says no: at once, and so that the program sees an error instead of waiting.

use netlink_packet_netfilter::nftables::MetaKey;

use super::encode::{self, Family, Rejection, Rule};

/// `IPPROTO_TCP`.
pub(super) const TCP: u8 = 6;

/// The last rules of a chain: a reset for TCP, "administratively prohibited" for everything else, whatever it is. The
/// sender of the latter gets `EPERM` from the call itself.
pub(super) fn rules(family: Family) -> [Rule; 2] {
    [
        vec![encode::meta(MetaKey::L4Proto), encode::equals(&[TCP]), encode::reject(Rejection::Reset)],
        vec![encode::reject(match family {
            Family::Inet => Rejection::Prohibited,
            Family::Ipv4 => Rejection::ProhibitedIpv4,
        })],
    ]
}
