//! GraphQL over HTTP: operations in bodies and queries.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::graphql::{self, Called, NAMES, Wanted, misspelt};
use super::json::{self, Folding};
use super::pending::{Judged, Pending};
use super::selection::{Outcome, Unclear, forbidden, quoted};
use super::target::Target;

/// Most operations of one batch: each is parsed and judged by itself.
const MAX_BATCH: usize = 100;

/// Judges a body.
pub(super) fn judge_body(pending: &Pending, body: &[u8]) -> Judged {
    let all = if pending.bare_document {
        match std::str::from_utf8(body) {
            Ok(document) => vec![Wanted::document(document)],
            Err(_) => return Err(pending.unclear(Unclear::new("the document is not UTF-8", "send UTF-8"))),
        }
    } else {
        read(body).map_err(|unclear| pending.unclear(unclear))?
    };
    judge(pending, &all)
}

/// Judges the operation in a query.
pub(super) fn judge_query(pending: &Pending, target: &Target<'_>) -> Judged {
    let wanted = of_query(target).map_err(|unclear| pending.unclear(unclear))?;
    judge(pending, &[wanted])
}

/// The first name in a query that says what is wanted, in any case.
pub(super) fn in_query(target: &Target<'_>) -> Option<String> {
    target
        .pairs()
        .chain(target.pairs_by_semicolons())
        .map(|(name, _)| name)
        .find(|name| NAMES.contains(&&**name) || misspelt(name).is_some())
        .map(|name| quoted(&name))
}

fn read(body: &[u8]) -> Result<Vec<Wanted>, Unclear> {
    let unread =
        |error| Unclear::new(format!("the body is not read: {error}"), "send one JSON object, or a list of them");
    let objects = match json::parse(body, Folding::Envelope).map_err(unread)? {
        Value::Array(items) if items.is_empty() || items.len() > MAX_BATCH => {
            let reason = format!("the batch holds {} operations; expected 1 to {MAX_BATCH}", items.len());
            return Err(Unclear::new(reason, "send several batches"));
        }
        Value::Array(items) => items,
        one => vec![one],
    };
    let each = objects.iter().map(|object| match object {
        Value::Object(object) => Wanted::of_object(object),
        _ => Err(unread("an operation is no object".to_owned())),
    });
    each.collect()
}

fn of_query(target: &Target<'_>) -> Result<Wanted, Unclear> {
    if target.has_semicolons() {
        return Err(Unclear::new("the query holds ';', which some servers read as '&'", "write it as %3B"));
    }
    let mut object = Map::new();
    for (name, value) in target.pairs() {
        if let Some(name) = misspelt(&name) {
            let reason = format!("{:?} is read as a known name by some servers", quoted(name));
            return Err(Unclear::new(reason, "spell the names as GraphQL over HTTP does"));
        }
        if !NAMES.contains(&&*name) {
            continue;
        }
        let read = match &*name {
            "extensions" => json::parse(value.as_bytes(), Folding::Everywhere)
                .map_err(|error| Unclear::new(format!("'extensions' is not read: {error}"), "send JSON"))?,
            _ => Value::from(&*value),
        };
        if object.insert(name.clone().into_owned(), read).is_some() {
            return Err(Unclear::new(format!("{name:?} is given twice"), "give it once"));
        }
    }
    Wanted::of_object(&object)
}

/// Judges every operation: one denial denies all.
fn judge(pending: &Pending, all: &[Wanted]) -> Judged {
    let mut first = None;
    for wanted in all {
        let called: Called = wanted.resolve(&pending.endpoints).map_err(|unclear| pending.unclear(unclear))?;
        let asked = called.to_string();
        match graphql::judge(&pending.endpoints, &called) {
            Outcome::Allowed(by, part) => {
                first.get_or_insert_with(|| (Arc::clone(by), part));
            }
            Outcome::Forbidden(by, rule) => return Err(Box::new(forbidden(by, rule, &asked))),
            Outcome::Missing => return Err(Box::new(called.missing(&pending.lead, &pending.endpoints))),
        }
    }
    first.ok_or_else(|| pending.unclear(Unclear::new("there is no operation", "send one")))
}
