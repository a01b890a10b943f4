//! GraphQL operations: what a request wants, which root fields that comes to, and whether rules allow them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::{self, Write};
use std::sync::Arc;

use apollo_parser::Parser;
use apollo_parser::cst::{Definition, OperationDefinition, Selection, SelectionSet};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::json::folded;
use super::near;
use super::rules::{Access, Inspection, Operation, Protocol, Sense};
use super::selection::{Outcome, Unclear, ask, missing, quoted};
use super::verdict::{Refusal, RefusalKind, RulePart};

/// Deepest nesting of a document. Servers stop far earlier, and the parser recurses.
const MAX_DEPTH: usize = 128;

/// Most tokens of a document: what generated clients send stays in the thousands.
const MAX_TOKENS: usize = 20_000;

/// Names under which clients ask for a document by its id.
const IDS: &[&str] = &["id", "documentId", "doc_id", "queryId"];

/// Names that say what is wanted, in a body or in a query.
pub(super) const NAMES: &[&str] =
    &["query", "operationName", "extensions", "variables", "id", "documentId", "doc_id", "queryId"];

/// Root fields that a refusal lists before it stops.
const LISTED: usize = 5;

/// What a request says that it wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) document: Option<String>,
    pub(super) name: Option<String>,
    /// SHA-256 of a document, in hexadecimal.
    hash: Option<String>,
    id: Option<String>,
}

/// An operation, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) operation: Operation,
    pub(super) name: Option<String>,
    /// Root fields, never empty; `None` is one that the registry does not tell.
    pub(super) fields: Vec<Option<String>>,
}

impl Wanted {
    /// A document alone.
    pub(super) fn document(text: &str) -> Self {
        Self { document: Some(text.to_owned()), ..Self::default() }
    }

    /// From a JSON object.
    pub(super) fn of_object(object: &Map<String, Value>) -> Result<Self, Unclear> {
        if let Some(name) = object.keys().find_map(|name| misspelt(name)) {
            let reason = format!("{:?} is read as a known name by some servers", quoted(name));
            return Err(Unclear::new(reason, "spell the names as GraphQL over HTTP does"));
        }
        let mut wanted =
            Self { document: text(object, "query")?, name: text(object, "operationName")?, ..Self::default() };
        for name in IDS {
            if let Some(id) = text(object, name)?
                && wanted.id.replace(id).is_some()
            {
                return Err(Unclear::new("two ids of a document", "send one"));
            }
        }
        match object.get("extensions") {
            None | Some(Value::Null) => {}
            Some(extensions) => wanted.hash = hash(extensions)?,
        }
        Ok(wanted)
    }

    /// What the wanted operation does. An id is looked up among the documents that the endpoints register.
    pub(super) fn resolve(&self, endpoints: &[Arc<Inspection>]) -> Result<Called, Unclear> {
        match (&self.document, self.hash.as_ref().or(self.id.as_ref())) {
            (None, None) => {
                Err(Unclear::new("there is neither a document nor the name of one", "send the document as 'query'"))
            }
            (Some(document), reference) => {
                if self.id.is_some() {
                    return Err(Unclear::new("there are both a document and the id of one", "send one of the two"));
                }
                // A server that trusted the hash would run another document than the one judged.
                if reference.is_some_and(|hash| !hash.eq_ignore_ascii_case(&hexadecimal(document))) {
                    return Err(Unclear::new("sha256Hash is not the document's", "send the hash of the document"));
                }
                analyse(document, self.name.as_deref())
            }
            (None, Some(reference)) => self.registered(reference, endpoints),
        }
    }

    fn registered(&self, reference: &str, endpoints: &[Arc<Inspection>]) -> Result<Called, Unclear> {
        if self.hash.is_some() && self.id.is_some() {
            return Err(Unclear::new("there are both the hash and the id of a document", "send one of the two"));
        }
        let registered = endpoints.iter().filter_map(|endpoint| endpoint.persisted.as_ref()?.get(reference)).next();
        let Some(registered) = registered else {
            let place = endpoints.first().map(|endpoint| endpoint.place()).unwrap_or_default();
            return Err(Unclear {
                kind: RefusalKind::Denied,
                reason: format!("{place} registers no document {:?}", quoted(reference)),
                remedy: format!(
                    "send the document itself, or register it under {place}.graphql_persisted_queries with \
                     persisted_queries: allow_registered"
                ),
            });
        };
        if let (Some(expected), Some(name)) = (&registered.name, &self.name)
            && expected != name
        {
            let reason = format!("the registered document is operation {expected:?}, not {:?}", quoted(name));
            return Err(Unclear::new(reason, "leave operationName out, or correct it"));
        }
        let fields = match registered.fields.is_empty() {
            true => vec![None],
            false => registered.fields.iter().cloned().map(Some).collect(),
        };
        let name = registered.name.clone().or_else(|| self.name.clone());
        Ok(Called { operation: registered.operation, name, fields })
    }
}

/// A name that is not, but that a parser which ignores case reads as, one that says what is wanted.
pub(super) fn misspelt(name: &str) -> Option<&str> {
    let lower = folded(name);
    NAMES.iter().any(|known| *known != name && folded(known) == lower).then_some(name)
}

