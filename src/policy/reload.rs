//! Following the policy's files as they change.
//!
//! Editors rename a new file over the old one, some write in place, and the kubelet swaps the link `..data` of a
//! ConfigMap volume. All of them show in the directories that hold the files, so those are watched, by inotify(7), and
//! never the files, whose watch would die with the inode. A slow tick covers what inotify cannot see: a directory that
//! was replaced, a network file system.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::InotifyEvent;
use tokio::time::{Instant, sleep_until};

use super::problem::LoadError;
use super::store::{OnInvalid, ReloadOutcome, Store};
use crate::event::{Events, Severity};
use crate::sys::notify::{Directories, Settling};

/// An editor's several steps become one reload.
const SETTLING: Settling = Settling { quiet: Duration::from_millis(100), at_most: Duration::from_secs(2) };

/// How long a change that inotify did not see can go unnoticed. The files are small, and unchanged ones cost a hash.
const TICK: Duration = Duration::from_secs(30);

/// The link that the kubelet swaps in ConfigMap and Secret volumes.
const CONFIG_MAP_LINK: &str = "..data";

/// Follows the files of `store` until the task is dropped; returns at once where nothing comes from a file.
pub async fn watch(store: Arc<Store>, events: Events) {
    count_generation(&events, store.current().generation);
    let files: Vec<PathBuf> = store.sources().files().into_iter().map(Path::to_owned).collect();
    if files.is_empty() {
        return;
    }
    let mut watcher = match Watcher::new(files) {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let message = format!(
                "inotify is not available ({error}); a changed policy is noticed within {} seconds",
                TICK.as_secs()
            );
            events.find(Severity::Low, "policy-watch", message);
            None
        }
    };
    loop {
        match &mut watcher {
            Some(watcher) => watcher.changed(Instant::now() + TICK).await,
            None => sleep_until(Instant::now() + TICK).await,
        }
        let (store, events) = (Arc::clone(&store), events.clone());
        // Compiling rules takes milliseconds, which the connections of this thread should not wait for. A panic in
        // there would have been a defect of ours; the generation in force stays either way.
        let _ = tokio::task::spawn_blocking(move || apply(&store, &events)).await;
    }
}

/// Reloads and says what came of it; an invalid file is reported once for each thing that is wrong with it.
///
/// # Errors
///
/// The new contents are invalid; see [`Store::reload`].
pub fn apply(store: &Store, events: &Events) -> Result<ReloadOutcome, LoadError> {
    let outcome = store.reload();
    match &outcome {
        Ok(ReloadOutcome::Unchanged) => {
            if store.clear_reported() {
                let message = "the policy's files hold again what is in force".to_owned();
                events.find(Severity::Informational, "policy-reloaded", message);
            }
        }
        Ok(ReloadOutcome::Replaced { generation, static_change }) => {
            store.clear_reported();
            events.metrics().policy_reloads_loaded.inc();
            count_generation(events, *generation);
            let message = format!("policy generation {generation} is in force");
            events.find(Severity::Informational, "policy-reloaded", message);
            if *static_change {
                let message = "filesystem_policy, landlock or process changed in the policy file; they are enforced when \
                               the workload starts, so those of the start stay in force: restart the sandbox to apply them";
                events.find(Severity::Medium, "policy-static-change", message.to_owned());
            }
        }
        Err(error) => {
            if store.report_once(error) {
                let held = match store.sources().on_invalid {
                    OnInvalid::KeepLast => "the last valid policy stays in force",
                    OnInvalid::DenyAll => "everything is denied until it is corrected",
                };
                let message = format!("the changed policy is invalid, and {held}: {error}");
                events.metrics().policy_reloads_refused.inc();
                count_generation(events, store.current().generation);
                events.find(Severity::High, "policy-invalid", message);
            }
        }
    }
    outcome
}

fn count_generation(events: &Events, generation: u64) {
    events.metrics().policy_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
}

struct Watcher {
    directories: Directories,
    files: Vec<PathBuf>,
    /// Names whose events count; a busy directory such as /tmp has many others.
    names: BTreeSet<OsString>,
}

impl Watcher {
    fn new(files: Vec<PathBuf>) -> std::io::Result<Self> {
        let mut watcher = Self { directories: Directories::none()?, files, names: BTreeSet::new() };
        watcher.arm();
        Ok(watcher)
    }

