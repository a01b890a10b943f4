//! Who may do what: tokens, users, rules as RBAC has them.

use std::collections::HashMap;

use serde_json::Value;

use super::status::status;
use super::store::Target;

/// A rule of a Role or ClusterRole.
#[derive(Clone, Debug)]
pub struct Right {
    verbs: Vec<String>,
    /// With its subresource: `nodes/status`.
    resource: String,
    /// Everywhere, where there is none.
    namespace: Option<String>,
    /// Any, where there is none.
    name: Option<String>,
}

impl Right {
    /// A rule; narrow it by [`Right::within`] and [`Right::named`].
    pub fn new(verbs: &[&str], resource: &str) -> Self {
        let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        Self { verbs, resource: resource.to_owned(), namespace: None, name: None }
    }

    /// In one namespace alone.
    pub fn within(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// One object alone.
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }
}

/// `pods: [get]` of one namespace.
pub fn pods(namespace: &str) -> Right {
    Right::new(&["get"], "pods").within(namespace)
}

/// Nodes.
pub fn nodes(verbs: &[&str]) -> Right {
    Right::new(verbs, "nodes")
}

/// Nodes' status.
pub fn node_status() -> Right {
    Right::new(&["patch"], "nodes/status")
}

/// `daemonsets: [get]` of one namespace.
pub fn daemon_sets(namespace: &str) -> Right {
    Right::new(&["get"], "daemonsets").within(namespace)
}

#[derive(Default)]
pub struct Rights {
    tokens: HashMap<String, String>,
    users: HashMap<String, Vec<Right>>,
    issued: usize,
}

impl Rights {
    pub fn token(&mut self, user: &str, rights: &[Right]) -> String {
        self.grant(user, rights);
        self.issued += 1;
        let token = format!("stand-in.{}.{user}", self.issued).replace(':', "-");
        self.tokens.insert(token.clone(), user.to_owned());
        token
    }

    pub fn grant(&mut self, user: &str, rights: &[Right]) {
        self.users.insert(user.to_owned(), rights.to_vec());
    }

    pub fn expire(&mut self, token: &str) {
        self.tokens.remove(token).expect("a token that was given out");
    }

    /// Whose token it is. Who has none is anonymous, who has a wrong one is nobody.
    pub fn user(&self, token: Option<&str>) -> Option<String> {
        match token {
            None => Some("system:anonymous".to_owned()),
            Some(token) => self.tokens.get(token).cloned(),
        }
    }

    pub fn allow(&self, user: &str, verb: &str, target: &Target) -> bool {
        let allows = |right: &Right| {
            right.verbs.iter().any(|allowed| allowed == verb)
                && right.resource == target.resource()
                && right.namespace.as_deref().is_none_or(|namespace| Some(namespace) == target.namespace.as_deref())
                && right.name.as_deref().is_none_or(|name| name == target.name)
        };
        self.users.get(user).is_some_and(|rights| rights.iter().any(allows))
    }
}

/// As the real server says it.
pub fn forbidden(user: &str, verb: &str, target: &Target) -> (u16, Value) {
    let scope = match &target.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let (kind, name, resource, group) = (target.kind(), &target.name, target.resource(), target.group);
    let message = format!(
        "{kind} {name:?} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}"
    );
    status(403, "Forbidden", &message, Some((target.plural, name)))
}
