//! A kubeconfig (`v1` Config): the current context, its cluster, its user.
//!
//! Read into a tree first and by hand from there: a derived reader's error would quote what it found, and what it finds
//! here are credentials. Unknown keys are passed over, as other clients' extensions live among them; the known ones that
//! would weaken us are not.

use std::path::Path;

use serde_json::{Map, Value};

use super::access::{Access, AccessError, beside, server_name};
use super::material::Material;
use super::server::Server;
use crate::egress::tls::roots::{self, BundleError};

/// Largest kubeconfig: one of a hundred clusters with all certificates written out has half a megabyte.
const CONFIG_BYTES: usize = 2 << 20;

/// Keys of a cluster that are refused, and why.
const CLUSTER_REFUSED: [(&str, &str, &str); 1] =
    [("proxy-url", "proxies are not used", "remove it, and give a server that is reached directly")];

/// The same of a user.
const USER_REFUSED: [(&str, &str, &str); 7] = [
    ("exec", "no program is run for credentials", TOKEN_INSTEAD),
    ("auth-provider", "no provider is asked for credentials", TOKEN_INSTEAD),
    ("username", "passwords are not sent", TOKEN_INSTEAD),
    ("password", "passwords are not sent", TOKEN_INSTEAD),
    ("as", "nobody else is impersonated", "remove it"),
    ("as-uid", "nobody else is impersonated", "remove it"),
    ("as-groups", "nobody else is impersonated", "remove it"),
];
const TOKEN_INSTEAD: &str = "give a tokenFile, a token or a client certificate instead";

/// Reads the file; what it names is not looked at yet.
pub(super) fn read(path: &Path) -> Result<Access, AccessError> {
    let file = path.display().to_string();
    let text = text(path, &file)?;
    // `cni-install` writes JSON, which is YAML that is read in a tenth of the time; of a plugin's few milliseconds that shows.
    let root = serde_json::from_str(&text).or_else(|_| serde_saphyr::from_str(&text));
    let root: Value = root.map_err(|error: serde_saphyr::Error| {
        // The parser's own words may quote the file.
        let place = error
            .location()
            .map_or_else(String::new, |at| format!(", near line {}, column {}", at.line(), at.column()));
        AccessError::new(&file, format!("neither YAML nor JSON{place}"), "expected a kubeconfig as kubectl writes it")
    })?;
    let root = Section::new(&file, "", &root)?;
    if let Some(kind) = root.text("kind")?
        && kind != "Config"
    {
        return Err(root.error("kind", "it is not Config", "expected a kubeconfig as kubectl writes it"));
    }
    let current = root.needed("current-context", "name one of the contexts: kubectl config use-context NAME")?;
    let context = root.named("contexts", "context", current)?;
    let cluster = context.needed("cluster", "name one of the clusters")?;
    let user = context.needed("user", "name one of the users")?;
    let cluster = root.named("clusters", "cluster", cluster)?;
    let user = root.named("users", "user", user)?;

    for (section, refused) in [(&cluster, &CLUSTER_REFUSED[..]), (&user, &USER_REFUSED[..])] {
        section.refuse(refused)?;
    }
    if cluster.is_true("insecure-skip-tls-verify")? {
        let problem = "an unverified server could be anybody's, and would be given the token";
        return Err(cluster.error("insecure-skip-tls-verify", problem, "give the certificate-authority instead"));
    }
    let server = cluster.needed("server", "expected https://HOST:PORT")?;
    let server =
        Server::parse(server).map_err(|problem| cluster.error("server", problem, "expected https://HOST:PORT"))?;
    let name = match cluster.text("tls-server-name")? {
        Some(name) => server_name(name).map_err(|problem| {
            cluster.error("tls-server-name", problem, "expected a name or address of the server's certificate")
        })?,
        None => server_name(&server.host.to_string())
            .map_err(|problem| cluster.error("server", problem, "expected https://HOST:PORT"))?,
    };
    let authority = cluster.material(path, "certificate-authority")?.ok_or_else(|| {
        let remedy = "give the cluster's CA, or certificate-authority-data; the system's own roots are not believed";
        cluster.error("certificate-authority", "it is missing", remedy)
    })?;

    let token = token(path, &user)?;
    let certificate = match (user.material(path, "client-certificate")?, user.material(path, "client-key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(user.error("client-key", "it is missing", "give the client certificate's key")),
        (None, Some(_)) => {
            return Err(user.error("client-certificate", "it is missing", "give the certificate of the client key"));
        }
    };
    if token.is_none() && certificate.is_none() {
        return Err(user.error("", "it holds no credentials", "give a tokenFile, a token or a client certificate"));
    }
    let namespace = context.text("namespace")?.map(str::to_owned);
    Ok(Access { server, name, authority, token, certificate, namespace })
}

fn text(path: &Path, file: &str) -> Result<String, AccessError> {
    const REMEDY: &str = "expected a kubeconfig as kubectl writes it";
    let bytes = roots::read(path).map_err(|error| match error {
        BundleError::Unreadable { source, .. } => {
            AccessError::new(file, source.to_string(), "name a kubeconfig that this process may read")
        }
        _ => AccessError::new(file, "it is too long", REMEDY),
    })?;
    if bytes.len() > CONFIG_BYTES {
        return Err(AccessError::new(file, format!("it is longer than {CONFIG_BYTES} bytes"), REMEDY));
    }
    if bytes.trim_ascii().is_empty() {
        return Err(AccessError::new(file, "it is empty", REMEDY));
    }
    String::from_utf8(bytes).map_err(|_| AccessError::new(file, "it is not UTF-8", REMEDY))
}

/// A file wins over a token that is written out, since that may be an old copy: so does kubectl.
fn token(path: &Path, user: &Section<'_>) -> Result<Option<Material>, AccessError> {
    // The second spelling is the first installer's.
    let (standard, other) = (user.text("tokenFile")?, user.text("token-file")?);
    if let (Some(standard), Some(other)) = (standard, other)
        && standard != other
    {
        return Err(user.error("token-file", "it is not what tokenFile says", "keep tokenFile alone"));
    }
    if let Some(file) = standard.or(other) {
        let key = if standard.is_some() { "tokenFile" } else { "token-file" };
        return Ok(Some(Material::file(user.place(key), beside(path, file))));
    }
    Ok(user.text("token")?.map(|token| Material::inline(user.place("token"), token)))
}

/// A mapping of the file, and how to name what is in it.
struct Section<'v> {
    file: &'v str,
    at: String,
    fields: &'v Map<String, Value>,
}

