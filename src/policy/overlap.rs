//! Endpoints that answer for the same destination must agree on what becomes of it.
//!
//! Which of them applied would otherwise depend on the order of a file. The search is only as costly as a policy is
//! varied: endpoints that say the same cannot be at odds, so each is compared with the other classes alone.

use std::collections::HashMap;

use ipnet::IpNet;

use super::network::describe;
use super::reader::Reader;
use super::yaml::Place;
use super::{Endpoint, HostPattern};

/// An endpoint, and where it stands.
pub(super) struct Located {
    pub(super) place: Place,
    pub(super) field: String,
    pub(super) endpoint: Endpoint,
}

/// What overlapping endpoints must agree on: the connection's part, and how its requests are read.
type Class<'e> = (bool, &'e [IpNet], Option<[(&'static str, usize); 8]>);

fn class(endpoint: &Endpoint) -> Class<'_> {
    let requests = endpoint.inspection.as_ref().map(|inspection| inspection.class());
    (endpoint.tls_skip, &endpoint.allowed_ips, requests)
}

/// The field in which two endpoints differ that may not. How requests are read may differ where each path has one
/// endpoint that is the most specific; whether they are read at all is the connection's affair.
fn difference(one: &Endpoint, two: &Endpoint) -> Option<&'static str> {
    if one.tls_skip != two.tls_skip {
        return Some("tls");
    }
    if one.allowed_ips != two.allowed_ips {
        return Some("allowed_ips");
    }
    match (&one.inspection, &two.inspection) {
        (None, None) => None,
        (Some(one), Some(two)) if one.contends(two) => {
            one.class().into_iter().zip(two.class()).find(|(one, two)| one != two).map(|((field, _), _)| field)
        }
        (Some(_), Some(_)) => None,
        _ => Some("protocol"),
    }
}

/// Notes every endpoint that overlaps an earlier one and differs from it in what may not differ. Endpoints without a host
/// stand apart: whatever they admit must lie in their ranges.
pub(super) fn refuse_ambiguous(reader: &mut Reader, endpoints: &[Located]) {
    let mut classes: HashMap<Class<'_>, usize> = HashMap::new();
    for one in endpoints {
        let next = classes.len();
        classes.entry(class(&one.endpoint)).or_insert(next);
    }
    if classes.len() < 2 {
        return;
    }
    // Two exact hosts overlap only when they are equal, which a map finds; globs are few and compared with all.
    let mut exact: HashMap<&HostPattern, Vec<usize>> = HashMap::new();
    let mut globs: Vec<usize> = Vec::new();
    for (index, later) in endpoints.iter().enumerate() {
        let Some(host) = &later.endpoint.host else { continue };
        let earlier = match host {
            HostPattern::Exact(_) => {
                let same = exact.get(host).into_iter().flatten().copied();
                same.chain(globs.iter().copied()).find(|other| at_odds(&endpoints[*other].endpoint, &later.endpoint))
            }
            HostPattern::Glob(_) => (0..index).find(|other| at_odds(&endpoints[*other].endpoint, &later.endpoint)),
        };
        match host {
            HostPattern::Exact(_) => exact.entry(host).or_default().push(index),
            HostPattern::Glob(_) => globs.push(index),
        }
        let Some(earlier) = earlier.map(|other| &endpoints[other]) else { continue };
        let Some(what) = difference(&earlier.endpoint, &later.endpoint) else { continue };
        let message = format!(
            "answers for the same host and port as {} but differs in {what}, so that which one applies is ambiguous",
            describe(earlier.place, &earlier.field)
        );
        reader.note(later.place, &later.field, message, "make the two agree, or narrow one of them");
    }
}

fn at_odds(one: &Endpoint, two: &Endpoint) -> bool {
    difference(one, two).is_some()
        && one.ports.iter().any(|port| two.ports.binary_search(port).is_ok())
        && one.host.as_ref().zip(two.host.as_ref()).is_some_and(|(one, two)| one.overlaps(two))
}
