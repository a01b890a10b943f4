//! What is called. A path is made of names that have been checked, so that none of them can lead elsewhere.

use std::fmt;

/// A DNS label (RFC 1123 §2.1), and a subdomain of labels.
const LABEL_BYTES: usize = 63;
const SUBDOMAIN_BYTES: usize = 253;

/// A name that no object can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {name:?} is no name of Kubernetes; expected at most {most} of a-z, 0-9, '-'{dots}, with a letter or digit \
     at either end", dots = if *most == LABEL_BYTES { "" } else { " and '.'" }
)]
pub struct NameError {
    /// What it should name.
    pub what: &'static str,
    /// As much of it as is worth showing.
    pub name: String,
    /// Bytes that such a name has at most.
    pub most: usize,
}

/// An object of the API, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource(String);

impl Resource {
    /// A pod.
    ///
    /// # Errors
    /// A name that no pod or namespace has.
    pub fn pod(namespace: &str, name: &str) -> Result<Self, NameError> {
        let (namespace, name) = (label("namespace", namespace)?, subdomain("pod", name)?);
        Ok(Self(format!("/api/v1/namespaces/{namespace}/pods/{name}")))
    }

    /// A node.
    ///
    /// # Errors
    /// A name that no node has.
    pub fn node(name: &str) -> Result<Self, NameError> {
        Ok(Self(format!("/api/v1/nodes/{}", subdomain("node", name)?)))
    }

    /// A node's status, which has rights of its own.
    ///
    /// # Errors
    /// A name that no node has.
    pub fn node_status(name: &str) -> Result<Self, NameError> {
        Ok(Self(Self::node(name)?.0 + "/status"))
    }

    /// A DaemonSet.
    ///
    /// # Errors
    /// A name that no DaemonSet or namespace has.
    pub fn daemon_set(namespace: &str, name: &str) -> Result<Self, NameError> {
        let (namespace, name) = (label("namespace", namespace)?, subdomain("DaemonSet", name)?);
        Ok(Self(format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
}

fn label<'n>(what: &'static str, name: &'n str) -> Result<&'n str, NameError> {
    check(what, name, LABEL_BYTES, is_label(name))
}

fn subdomain<'n>(what: &'static str, name: &'n str) -> Result<&'n str, NameError> {
    check(what, name, SUBDOMAIN_BYTES, name.split('.').all(is_label))
}

fn check<'n>(what: &'static str, name: &'n str, most: usize, well_formed: bool) -> Result<&'n str, NameError> {
    if well_formed && name.len() <= most {
        return Ok(name);
    }
    Err(NameError { what, name: name.chars().take(LABEL_BYTES).collect(), most })
}
