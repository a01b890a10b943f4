//! What the plugin asks the API server with: a kubeconfig on the node, and the service account's token and authority beside
//! it, which the kubelet renews for us and we for the plugin.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::kube::Access;

/// Only root's: whoever has the token may do what the service account may.
const MODE: u32 = 0o600;

/// Files of the service account (`ca.crt` and `token` of every projected one).
const AUTHORITY: &str = "ca.crt";
const TOKEN: &str = "token";

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{call} {}: {source}; {remedy}", path.display())]
pub struct CredentialsError {
    /// Which call.
    pub call: &'static str,
    /// Which file.
    pub path: PathBuf,
    /// What the kernel answered.
    pub source: io::Error,
    /// What helps.
    pub remedy: &'static str,
}

/// The credentials on the node.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The kubeconfig; the node has the same path for it.
    kubeconfig: PathBuf,
    /// Where the service account is mounted.
    account: PathBuf,
    /// The API server's URL.
    server: String,
}

impl Credentials {
    /// Those of the service account in `account`, through which `access` goes.
    #[must_use]
    pub fn of(account: &Path, access: &Access, kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), account: account.to_owned(), server: access.server() }
    }

    /// A file beside the kubeconfig, under a name that no runtime takes for a configuration.
    fn beside(&self, name: &str) -> PathBuf {
        let mut path = self.kubeconfig.clone().into_os_string();
        path.push(format!(".{name}"));
        path.into()
    }

    /// The files and what they are to hold. The kubeconfig comes last, since it names the others.
    fn files(&self) -> Result<[(PathBuf, Vec<u8>); 3], CredentialsError> {
        let kubeconfig = (self.kubeconfig.clone(), self.text());
        Ok([(self.beside(AUTHORITY), self.source(AUTHORITY)?), (self.beside(TOKEN), self.source(TOKEN)?), kubeconfig])
    }

    /// Whether what is on the node is what it should be: content, owner and mode.
    ///
    /// # Errors
    /// The service account cannot be read.
    pub fn are_current(&self) -> Result<bool, CredentialsError> {
        Ok(self.files()?.iter().all(|(path, content)| is_current(path, content)))
    }

    /// Brings the files up to date. Whether anything was written.
    ///
    /// # Errors
    /// A file cannot be read or written; each is as it was, or new and whole.
    pub fn write(&self) -> Result<bool, CredentialsError> {
        let mut written = false;
        for (path, content) in self.files()? {
            if !is_current(&path, &content) {
                replace(&path, &content)?;
                written = true;
            }
        }
        Ok(written)
    }

    /// Takes the files away; those that are gone already are as good.
    pub fn remove(&self) {
        for path in [self.kubeconfig.clone(), self.beside(TOKEN), self.beside(AUTHORITY)] {
            let _ = fs::remove_file(unfinished(&path));
            let _ = fs::remove_file(path);
        }
    }

    fn source(&self, name: &str) -> Result<Vec<u8>, CredentialsError> {
        let path = self.account.join(name);
        fs::read(&path).map_err(|source| CredentialsError {
            call: "read",
            path,
            source,
            remedy: "the pod needs a service account whose token is mounted (automountServiceAccountToken)",
        })
    }

    fn text(&self) -> Vec<u8> {
        // JSON is YAML, and kubectl reads it as well.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": {
                "server": self.server, "certificate-authority": self.beside(AUTHORITY),
            }}],
            "users": [{"name": "openshell-cni", "user": {"tokenFile": self.beside(TOKEN)}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "openshell-cni"}}],
            "current-context": "cluster",
        });
        format!("{config:#}\n").into_bytes()
    }
}

fn is_current(path: &Path, content: &[u8]) -> bool {
    let private = |status: &fs::Metadata| {
        status.is_file() && status.mode() & 0o7777 == MODE && status.uid() == nix::unistd::geteuid().as_raw()
    };
    fs::symlink_metadata(path).is_ok_and(|status| private(&status))
        && fs::read(path).is_ok_and(|found| found == content)
}

/// What a file is called while it is written.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Whoever reads finds the whole old file or the whole new one, and after a loss of power too.
fn replace(path: &Path, content: &[u8]) -> Result<(), CredentialsError> {
    let failed = |call| {
        move |source| CredentialsError {
            call,
            path: path.to_owned(),
            source,
            remedy: "its directory on the node must be mounted here, under the same path, and writable",
        }
    };
    let temporary = unfinished(path);
    // One that a predecessor left may have any mode, or be a link.
    let _ = fs::remove_file(&temporary);
    if let Some(directory) = path.parent() {
        // A node whose network has not come up yet may not have it.
        fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&temporary)
        .map_err(failed("make a file to replace"))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed("write a file to replace"))?;
    fs::rename(&temporary, path).map_err(failed("replace"))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("bring to the disk the name of"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::kube::tests::Cluster;

    #[test]
    fn the_plugin_is_given_what_the_kubelet_renews() {
        let cluster = Cluster::start();
        let directory = tempfile::tempdir().unwrap();
        let account = directory.path().join("account");
        fs::create_dir(&account).unwrap();
        let renew = |token: &str| fs::write(account.join(TOKEN), token).unwrap();
        renew("first");
        fs::write(account.join(AUTHORITY), cluster.api.ca()).unwrap();
        let address = cluster.api.address();
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let access = Access::in_cluster_at(&account, Some(&host), Some(&port)).unwrap();
        let kubeconfig = directory.path().join("openshell-cni-kubeconfig");
        let credentials = Credentials::of(&account, &access, &kubeconfig);
        assert!(!credentials.are_current().unwrap());
        assert!(credentials.write().unwrap() && credentials.are_current().unwrap());
        assert!(!credentials.write().unwrap(), "nothing had changed");
        // What was written is what a client can use.
        assert_eq!(Access::from_kubeconfig(&kubeconfig).unwrap().server(), access.server());
        for name in ["openshell-cni-kubeconfig", "openshell-cni-kubeconfig.token", "openshell-cni-kubeconfig.ca.crt"] {
            let path = directory.path().join(name);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, MODE, "{name}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            assert!(!credentials.are_current().unwrap(), "{name}");
            credentials.write().unwrap();
        }
        renew("second");
        assert!(!credentials.are_current().unwrap() && credentials.write().unwrap());
        assert_eq!(fs::read_to_string(directory.path().join("openshell-cni-kubeconfig.token")).unwrap(), "second");
        fs::remove_file(account.join(TOKEN)).unwrap();
        assert!(credentials.write().unwrap_err().to_string().contains("automountServiceAccountToken"));
        // One that was killed over its work leaves a token as well.
        fs::write(directory.path().join("openshell-cni-kubeconfig.token.new"), "half").unwrap();
        credentials.remove();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
