//! Rules about paths, arranged so that a request is compared with the few that could match it.
//!
//! A tree of segments: the walk follows the request's own, and where a pattern has a wildcard segment both ways. Every
//! node lies at one depth and so is visited at most once, however the patterns overlap. A pattern with `**` in its
//! middle would break that, so it waits at the node where its `**` stands and is compared whole.

use std::collections::HashMap;

use super::glob::{Glob, Segment};

/// Rules, by number, found by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathIndex {
    /// Rules about every path.
    everything: Vec<usize>,
    root: Node,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    literal: HashMap<String, Node>,
    any: Option<Box<Node>>,
    partial: Vec<(Segment, Node)>,
    /// Patterns that end here.
    ends: Vec<usize>,
    /// Patterns that go on with a last `**`.
    below: Vec<usize>,
    /// Patterns that go on with `**` and more.
    whole: Vec<(usize, Glob)>,
}

impl PathIndex {
    /// Adds a rule.
    pub(super) fn add(&mut self, path: &Glob, rule: usize) {
        if path.is_everything() {
            self.everything.push(rule);
            return;
        }
        let segments = path.segments();
        let mut node = &mut self.root;
        for (at, segment) in segments.iter().enumerate() {
            node = match segment {
                Segment::Literal(text) => node.literal.entry(text.clone()).or_default(),
                Segment::Any => node.any.get_or_insert_default(),
                Segment::Partial(_) => {
                    let known = node.partial.iter().position(|(known, _)| known == segment);
                    let known = known.unwrap_or_else(|| {
                        node.partial.push((segment.clone(), Node::default()));
                        node.partial.len() - 1
                    });
                    &mut node.partial[known].1
                }
                Segment::Deep if at + 1 == segments.len() => {
                    node.below.push(rule);
                    return;
                }
                Segment::Deep => {
                    node.whole.push((rule, path.clone()));
                    return;
                }
            };
        }
        node.ends.push(rule);
    }

    /// The first rule about `path` that `accept` takes.
    pub(super) fn find(&self, path: &str, accept: &mut impl FnMut(usize) -> bool) -> Option<usize> {
        let everything = self.everything.iter().copied().find(|rule| accept(*rule));
        everything.or_else(|| self.root.find(path, path.strip_prefix('/'), accept))
    }
}

impl Node {
    /// `rest` is what follows of `path`, or `None` after its last segment.
    fn find(&self, path: &str, rest: Option<&str>, accept: &mut impl FnMut(usize) -> bool) -> Option<usize> {
        let Some(rest) = rest else { return self.ends.iter().copied().find(|rule| accept(*rule)) };
        let (segment, next) = match rest.split_once('/') {
            Some((segment, next)) => (segment, Some(next)),
            None => (rest, None),
        };
        if let Some(found) = self.literal.get(segment).and_then(|node| node.find(path, next, accept)) {
            return Some(found);
        }
        if let Some(any) = self.any.as_ref().filter(|_| Segment::Any.matches(segment))
            && let Some(found) = any.find(path, next, accept)
        {
            return Some(found);
        }
        for (pattern, node) in &self.partial {
            if pattern.matches(segment)
                && let Some(found) = node.find(path, next, accept)
            {
                return Some(found);
            }
        }
        let whole = self.whole.iter().filter(|(_, glob)| glob.matches(path)).map(|(rule, _)| *rule);
        self.below.iter().copied().chain(whole).find(|rule| accept(*rule))
    }
}