fn text(object: &Map<String, Value>, name: &str) -> Result<Option<String>, Unclear> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Unclear::new(format!("{name:?} is no text"), "send text")),
    }
}

fn hash(extensions: &Value) -> Result<Option<String>, Unclear> {
    let unclear = || Unclear::new("'extensions' is not of the form {persistedQuery: {sha256Hash: …}}", "correct it");
    let extensions = extensions.as_object().ok_or_else(unclear)?;
    match extensions.get("persistedQuery") {
        None | Some(Value::Null) => Ok(None),
        Some(query) => {
            let hash = query.get("sha256Hash").and_then(Value::as_str).ok_or_else(unclear)?;
            Ok(Some(hash.to_owned()))
        }
    }
}

fn hexadecimal(document: &str) -> String {
    Sha256::digest(document.as_bytes()).iter().fold(String::with_capacity(64), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Resolves one operation of a document to its root fields.
fn analyse(document: &str, name: Option<&str>) -> Result<Called, Unclear> {
    let tree = Parser::new(document).recursion_limit(MAX_DEPTH).token_limit(MAX_TOKENS).parse();
    if let Some(error) = tree.errors().next() {
        let reason = format!("the document is not read: {}", quoted(error.message()));
        let remedy = format!("send a document of at most {MAX_TOKENS} tokens and {MAX_DEPTH} levels");
        return Err(Unclear::new(reason, remedy));
    }
    let mut operations: Vec<(Option<String>, OperationDefinition)> = Vec::new();
    let mut names = HashSet::new();
    let mut fragments: HashMap<String, SelectionSet> = HashMap::new();
    for definition in tree.document().definitions() {
        match definition {
            Definition::OperationDefinition(operation) => {
                let name = operation.name().map(|name| name.text().to_string());
                if !names.insert(name.clone()) {
                    return Err(Unclear::new("two operations have the same name", "name each differently"));
                }
                operations.push((name, operation));
            }
            Definition::FragmentDefinition(fragment) => {
                let name = fragment.fragment_name().and_then(|name| name.name()).map(|name| name.text().to_string());
                let (Some(name), Some(selections)) = (name, fragment.selection_set()) else {
                    return Err(Unclear::new("a fragment has no name or no fields", "complete it"));
                };
                if fragments.insert(name, selections).is_some() {
                    return Err(Unclear::new("two fragments have the same name", "name each differently"));
                }
            }
            _ => return Err(Unclear::new("the document defines types", "send operations and fragments alone")),
        }
    }
    let chosen = match name.filter(|name| !name.is_empty()) {
        Some(wanted) => operations.iter().find(|(name, _)| name.as_deref() == Some(wanted)),
        None if operations.len() == 1 => operations.first(),
        None => None,
    };
    let Some((name, operation)) = chosen else {
        let reason = format!("operationName chooses none of the document's {} operations", operations.len());
        return Err(Unclear::new(reason, "name one operation of the document"));
    };
    let kind = match operation.operation_type() {
        None => Operation::Query,
        Some(kind) if kind.mutation_token().is_some() => Operation::Mutation,
        Some(kind) if kind.subscription_token().is_some() => Operation::Subscription,
        Some(_) => Operation::Query,
    };
    let fields = root_fields(operation.selection_set(), &fragments)?;
    if fields.is_empty() {
        return Err(Unclear::new("the operation has no fields", "ask for something"));
    }
    Ok(Called { operation: kind, name: name.clone(), fields: fields.into_iter().map(Some).collect() })
}

/// The fields at the root, through fragments. Directives that may leave a field out do not count: it may be there.
fn root_fields(
    selections: Option<SelectionSet>,
    fragments: &HashMap<String, SelectionSet>,
) -> Result<BTreeSet<String>, Unclear> {
    let mut fields = BTreeSet::new();
    let mut spread = HashSet::new();
    // A list of what is left rather than recursion: fragments may chain as long as a document is.
    let mut left: Vec<SelectionSet> = selections.into_iter().collect();
    while let Some(selections) = left.pop() {
        for selection in selections.selections() {
            match selection {
                Selection::Field(field) => {
                    let Some(name) = field.name() else {
                        return Err(Unclear::new("a field has no name", "complete it"));
                    };
                    fields.insert(name.text().to_string());
                }
                Selection::InlineFragment(fragment) => left.extend(fragment.selection_set()),
                Selection::FragmentSpread(reference) => {
                    let name = reference.fragment_name().and_then(|name| name.name());
                    let name = name.map(|name| name.text().to_string()).unwrap_or_default();
                    let Some(fragment) = fragments.get(&name) else {
                        let reason = format!("fragment {:?} is not defined", quoted(&name));
                        return Err(Unclear::new(reason, "define it in the document"));
                    };
                    if spread.insert(name) {
                        left.push(fragment.clone());
                    }
                }
            }
        }
    }
    Ok(fields)
}

impl Called {
    /// The refusal of what nothing allows.
    pub(super) fn missing(&self, lead: &Inspection, endpoints: &[Arc<Inspection>]) -> Refusal {
        let asked = self.to_string();
        match near::operation(endpoints.iter().map(AsRef::as_ref), self) {
            Some(near) => near.refuse(&asked),
            None => missing(lead, &asked, Some(self.rule())),
        }
    }

    /// The rule that would allow it.
    pub(super) fn rule(&self) -> Value {
        let fields: Vec<&String> = self.fields.iter().flatten().collect();
        match fields.is_empty() {
            true => json!({ "operation_type": self.operation.as_str() }),
            false => json!({ "operation_type": self.operation.as_str(), "fields": fields }),
        }
    }
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation.as_str())?;
        if let Some(name) = &self.name {
            write!(f, " {}", quoted(name))?;
        }
        let mut fields = self.fields.iter().flatten();
        let listed: Vec<String> = fields.by_ref().take(LISTED).map(|field| quoted(field)).collect();
        if !listed.is_empty() {
            let more = if fields.next().is_some() { ", …" } else { "" };
            write!(f, " {{{}{more}}}", listed.join(", "))?;
        }
        Ok(())
    }
}

