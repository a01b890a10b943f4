//! Which API server, whom to trust for it, and as whom to speak to it.

use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};

use super::kubeconfig;
use super::material::Material;
use super::server::Server;
use crate::egress::tls;
use crate::policy::host::Host;

/// Where the kubelet mounts a pod's service account.
pub const SERVICE_ACCOUNT_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What tells a pod where the API server is.
pub const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
/// See [`SERVICE_HOST`].
pub const SERVICE_PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Why there is no way to speak to the API server safely. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}; {remedy}")]
pub struct AccessError {
    /// File and field, or variable.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
    /// What would be right.
    pub remedy: String,
}

impl AccessError {
    pub(super) fn new(place: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// The way to one API server.
#[derive(Debug)]
pub struct Access {
    pub(super) server: Server,
    /// Whom its certificate must name.
    pub(super) name: ServerName<'static>,
    pub(super) authority: Material,
    pub(super) token: Option<Material>,
    pub(super) certificate: Option<(Material, Material)>,
    pub(super) namespace: Option<String>,
}

/// What one connection takes.
pub(super) struct Presented {
    pub(super) token: Option<HeaderValue>,
    pub(super) tls: ClientConfig,
}

impl Access {
    /// By the current context of a kubeconfig (`v1` Config, YAML or JSON) as kubectl writes it. All that it names is
    /// read once, so that whatever is wrong with it is said now.
    ///
    /// # Errors
    /// What is missing or wrong, or asks for what this client refuses: no verification, plain HTTP, a program to run, a
    /// password, a proxy, another identity.
    pub fn from_kubeconfig(path: &Path) -> Result<Self, AccessError> {
        kubeconfig::read(path)?.checked()
    }

    /// By the service account of the pod that we run in, mounted at `directory`.
    ///
    /// # Errors
    /// There is none, or part of it is missing or wrong.
    pub fn in_cluster(directory: &Path) -> Result<Self, AccessError> {
        let variable = |name| std::env::var(name).ok();
        let (host, port) = (variable(SERVICE_HOST), variable(SERVICE_PORT));
        Self::in_cluster_at(directory, host.as_deref(), port.as_deref())
    }

    /// The same with the values of [`SERVICE_HOST`] and [`SERVICE_PORT`].
    ///
    /// # Errors
    /// As of [`Access::in_cluster`].
    pub fn in_cluster_at(directory: &Path, host: Option<&str>, port: Option<&str>) -> Result<Self, AccessError> {
        let set = |name: &str, value: Option<&str>| {
            value.filter(|value| !value.is_empty()).map(str::to_owned).ok_or_else(|| {
                AccessError::new(name, "it is not set", "run this as a pod of the cluster, whose containers have it")
            })
        };
        let (host, port) = (set(SERVICE_HOST, host)?, set(SERVICE_PORT, port)?);
        let wrong = |name, problem: String| AccessError::new(name, problem, "expected what the kubelet sets");
        let host = Host::parse(&host).map_err(|error| wrong(SERVICE_HOST, error.to_string()))?;
        let port: u16 = port.parse().map_err(|_| wrong(SERVICE_PORT, "it is no port".to_owned()))?;
        let file = |name: &str| directory.join(name);
        let place = "service account";
        let namespace = std::fs::read_to_string(file("namespace")).ok().map(|text| text.trim().to_owned());
        let access = Self {
            name: server_name(&host.to_string()).map_err(|problem| wrong(SERVICE_HOST, problem))?,
            server: Server { host, port, prefix: String::new() },
            authority: Material::file(place, file("ca.crt")),
            token: Some(Material::file(place, file("token"))),
            certificate: None,
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
        };
        access.checked()
    }

    /// URL of the API server.
    #[must_use]
    pub fn server(&self) -> String {
        self.server.to_string()
    }

    /// Namespace of the context, or of our own pod.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn checked(self) -> Result<Self, AccessError> {
        self.present()?;
        Ok(self)
    }

    /// Reads token, certificates and keys, as they are now.
    pub(super) fn present(&self) -> Result<Presented, AccessError> {
        let token = self.token.as_ref().map(Material::bearer).transpose()?;
        let mut roots = RootCertStore::empty();
        for certificate in self.authority.certificates()? {
            roots.add(certificate).map_err(|error| {
                self.authority.error(format!("a certificate in it cannot be used: {error}"), "expected those of CAs")
            })?;
        }
        let provider = tls::provider();
        let unusable = |error: rustls::Error| AccessError::new("TLS", error.to_string(), "report this");
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(roots);
        let mut config = match &self.certificate {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                config.with_client_auth_cert(certificate.certificates()?, key.key()?).map_err(|error| {
                    key.error(format!("it cannot be used: {error}"), "expected the key of the client certificate")
                })?
            }
        };
        config.alpn_protocols = vec![tls::HTTP1.to_vec()];
        // The next connection reads everything anew and would not find the session again.
        config.resumption = Resumption::disabled();
        Ok(Presented { token, tls: config })
    }
}

/// Whom a certificate must name.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| "it is no name that a certificate could have".to_owned())
}

/// A path in a kubeconfig, which is relative to the file's own directory.
pub(super) fn beside(kubeconfig: &Path, path: &str) -> PathBuf {
    kubeconfig.parent().unwrap_or(Path::new("")).join(path)
}
