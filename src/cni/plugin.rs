//! The commands: what is to be fenced, and the fence.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use tokio::time::sleep;

use super::call::{Call, Command};
use super::config::{Config, NEWEST, SPOKEN, Settings};
use super::error::{
    API_REFUSED, CREDENTIALS, CniError, FENCE, INVALID_CONFIG, INVALID_ENVIRONMENT, IO_FAILURE, NOT_AVAILABLE,
    TRY_AGAIN,
};
use super::log::Log;
use super::namespace;
use super::pod::Pod;
use super::readiness::NOBODY;
use crate::contract::Ids;
use crate::fence::exempt::Exempt;
use crate::fence::{self, pod as pod_fence};
use crate::kube::{Access, ApiError, Client, Resource, within};
use crate::sys::netlink::{Protocol, Socket};

/// All that is asked of the API server for one pod, tries included. The kubelet gives a runtime two minutes for a pod's
/// sandbox (`runtimeRequestTimeout`), the other plugins' part among them, and tries again by itself.
const API_TIME: Duration = Duration::from_secs(20);

/// One try of it.
const CALL_TIME: Duration = Duration::from_secs(5);

/// All that STATUS asks; runtimes ask it every few seconds, one by one.
const STATUS_TIME: Duration = Duration::from_secs(3);

/// Where STATUS asks for a pod that is not there: a namespace that every cluster has.
const ANY_NAMESPACE: &str = "default";

/// How long a pod that the kubelet knows may be unknown to the API server: a server that answers from its cache lags
/// behind the one that told the kubelet by less than this, or is in trouble.
const ARRIVAL: Duration = Duration::from_secs(3);

/// Between two looks for it.
const LOOK_AGAIN: Duration = Duration::from_millis(150);

/// What the runtime is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// For standard output: a result, an error, or nothing.
    pub output: Option<String>,
    /// 0, or 1 with an error.
    pub exit_code: u8,
}