/// What the endpoints say of an operation. One field that is forbidden forbids all; to be allowed, each field needs a
/// rule, as it would in a request of its own.
pub(super) fn judge<'i>(endpoints: &'i [Arc<Inspection>], called: &Called) -> Outcome<'i> {
    let Called { operation, name, fields } = called;
    let name = name.as_deref();
    ask(
        endpoints.iter(),
        |endpoint| {
            let forbids = |rule: &&super::rules::GraphqlRule| {
                fields.iter().any(|field| rule.covers(*operation, name, field.as_deref(), Sense::Deny))
            };
            endpoint.deny.graphql.iter().find(forbids).map(|rule| rule.written)
        },
        |endpoint| match endpoint.access {
            // Over a WebSocket the presets tell messages from none, and no kinds of operation apart.
            Some(access) if endpoint.protocol == Protocol::Websocket => {
                (access != Access::ReadOnly).then_some(RulePart::Access)
            }
            Some(access) => access.allows_operation(*operation).then_some(RulePart::Access),
            None => {
                let rules = &endpoint.allow.graphql;
                let mut covering = fields.iter().map(|field| {
                    rules.iter().find(|rule| rule.covers(*operation, name, field.as_deref(), Sense::Allow))
                });
                let first = covering.next()??;
                covering.all(|rule| rule.is_some()).then_some(RulePart::Rule(first.written))
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whatever_nests_is_bounded() {
        let deep = |open: &str, inner: &str, close: &str, times: usize| {
            format!("{}{inner}{}", open.repeat(times), close.repeat(times))
        };
        for (open, inner, close, head, tail) in [
            ("{ a ", "{ b }", "}", "", ""),
            ("{ ... ", "{ b }", "}", "", ""),
            ("[", "1", "]", "{ a(x: ", ") }"),
            ("{ x: ", "1", "}", "{ a(x: ", ") }"),
            ("[", "Int", "]", "query($x: ", ") { a }"),
        ] {
            for (times, read) in [(20, true), (MAX_DEPTH + 1, false), (6_000, false)] {
                let document = format!("{head}{}{tail}", deep(open, inner, close, times));
                assert_eq!(analyse(&document, None).is_ok(), read, "{open} {times}");
            }
        }
    }

    #[test]
    fn a_long_chain_of_fragments_is_followed() {
        let mut document = String::from("{ ...F0 }");
        for at in 0..1000 {
            let _ = write!(document, " fragment F{at} on Q {{ ...F{} }}", at + 1);
        }
        document.push_str(" fragment F1000 on Q { last }");
        let called = analyse(&document, None).unwrap();
        assert_eq!(called.fields, [Some("last".to_owned())]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        // The parser is another's, and a panic of its would end the supervisor.
        #[test]
        fn no_sequence_of_tokens_upsets_the_parser(
            tokens in prop::collection::vec(
                prop::sample::select(vec![
                    "query", "mutation", "fragment", "on", "a", "{", "}", "(", ")", "[", "]", ":", "=", "!", "@", "$", "...",
                    "|", "&", "\"s\"", "\"\"\"b\"\"\"", "\"", "\"\"\"", "1", "-", "1.5", "true", "null", "#c\n", ",", "é", "\\",
                    "type", "extend", "schema", "enum", "input", "union", "interface", "scalar", "directive", "implements",
                    "repeatable", "\r", "\u{feff}", "\0",
                ]),
                0..40,
            ),
            spaced in any::<bool>(),
            limit in 1_usize..60,
            depth in 1_usize..6,
        ) {
            let document = tokens.join(if spaced { " " } else { "" });
            let _ = analyse(&document, None);
            let tree = Parser::new(&document).recursion_limit(depth).token_limit(limit).parse();
            let _ = tree.errors().count();
            let _ = tree.document().definitions().count();
        }

        #[test]
        fn no_text_upsets_the_parser(document in "\\PC{0,60}") {
            let _ = analyse(&document, None);
        }
    }
}
