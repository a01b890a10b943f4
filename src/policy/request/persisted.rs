//! GraphQL documents that are asked for by name: the registry that says what each does.

use std::collections::BTreeMap;

use crate::policy::reader::{Fields, Reader, join};
use crate::policy::yaml::Node;

use super::rules::{Operation, PersistedOperation};

/// Kinds of operation, as a policy spells them.
pub(super) const OPERATIONS: &[(&str, Operation)] =
    &[("query", Operation::Query), ("mutation", Operation::Mutation), ("subscription", Operation::Subscription)];

/// Reads `persisted_queries` and its registry; `None` where no document may be asked for by name.
pub(super) fn read(reader: &mut Reader, fields: Fields<'_>, at: &str) -> Option<BTreeMap<String, PersistedOperation>> {
    let allowed = fields.get("persisted_queries").and_then(|node| {
        reader.word(node, &join(at, "persisted_queries"), &[("deny", false), ("allow_registered", true)])
    });
    let registry = fields.entry("graphql_persisted_queries");
    let field = join(at, "graphql_persisted_queries");
    match (allowed.unwrap_or(false), registry) {
        (false, None) => None,
        (false, Some((key, _))) => {
            let message = "registers documents that 'persisted_queries' does not allow";
            reader.note(key.place, &field, message, "write 'persisted_queries: allow_registered', or remove it");
            None
        }
        (true, None) => {
            let message = "missing; 'allow_registered' allows what this registers";
            let remedy = "write graphql_persisted_queries: {HASH: {operation_type: query}}";
            reader.note(fields.place, &field, message, remedy);
            None
        }
        (true, Some((_, node))) => {
            let mut registered = BTreeMap::new();
            for (key, node) in reader.entries(node, &field).unwrap_or_default() {
                if let Some(operation) = operation(reader, node, &join(&field, &key.text)) {
                    registered.insert(key.text.clone(), operation);
                }
            }
            Some(registered)
        }
    }
}

fn operation(reader: &mut Reader, node: &Node, at: &str) -> Option<PersistedOperation> {
    let fields = reader.fields(node, at, &["operation_type", "operation_name", "fields"])?;
    let name = fields.get("operation_name").and_then(|node| reader.text(node, &join(at, "operation_name")));
    let field = join(at, "fields");
    let items = fields.get("fields").map(|node| reader.list(node, &field)).unwrap_or_default();
    let roots = items
        .iter()
        .enumerate()
        .filter_map(|(index, node)| reader.text(node, &format!("{field}[{index}]")).map(str::to_owned))
        .collect();
    let field = join(at, "operation_type");
    let Some(node) = fields.get("operation_type") else {
        reader.note(fields.place, &field, "missing", "write 'operation_type: query'");
        return None;
    };
    let operation = reader.word(node, &field, OPERATIONS)?;
    Some(PersistedOperation { operation, name: name.map(str::to_owned), fields: roots })
}