impl<'v> Section<'v> {
    fn new(file: &'v str, at: &str, value: &'v Value) -> Result<Self, AccessError> {
        let place = if at.is_empty() { file.to_owned() } else { format!("{file}: {at}") };
        match value {
            Value::Object(fields) => Ok(Self { file, at: at.to_owned(), fields }),
            _ => Err(AccessError::new(place, "it is no mapping", "expected a kubeconfig as kubectl writes it")),
        }
    }

    fn place(&self, key: &str) -> String {
        let dot = if self.at.is_empty() || key.is_empty() { "" } else { "." };
        format!("{}: {}{dot}{key}", self.file, self.at)
    }

    fn error(&self, key: &str, problem: impl Into<String>, remedy: impl Into<String>) -> AccessError {
        AccessError::new(self.place(key), problem, remedy)
    }

    /// A value that says anything: clients write null or "" for what they have not set.
    fn set(&self, key: &str) -> Option<&'v Value> {
        self.fields.get(key).filter(|value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        })
    }

    fn text(&self, key: &str) -> Result<Option<&'v str>, AccessError> {
        match self.set(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "it is no text", "write text there, in quotes if it looks like a number")),
        }
    }

    fn needed(&self, key: &str, remedy: &str) -> Result<&'v str, AccessError> {
        self.text(key)?.ok_or_else(|| self.error(key, "it is missing or empty", remedy))
    }

    fn is_true(&self, key: &str) -> Result<bool, AccessError> {
        match self.set(key) {
            None | Some(Value::Bool(false)) => Ok(false),
            Some(Value::Bool(true)) => Ok(true),
            Some(_) => Err(self.error(key, "it is neither true nor false", "remove it")),
        }
    }

    fn refuse(&self, keys: &[(&str, &str, &str)]) -> Result<(), AccessError> {
        match keys.iter().find(|(key, ..)| self.set(key).is_some()) {
            Some((key, problem, remedy)) => Err(self.error(key, *problem, *remedy)),
            None => Ok(()),
        }
    }

    /// Entry `name` of a list such as `clusters: [{name: …, cluster: {…}}]`.
    fn named(&self, list: &str, key: &str, name: &str) -> Result<Section<'v>, AccessError> {
        let none: &[Value] = &[];
        let entries = match self.set(list) {
            None => none,
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(self.error(list, "it is no list", "expected a kubeconfig as kubectl writes it")),
        };
        let mut matching = entries.iter().filter(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
        let entry = matching.next().ok_or_else(|| {
            let names: Vec<_> = entries.iter().filter_map(|entry| entry.get("name")?.as_str()).collect();
            let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            self.error(list, format!("there is no {key} {name:?}"), format!("add it; there is {listed}"))
        })?;
        if matching.next().is_some() {
            return Err(self.error(list, format!("there are two of {name:?}"), "keep one of them"));
        }
        Section::new(self.file, &format!("{list}[{name}].{key}"), entry.get(key).unwrap_or(&Value::Null))
    }

    /// `key-data`, else the file that `key` names.
    fn material(&self, path: &Path, key: &str) -> Result<Option<Material>, AccessError> {
        let data = format!("{key}-data");
        if let Some(text) = self.text(&data)? {
            return Material::encoded(self.place(&data), text).map(Some);
        }
        Ok(self.text(key)?.map(|file| Material::file(self.place(key), beside(path, file))))
    }
}
