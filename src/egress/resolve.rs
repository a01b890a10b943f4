//! Names to addresses, without the C library: the hosts file first, then the servers of resolv.conf with its search
//! list, ndots, attempts and timeout (resolv.conf(5)). Both files are read again when they change, since a container's
//! runtime may write them late.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;

use super::limits;

/// Why a name has no address.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    /// A file that should say how to resolve does not.
    #[error(
        "{name} cannot be resolved: {path}: {reason}; it should list name servers, or the hosts file should list the name"
    )]
    Configuration {
        /// The name asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The name servers know no address.
    #[error("{name} has no address: {reason}")]
    NotFound {
        /// The name asked for.
        name: String,
        /// What they said.
        reason: String,
    },
    /// No name server answered in time.
    #[error("no name server answered for {name} within {} s", limits::RESOLVE_TIME.as_secs())]
    TimedOut {
        /// The name asked for.
        name: String,
    },
}

/// Identity of a file's content, as far as stat(2) shows it.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
}

type Hosts = HashMap<Box<str>, Vec<IpAddr>>;

/// Resolves names.
#[derive(Debug)]
pub struct Resolver {
    hosts_path: PathBuf,
    servers_path: PathBuf,
    /// Port of the name servers: resolv.conf cannot say.
    server_port: u16,
    hosts: Mutex<(Stamp, Arc<Hosts>)>,
    servers: Mutex<Option<(Stamp, Arc<TokioResolver>)>>,
}

impl Default for Resolver {
    /// The system's files.
    fn default() -> Self {
        Self::new("/etc/hosts", "/etc/resolv.conf", 53)
    }
}

impl Resolver {
    /// Resolves by the files given, name servers listening on `server_port`. Neither file needs to exist yet.
    #[must_use]
    pub fn new(hosts: impl Into<PathBuf>, servers: impl Into<PathBuf>, server_port: u16) -> Self {
        Self {
            hosts_path: hosts.into(),
            servers_path: servers.into(),
            server_port,
            hosts: Mutex::default(),
            servers: Mutex::default(),
        }
    }

    /// All addresses of a canonical name, never none.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if let Some(addresses) = self.hosts().get(name) {
            return Ok(addresses.clone());
        }
        let servers = self.servers(name)?;
        match tokio::time::timeout(limits::RESOLVE_TIME, servers.lookup_ip(name)).await {
            Err(_) | Ok(Err(NetError::Timeout)) => Err(ResolveError::TimedOut { name: name.to_owned() }),
            Ok(Err(error)) => Err(ResolveError::NotFound { name: name.to_owned(), reason: reason(&error) }),
            Ok(Ok(found)) => {
                let mut addresses: Vec<IpAddr> = Vec::new();
                for address in found.iter() {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                if addresses.is_empty() {
                    return Err(ResolveError::NotFound {
                        name: name.to_owned(),
                        reason: "no A or AAAA record".to_owned(),
                    });
                }
                Ok(addresses)
            }
        }
    }

    /// Forgets what name servers have answered.
    pub(crate) fn forget(&self) {
        *self.servers.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn hosts(&self) -> Arc<Hosts> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.hosts_path);
        if hosts.0 != now {
            // A hosts file that cannot be read is an empty one, as for every resolver.
            let text = read(&self.hosts_path).unwrap_or_default();
            *hosts = (now, Arc::new(parse_hosts(&text)));
        }
        hosts.1.clone()
    }

    fn servers(&self, name: &str) -> Result<Arc<TokioResolver>, ResolveError> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.servers_path);
        if let Some((known, resolver)) = servers.as_ref()
            && *known == now
        {
            return Ok(resolver.clone());
        }
        let resolver = self.build().map(Arc::new).map_err(|reason| ResolveError::Configuration {
            name: name.to_owned(),
            path: self.servers_path.clone(),
            reason,
        })?;
        *servers = Some((now, resolver.clone()));
        Ok(resolver)
    }

    fn build(&self) -> Result<TokioResolver, String> {
        let text = read(&self.servers_path).map_err(|error| error.to_string())?;
        let (mut config, mut options) = parse_resolv_conf(text).map_err(|error| error.to_string())?;
        for server in &mut config.name_servers {
            for connection in &mut server.connections {
                connection.port = self.server_port;
            }
        }
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.cache_size = limits::RESOLVE_CACHE_ENTRIES;
        options.positive_max_ttl = Some(limits::RESOLVE_CACHE_TIME);
        // A name that was missing a moment ago is often one that is just being created.
        options.negative_max_ttl = Some(std::time::Duration::from_secs(1));
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(options)
            .build()
            .map_err(|error| error.to_string())
    }
}

fn reason(error: &NetError) -> String {
    if error.is_nx_domain() {
        "no such name (NXDOMAIN)".to_owned()
    } else if error.is_no_records_found() {
        "no A or AAAA record".to_owned()
    } else {
        error.to_string()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limits::RESOLVE_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// hosts(5): an address, then names; `#` starts a comment. Lines of one name add up.
fn parse_hosts(text: &[u8]) -> Hosts {
    let mut hosts = Hosts::new();
    for line in String::from_utf8_lossy(text).lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        for name in words {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let addresses = hosts.entry(name.into()).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    hosts
}