    /// Watches the directory that each file is named in, and the one that it really lies in. One on a directory that is gone
    /// comes back with the directory, at the next tick.
    fn arm(&mut self) {
        self.names = BTreeSet::from([OsString::from(CONFIG_MAP_LINK)]);
        for file in &self.files {
            for path in std::iter::once(file.clone()).chain(std::fs::canonicalize(file)) {
                self.names.extend(path.file_name().map(ToOwned::to_owned));
                let directory = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent,
                    _ => Path::new("."),
                };
                self.directories.watch(directory);
            }
        }
    }

    /// Waits until something changed and came to rest, or until `tick`.
    async fn changed(&mut self, tick: Instant) {
        self.arm();
        let concerns = |event: &InotifyEvent| event.name.as_ref().is_some_and(|name| self.names.contains(name));
        self.directories.changed(tick, SETTLING, concerns).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::event::Event;
    use crate::policy::{PolicySource, Sources};

    /// Longer than any settling, much shorter than the tick: what arrives in time came by inotify.
    const SOON: Duration = Duration::from_secs(10);

    fn text(host: &str) -> String {
        format!("{{version: 1, network_policies: {{k: {{endpoints: [{{host: {host}, port: 443}}]}}}}}}")
    }

    fn store(file: &Path, on_invalid: OnInvalid) -> Arc<Store> {
        let mut sources = Sources::new(PolicySource::File(file.to_owned()));
        sources.on_invalid = on_invalid;
        Store::open(sources).unwrap()
    }

    fn host(store: &Store) -> String {
        store.current().policy.network.first().map_or_else(String::new, |entry| entry.endpoints[0].to_string())
    }

    /// Runs `change` under a watch and waits for the generation that it brings.
    fn follows(store: &Arc<Store>, change: impl FnOnce()) -> u64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut generation = store.subscribe();
            generation.mark_unchanged();
            let task = tokio::spawn(watch(Arc::clone(store), Events::off()));
            // The watch is armed at its first poll.
            tokio::time::sleep(Duration::from_millis(50)).await;
            change();
            tokio::time::timeout(SOON, generation.changed()).await.expect("no new generation").unwrap();
            task.abort();
            *generation.borrow()
        })
    }

    #[test]
    fn a_file_written_in_place_is_reloaded() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        std::fs::write(&file, text("a.example.com")).unwrap();
        let store = store(&file, OnInvalid::KeepLast);
        assert_eq!(follows(&store, || std::fs::write(&file, text("b.example.com")).unwrap()), 2);
        assert_eq!(host(&store), "b.example.com:443");
    }

    #[test]
    fn a_file_renamed_over_is_reloaded_and_so_is_one_that_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let file = at("policy.yaml");
        std::fs::write(&file, text("a.example.com")).unwrap();
        let store = store(&file, OnInvalid::KeepLast);
        let rename = |host: &str| {
            std::fs::write(at("new"), text(host)).unwrap();
            std::fs::rename(at("new"), &file).unwrap();
        };
        follows(&store, || rename("b.example.com"));
        assert_eq!(host(&store), "b.example.com:443");
        follows(&store, || {
            std::fs::remove_file(&file).unwrap();
            rename("c.example.com");
        });
        assert_eq!(host(&store), "c.example.com:443");
    }

    #[test]
    fn a_config_map_s_swap_is_reloaded() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let publish = |version: &str, host: &str| {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("policy.yaml"), text(host)).unwrap();
            symlink(version, at("..data_tmp")).unwrap();
            std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        };
        publish("..1", "a.example.com");
        symlink("..data/policy.yaml", at("policy.yaml")).unwrap();
        let store = store(&at("policy.yaml"), OnInvalid::KeepLast);
        follows(&store, || publish("..2", "b.example.com"));
        assert_eq!(host(&store), "b.example.com:443");
    }

    #[test]
    fn a_bad_file_is_reported_once_and_the_last_good_one_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        std::fs::write(&file, text("a.example.com")).unwrap();
        let store = store(&file, OnInvalid::KeepLast);
        let (events, recorded) = Events::recorded();
        let kinds = || -> Vec<&'static str> {
            let mut recorded = recorded.lock().unwrap();
            let kind = |event: Event| match event {
                Event::Finding(finding) => finding.kind,
                _ => "other",
            };
            recorded.drain(..).map(kind).collect()
        };
        std::fs::write(&file, "version: 9").unwrap();
        assert!(apply(&store, &events).is_err());
        assert!(apply(&store, &events).is_err());
        assert_eq!(kinds(), ["policy-invalid"]);
        assert_eq!(host(&store), "a.example.com:443");
        std::fs::write(&file, "version: 8").unwrap();
        assert!(apply(&store, &events).is_err());
        assert_eq!(kinds(), ["policy-invalid"]);
        std::fs::write(&file, text("a.example.com")).unwrap();
        assert_eq!(apply(&store, &events), Ok(ReloadOutcome::Unchanged));
        assert_eq!(kinds(), ["policy-reloaded"]);
        std::fs::write(
            &file,
            text("a.example.com").replace("version: 1,", "version: 1, landlock: {compatibility: hard_requirement},"),
        )
        .unwrap();
        assert!(apply(&store, &events).is_ok());
        assert_eq!(kinds(), ["policy-reloaded", "policy-static-change"]);
        assert_eq!(events.metrics().policy_reloads_refused.get(), 2);
        assert_eq!(events.metrics().policy_generation.get(), 2);
    }

    #[test]
    fn nothing_is_watched_where_nothing_is_read_from_a_file() {
        let policy = crate::policy::Policy::restrictive_default();
        let store = Store::open(Sources::new(PolicySource::BuiltIn(Box::new(policy)))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(watch(store, Events::off()));
    }
}