/// Serves one call: the environment by name, and what standard input gave.
pub fn serve(input: &[u8], variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Reply {
    // The fence goes with the namespace. Taking it down any earlier would open the pod for as long as that lives; and what
    // ends must not hang on how it is called, or on what it was configured by.
    if variable("CNI_COMMAND").is_some_and(|command| command == Command::Del.name()) {
        return Reply { output: None, exit_code: 0 };
    }
    let call = Call::of(variable);
    let config = Config::read(input);
    let settings = config.as_ref().ok().and_then(|config| config.settings().ok());
    let log = Log::at(settings.and_then(|settings| settings.log_file.as_deref()));
    let known = call.as_ref().ok().cloned();
    let outcome = call.and_then(|call| carry_out(&call, &config, &log));
    match outcome {
        Ok(output) => Reply { output, exit_code: 0 },
        Err(error) => {
            log.note(known.as_ref(), &format!("status=error code={} error={error}", error.code));
            let version = config.as_ref().map_or(NEWEST, Config::version_text);
            Reply { output: Some(error.object(version)), exit_code: 1 }
        }
    }
}

/// For `cni-install`, which waits for it, and looks at when it was last touched. Nothing else depends on it.
fn leave_mark(path: &Path) {
    if let Some(directory) = path.parent() {
        let _ = std::fs::create_dir_all(directory);
    }
    let opened =
        OpenOptions::new().write(true).create(true).truncate(false).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let _ = opened.and_then(|mark| mark.set_modified(SystemTime::now()));
}

fn carry_out(call: &Call, config: &Result<Config<'_>, CniError>, log: &Log) -> Result<Option<String>, CniError> {
    match call.command {
        Command::Version => return Ok(Some(versions(config.as_ref().map_or(NEWEST, Config::version_text)))),
        Command::Del => return Ok(None),
        _ => {}
    }
    let config = config.as_ref().map_err(Clone::clone)?;
    config.version_for(call.command)?;
    let settings = config.settings()?;
    match call.command {
        Command::Add => {
            if let Some(path) = &settings.called_file {
                leave_mark(path);
            }
            if let Some(proxy) = sandbox(call, settings)? {
                namespace::enter(netns(call)?)?;
                let family = pod_fence::raise(proxy).map_err(failed)?;
                let Ids { uid, gid } = proxy.ids();
                log.note(Some(call), &format!("status=fenced family={} proxy={uid}:{gid}", family.name()));
            }
            Ok(Some(result(config)))
        }
        Command::Check => {
            if let Some(proxy) = sandbox(call, settings)? {
                namespace::enter(netns(call)?)?;
                pod_fence::verify(proxy).map_err(failed)?;
            }
            Ok(None)
        }
        Command::Status => status(settings).map(|()| None),
        // Nothing is kept outside of the namespaces that fences stand in.
        Command::Gc | Command::Del | Command::Version => Ok(None),
    }
}

fn versions(asked: &str) -> String {
    serde_json::json!({"cniVersion": asked, "supportedVersions": SPOKEN}).to_string()
}

/// What the plugins before have come to, untouched; where there were none, that nothing was made.
fn result(config: &Config<'_>) -> String {
    match config.prev_result {
        Some(previous) => previous.get().to_owned(),
        None => serde_json::json!({
            "cniVersion": config.version_text(), "interfaces": [], "ips": [], "routes": [], "dns": {}
        })
        .to_string(),
    }
}

fn netns(call: &Call) -> Result<&Path, CniError> {
    call.netns
        .as_deref()
        .ok_or_else(|| CniError::new(INVALID_ENVIRONMENT, "invalid environment", "CNI_NETNS is missing"))
}

fn failed(error: fence::Error) -> CniError {
    CniError::new(FENCE, "no fence", error)
}

/// Whom the fence of this pod lets out; `None` where there is to be none. Pods of other namespaces cost nothing, and do
/// not depend on anything.
fn sandbox(call: &Call, settings: &Settings) -> Result<Option<Exempt>, CniError> {
    let namespaces = &settings.sandbox_namespaces;
    let Some(namespace) = &call.pod.namespace else {
        // No pod of Kubernetes.
        return Ok(None);
    };
    if !namespaces.is_empty() && !namespaces.contains(namespace) {
        return Ok(None);
    }
    let name = call.pod.name.as_deref().ok_or_else(|| {
        CniError::new(INVALID_ENVIRONMENT, "invalid environment", "CNI_ARGS has K8S_POD_NAMESPACE and no K8S_POD_NAME")
    })?;
    let resource = Resource::pod(namespace, name)
        .map_err(|error| CniError::new(INVALID_ENVIRONMENT, "invalid environment", format!("CNI_ARGS: {error}")))?;
    let access = Access::from_kubeconfig(&settings.kubeconfig)
        .map_err(|error| CniError::new(CREDENTIALS, "no credentials for the API server", error))?;
    let client = Client::new(access).with_call_time(CALL_TIME);
    let pod = runtime()?.block_on(find(&client, &resource, call.pod.uid.as_deref()))?;
    // Whose words these are is not taken for granted.
    let metadata = &pod.metadata;
    if pod.kind != "Pod" || metadata.name != name || metadata.namespace != *namespace {
        let details = format!(
            "asked for {resource}, the API server answers with {:?} {}/{}",
            pod.kind, metadata.namespace, metadata.name
        );
        return Err(CniError::new(API_REFUSED, "the pod cannot be looked up", details));
    }
    pod.exempt(&settings.runtime_classes)
}

/// The pod. A server that does not know it yet, or still knows an earlier one of its name, is asked again.
async fn find(client: &Client, resource: &Resource, uid: Option<&str>) -> Result<Pod, CniError> {
    let begun = Instant::now();
    loop {
        let left = API_TIME.saturating_sub(begun.elapsed());
        let doubt = match within(left, async || client.get::<Pod>(resource).await).await {
            Ok(pod) if uid.is_none_or(|uid| uid == pod.metadata.uid) => return Ok(pod),
            Ok(pod) => format!(
                "{resource} has uid {}, and the runtime asks for {}: the API server knows another pod of this name, or \
                 this is a static pod, which cannot be a sandbox",
                pod.metadata.uid,
                uid.unwrap_or_default()
            ),
            Err(error) if error.is_not_found() => format!("{error}; the pod was deleted, or is a static pod"),
            Err(error) => return Err(refusal(&error)),
        };
        if begun.elapsed() + LOOK_AGAIN > ARRIVAL {
            return Err(CniError::new(API_REFUSED, "the pod cannot be looked up", doubt));
        }
        sleep(LOOK_AGAIN).await;
    }
}

fn refusal(error: &ApiError) -> CniError {
    let code = if error.is_transient() { TRY_AGAIN } else { API_REFUSED };
    CniError::new(code, "the pod cannot be looked up", error)
}

/// Whether ADD could be served. A runtime whose plugin says no takes its node for unready, for all pods; so where sandboxes
/// have namespaces of their own, and everybody else would be served all the same, that is not said: the node's label is
/// what tells of sandboxes. Where any pod may be one, no pod can be served without the API server, and that is asked. (Never
/// that running pods are cut off, code 51: fences stand by themselves.)
fn status(settings: &Settings) -> Result<(), CniError> {
    if !settings.sandbox_namespaces.is_empty() {
        return Ok(());
    }
    let unavailable = |details: String| CniError::new(NOT_AVAILABLE, "no pod can be served", details);
    Socket::open(Protocol::Netfilter).map_err(|error| unavailable(fence::Error::Socket(error).to_string()))?;
    let access = Access::from_kubeconfig(&settings.kubeconfig).map_err(|error| unavailable(error.to_string()))?;
    let nobody = Resource::pod(ANY_NAMESPACE, NOBODY).map_err(|error| unavailable(error.to_string()))?;
    let client = Client::new(access).with_call_time(STATUS_TIME);
    match runtime()?.block_on(client.metadata(&nobody)) {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(unavailable(error.to_string())),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, CniError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CniError::new(IO_FAILURE, "I/O failure", format!("runtime: {error}")))
}

/// A configuration that no runtime would have read.
#[must_use]
pub fn too_long(limit: u64) -> Reply {
    let error = CniError::new(
        INVALID_CONFIG,
        "invalid network configuration",
        format!("standard input has more than {limit} bytes, which no network configuration has"),
    );
    Reply { output: Some(error.object(NEWEST)), exit_code: 1 }
}
