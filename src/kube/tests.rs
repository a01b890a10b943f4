//! Against the stand-in of the black-box tests: real connections, real TLS.

#[allow(dead_code, reason = "the black-box tests use the same stand-in, and other parts of it")]
#[path = "../../tests/kubernetes/mod.rs"]
pub(crate) mod kubernetes;

mod access;
mod calls;
mod trust;

use std::path::PathBuf;

use tempfile::TempDir;

use self::kubernetes::{ApiServer, objects, rights};
use super::{Access, Client};

/// A stand-in with a pod and a node, and a client that may read the one and change the other.
pub(crate) struct Cluster {
    pub(crate) api: ApiServer,
    pub(crate) token: String,
    directory: TempDir,
}

pub(crate) const USER: &str = "system:serviceaccount:openshell:cni";

impl Cluster {
    pub(crate) fn start() -> Self {
        let api = ApiServer::start();
        api.put(&objects::pod("agents", "a-0", "uid-1", &[("openshell.ai/cni", "enabled")]));
        api.put(&objects::node("n1", &[]));
        let token = api.token(USER, &[rights::pods("agents"), rights::nodes(&["get", "patch"])]);
        api.forget();
        Self { api, token, directory: TempDir::new().unwrap() }
    }

    /// A file next to the kubeconfigs.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn access(&self) -> Access {
        Access::from_kubeconfig(&self.file("config", self.api.kubeconfig(&self.token))).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.access())
    }
}
