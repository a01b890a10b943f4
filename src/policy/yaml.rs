//! YAML as a tree in which every value knows its line and column.
//!
//! Deserialising into structs stops at the first error and forgets where values stood. A policy is reviewed by people,
//! so it is read here into nodes, and everything that is wrong with it is reported at its own place. The tree is also
//! smaller than YAML: no anchors (what a reviewer reads is what is there, and nothing expands), no tags, one document.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span};

use super::problem::Problem;

/// Deepest nesting read. The schema is seven levels deep; the rest is room for what it refuses with a better message.
const MAX_DEPTH: usize = 32;

/// A place in the file, in characters from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Place {
    fn of(span: &Span) -> Self {
        let at = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: at(span.start.line()), column: at(span.start.col()).saturating_add(1) }
    }

    pub(super) fn problem(self, field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem {
            line: self.line,
            column: self.column,
            field: field.to_owned(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    /// Text, and whether it was written plain: only then can it be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) text: String,
}

impl Value {
    /// How an error names what it found.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Scalar { text, plain: true } if is_null(text) => "nothing",
            Self::Scalar { .. } => "a single value",
            Self::Sequence(_) => "a list",
            Self::Mapping(_) => "a mapping",
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Scalar { text, plain: true } if is_null(text))
    }
}

/// The core schema's spellings of null (YAML 1.2.2 §10.3.2).
fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// A collection that is still being read.
enum Open {
    Sequence { place: Place, items: Vec<Node> },
    Mapping { place: Place, entries: Vec<(Key, Node)>, seen: HashMap<String, Place>, key: Option<Key> },
}

/// Reads the one document in `text`; `None` for a file that holds none.
///
/// # Errors
///
/// Everything that makes the text no tree: syntax (the first error only, since what follows it is guesswork), and every
/// anchor, alias, tag, duplicate or composite key.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Vec<Problem>> {
    let options = granit_parser::options! {
        emit_comments: false,
        disallow_directives: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut tree = Builder { open: Vec::new(), root: None, problems: Vec::new() };
    let mut documents = 0_u32;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let at = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                let marker = error.marker();
                let place = Place { line: at(marker.line()), column: at(marker.col()).saturating_add(1) };
                let remedy = "correct the YAML here, or just before";
                tree.problems.push(place.problem("", format!("not YAML: {}", error.info()), remedy));
                return Err(tree.problems);
            }
        };
        if let Event::DocumentStart(..) = event {
            documents += 1;
            if documents > 1 {
                let message = "a second document starts here; expected one";
                tree.problems.push(Place::of(&span).problem("", message, "remove the '---' and what follows"));
                return Err(tree.problems);
            }
        }
        tree.take(event, Place::of(&span));
        if tree.problems.len() >= super::problem::MAX_PROBLEMS {
            return Err(tree.problems);
        }
    }
    if tree.problems.is_empty() { Ok(tree.root) } else { Err(tree.problems) }
}

struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    problems: Vec<Problem>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, place: Place) {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_properties(anchor, tag.is_some(), place);
                let plain = style == ScalarStyle::Plain;
                if let Some(Open::Mapping { key: key @ None, seen, .. }) = self.open.last_mut() {
                    if let Some(first) = seen.get(text.as_ref()) {
                        let message = format!("the key is given twice, first on line {}", first.line);
                        self.problems.push(place.problem(&text, message, "keep one of them"));
                    }
                    seen.insert(text.clone().into_owned(), place);
                    *key = Some(Key { place, text: text.into_owned() });
                } else {
                    self.close(Node { place, value: Value::Scalar { text: text.into_owned(), plain } });
                }
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_properties(anchor, tag.is_some(), place);
                self.refuse_composite_key(place);
                self.open.push(Open::Sequence { place, items: Vec::new() });
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_properties(anchor, tag.is_some(), place);
                self.refuse_composite_key(place);
                self.open.push(Open::Mapping { place, entries: Vec::new(), seen: HashMap::new(), key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let node = match self.open.pop() {
                    Some(Open::Sequence { place, items }) => Node { place, value: Value::Sequence(items) },
                    Some(Open::Mapping { place, entries, .. }) => Node { place, value: Value::Mapping(entries) },
                    None => return,
                };
                self.close(node);
            }
            Event::Alias(_) => {
                let message = "an alias; a policy is read without expansion";
                self.problems.push(place.problem("", message, "write the value out"));
                self.close(Node { place, value: Value::Scalar { text: String::new(), plain: false } });
            }
            _ => {}
        }
    }

    /// Puts a finished value where it belongs.
    fn close(&mut self, node: Node) {
        match self.open.last_mut() {
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, key, .. }) => match key.take() {
                Some(key) => entries.push((key, node)),
                // A composite or aliased key, already reported: a stand-in keeps keys and values in step.
                None => *key = Some(Key { place: node.place, text: String::new() }),
            },
            None => self.root = Some(node),
        }
    }

    fn refuse_properties(&mut self, anchor: usize, tag: bool, place: Place) {
        if anchor != 0 {
            let message = "an anchor; a policy is read without expansion";
            self.problems.push(place.problem("", message, "remove the '&' name, and write out what refers to it"));
        }
        if tag {
            let message = "a tag; every type follows from its field";
            self.problems.push(place.problem("", message, "remove the '!' tag"));
        }
    }

    fn refuse_composite_key(&mut self, place: Place) {
        if let Some(Open::Mapping { key: None, .. }) = self.open.last() {
            self.problems.push(place.problem("", "a key that is not text", "write a plain name before the ':'"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> String {
        let problems = parse(text).unwrap_err();
        let p = &problems[0];
        format!("{}:{}: {}", p.line, p.column, p.message)
    }

    #[test]
    fn values_know_their_place() {
        let root = parse("a: 1\nb:\n  - x\n  - 'true'\n").unwrap().unwrap();
        let Value::Mapping(entries) = root.value else { panic!("no mapping") };
        assert_eq!(entries[0].1.place, Place { line: 1, column: 4 });
        assert_eq!(entries[1].0.place, Place { line: 2, column: 1 });
        let Value::Sequence(items) = &entries[1].1.value else { panic!("no sequence") };
        assert_eq!(items[1].place, Place { line: 4, column: 5 });
        assert!(matches!(&items[1].value, Value::Scalar { plain: false, text } if text == "true"));
    }

    #[test]
    fn an_empty_file_has_no_document() {
        for text in ["", "\n\n", "# a comment\n", "\u{feff}", "\u{feff}# x\n"] {
            assert!(parse(text).unwrap().is_none(), "{text:?}");
        }
        assert!(parse("---\n").unwrap().is_some_and(|node| node.value.is_null()));
    }

    #[test]
    fn a_byte_order_mark_is_no_content() {
        let root = parse("\u{feff}version: 1\n").unwrap().unwrap();
        let Value::Mapping(entries) = root.value else { panic!("no mapping") };
        assert_eq!(entries[0].0.text, "version");
    }

    #[test]
    fn what_expands_or_surprises_is_refused_at_its_place() {
        assert_eq!(first("a: &x 1\nb: 2\n"), "1:7: an anchor; a policy is read without expansion");
        assert_eq!(parse("a: &x 1\nb: *x\n").unwrap_err().len(), 2);
        assert_eq!(first("a: !!str 1\n"), "1:10: a tag; every type follows from its field");
        assert_eq!(first("a: 1\nb: 2\na: 3\n"), "3:1: the key is given twice, first on line 1");
        assert_eq!(first("a: 1\n---\nb: 2\n"), "2:1: a second document starts here; expected one");
        assert_eq!(first("[1, 2]: 3\n"), "1:1: a key that is not text");
        assert_eq!(first("? {a: b}\n: 3\n"), "1:3: a key that is not text");
        assert!(first("a:\n\tb: 1\n").starts_with("2:"));
        assert!(first("a: [1, 2\n").contains(": not YAML: "));
        assert!(first("%YAML 1.2\n---\na: 1\n").starts_with("1:"));
    }

    #[test]
    fn depth_is_bounded() {
        for deep in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
            assert_eq!(parse(&deep).unwrap_err().len(), 1);
        }
    }

    #[test]
    fn an_alias_bomb_does_not_expand() {
        let mut bomb = String::from("a0: &a0 [x]\n");
        for i in 1..60 {
            let (name, of) = (format!("a{i}"), format!("*a{}", i - 1));
            bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![of; 9].join(", ")));
        }
        let started = std::time::Instant::now();
        assert!(parse(&bomb).is_err());
        assert!(started.elapsed() < std::time::Duration::from_secs(1));
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in "[a-c:\\-\\[\\]{}&*!|>'\"%#?,\n\t ~]{0,60}") {
            let _ = parse(&text);
        }
    }
}
