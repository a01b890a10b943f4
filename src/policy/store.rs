//! The policy in force: loaded whole, swapped whole, and the last good one kept when a new one is not.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::document::Document;
use super::engine::{Engine, RegoEngine};
use super::problem::LoadError;
use super::schema::{read_bounded, read_bytes};
use super::snapshot::{Settings, Snapshot};
use super::{Compatibility, Filesystem, Policy, ProcessIdentity};

/// Largest module of compiled rules: `opa build` makes some 350 kB of fifty endpoints, and the shipped rules need none.
const MAX_MODULE_BYTES: u64 = 16 * 1024 * 1024;

/// Where the policy comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicySource {
    /// A file, read again when it changes.
    File(PathBuf),
    /// A policy that was made here: the restrictive default, or `--allow`.
    BuiltIn(Box<Policy>),
}

/// What to do when a changed policy is invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalid {
    /// Stay with the last valid one.
    #[default]
    KeepLast,
    /// Refuse everything until it is corrected.
    DenyAll,
}

/// Everything that decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Sources {
    /// The policy.
    pub policy: PolicySource,
    /// Rego in place of the shipped rules.
    pub rules: Option<PathBuf>,
    /// The same, of no file: what decides while a policy is learned.
    pub own_rules: Option<&'static str>,
    /// A module compiled by `opa build -t wasm`, in place of Rego.
    pub wasm: Option<PathBuf>,
    /// Whether binaries count; not in relaxed mode.
    pub require_identity: bool,
    /// What to do when a changed file is invalid.
    pub on_invalid: OnInvalid,
    /// Where the workload's file system is seen, to follow the links of programs' paths: `/`, or `/proc/PID/root`.
    pub root: PathBuf,
}

impl Sources {
    /// A policy with the shipped rules, identity required, seen from the root that the supervisor shares.
    #[must_use]
    pub fn new(policy: PolicySource) -> Self {
        Self {
            policy,
            rules: None,
            own_rules: None,
            wasm: None,
            require_identity: true,
            on_invalid: OnInvalid::default(),
            root: PathBuf::from("/"),
        }
    }

    /// The files that decide, which the workload must not be able to write.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let policy = match &self.policy {
            PolicySource::File(path) => Some(path.as_path()),
            PolicySource::BuiltIn(_) => None,
        };
        policy.into_iter().chain(self.rules.as_deref()).chain(self.wasm.as_deref()).collect()
    }

    fn read(&self) -> Result<Contents, LoadError> {
        if let (Some(_), Some(wasm)) = (&self.rules, &self.wasm) {
            let message = "given together with Rego rules; one of them decides";
            return Err(LoadError::of_file(wasm.display(), message, "give either --policy-rules or --policy-wasm"));
        }
        Ok(Contents {
            policy: match &self.policy {
                PolicySource::File(path) => Some(read_bounded(path)?),
                PolicySource::BuiltIn(_) => None,
            },
            rules: match self.own_rules {
                Some(rules) => Some(rules.to_owned()),
                None => self.rules.as_deref().map(read_bounded).transpose()?,
            },
            wasm: self.wasm.as_deref().map(|path| read_bytes(path, MAX_MODULE_BYTES)).transpose()?,
        })
    }
}

/// The bytes of all sources at one time.
struct Contents {
    policy: Option<String>,
    rules: Option<String>,
    wasm: Option<Vec<u8>>,
}

impl Contents {
    fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        let parts =
            [self.policy.as_deref().map(str::as_bytes), self.rules.as_deref().map(str::as_bytes), self.wasm.as_deref()];
        for part in parts.into_iter().map(Option::unwrap_or_default) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

type Fingerprint = [u8; 32];

/// The sections that are enforced once, when the workload is launched.
#[derive(Clone, Debug, PartialEq)]
struct StaticSections {
    filesystem: Filesystem,
    landlock: Compatibility,
    process: ProcessIdentity,
}

impl StaticSections {
    fn of(policy: &Policy) -> Self {
        Self { filesystem: policy.filesystem.clone(), landlock: policy.landlock, process: policy.process.clone() }
    }

    fn impose(&self, policy: &mut Policy) {
        policy.filesystem = self.filesystem.clone();
        policy.landlock = self.landlock;
        policy.process = self.process.clone();
    }
}

/// What a reload did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// The files hold what is in force already.
    Unchanged,
    /// A new generation is in force.
    Replaced {
        /// Its number.
        generation: u64,
        /// The file's static sections differ from those that the sandbox started with, which stay.
        static_change: bool,
    },
}

/// The policy in force, and how to replace it.
#[derive(Debug)]
pub struct Store {
    sources: Sources,
    current: ArcSwap<Snapshot>,
    generation: watch::Sender<u64>,
    start: StaticSections,
    /// What the current generation was made of; `None` while everything is denied for want of a valid policy. Held
    /// while reloading, so that generations follow one another.
    applied: Mutex<Option<Fingerprint>>,
    /// The last error that was reported, so that each is reported once.
    reported: Mutex<Option<LoadError>>,
}

impl Store {
    /// Loads the first generation.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the policy, or with the rules.
    pub fn open(sources: Sources) -> Result<Arc<Self>, LoadError> {
        let contents = sources.read()?;
        let policy = parse(&sources, &contents)?;
        let start = StaticSections::of(&policy);
        let snapshot = build(&sources, &contents, policy, 1)?;
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(snapshot),
            generation: watch::Sender::new(1),
            start,
            applied: Mutex::new(Some(contents.fingerprint())),
            reported: Mutex::default(),
            sources,
        }))
    }

    /// The generation in force.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Learns of every new generation.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// What this was loaded from.
    #[must_use]
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Reads the sources again and swaps the generation, whole, if they changed.
    ///
    /// # Errors
    ///
    /// The new contents are invalid. The last valid generation stays in force, or nothing is allowed any more, as
    /// [`Sources::on_invalid`] says.
    pub fn reload(&self) -> Result<ReloadOutcome, LoadError> {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        match self.build_next(*applied) {
            Ok(None) => Ok(ReloadOutcome::Unchanged),
            Ok(Some((fingerprint, snapshot, static_change))) => {
                *applied = Some(fingerprint);
                let generation = snapshot.generation;
                self.swap(snapshot);
                Ok(ReloadOutcome::Replaced { generation, static_change })
            }
            Err(error) => {
                if self.sources.on_invalid == OnInvalid::DenyAll && applied.take().is_some() {
                    self.deny_all();
                }
                Err(error)
            }
        }
    }

    /// Whether `error` is news.
    pub(super) fn report_once(&self, error: &LoadError) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let news = reported.as_ref() != Some(error);
        *reported = Some(error.clone());
        news
    }

    /// Forgets what was reported; whether there was something.
    pub(super) fn clear_reported(&self) -> bool {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    fn build_next(&self, applied: Option<Fingerprint>) -> Result<Option<(Fingerprint, Snapshot, bool)>, LoadError> {
        let contents = self.sources.read()?;
        let fingerprint = contents.fingerprint();
        if applied == Some(fingerprint) {
            return Ok(None);
        }
        let mut policy = parse(&self.sources, &contents)?;
        let static_change = StaticSections::of(&policy) != self.start;
        self.start.impose(&mut policy);
        let snapshot = build(&self.sources, &contents, policy, self.next_generation())?;
        Ok(Some((fingerprint, snapshot, static_change)))
    }

    fn next_generation(&self) -> u64 {
        self.current.load().generation + 1
    }

    fn swap(&self, snapshot: Snapshot) {
        let generation = snapshot.generation;
        self.current.store(Arc::new(snapshot));
        self.generation.send_replace(generation);
    }

    fn deny_all(&self) {
        let mut policy = Policy::restrictive_default();
        self.start.impose(&mut policy);
        let settings = Settings {
            require_identity: self.sources.require_identity,
            shipped_rules: true,
            quarantine: Some("the policy file is invalid, and everything is denied until it is corrected".to_owned()),
        };
        let document = Document::of(&policy, settings.require_identity, &self.sources.root);
        // A quarantined generation never asks its engine, but a snapshot has one.
        if let Ok(engine) = RegoEngine::shipped(&document) {
            let engine = Engine::Rego(Box::new(engine));
            self.swap(Snapshot::new(self.next_generation(), policy, engine, settings));
        }
    }
}

fn parse(sources: &Sources, contents: &Contents) -> Result<Policy, LoadError> {
    match (&sources.policy, &contents.policy) {
        (PolicySource::File(path), Some(text)) => Policy::parse(text, &path.display().to_string()),
        (PolicySource::File(path), None) => Policy::load(path),
        (PolicySource::BuiltIn(policy), _) => Ok((**policy).clone()),
    }
}

fn build(sources: &Sources, contents: &Contents, policy: Policy, generation: u64) -> Result<Snapshot, LoadError> {
    let document = Document::of(&policy, sources.require_identity, &sources.root);
    let engine = match (&sources.wasm, &contents.wasm, &sources.rules, &contents.rules) {
        (Some(path), Some(module), _, _) => wasm(module, path, &document)?,
        (_, _, path, Some(rules)) => {
            let name = path.as_deref().map_or_else(|| "rules".to_owned(), |path| path.display().to_string());
            Engine::Rego(Box::new(RegoEngine::with_rules(rules, &name, &document)?))
        }
        _ => Engine::Rego(Box::new(RegoEngine::shipped(&document)?)),
    };
    let settings = Settings {
        require_identity: sources.require_identity,
        shipped_rules: contents.rules.is_none() && sources.wasm.is_none(),
        quarantine: None,
    };
    drop(document);
    Ok(Snapshot::new(generation, policy, engine, settings))
}

#[cfg(feature = "wasm-policy")]
fn wasm(module: &[u8], path: &Path, document: &Document<'_>) -> Result<Engine, LoadError> {
    super::engine::WasmEngine::new(module, &path.display().to_string(), document)
        .map(|engine| Engine::Wasm(Box::new(engine)))
}

#[cfg(not(feature = "wasm-policy"))]
fn wasm(_: &[u8], path: &Path, _: &Document<'_>) -> Result<Engine, LoadError> {
    let remedy = "use a build with the feature wasm-policy, or give the rules as Rego by --policy-rules";
    Err(LoadError::of_file(path.display(), "this build has no WebAssembly engine", remedy))
}

#[cfg(test)]
mod tests {
    use super::super::decision::Question;
    use super::super::host::Host;
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new(policy: &str) -> Self {
            let files = Self(tempfile::tempdir().unwrap());
            files.write("policy.yaml", policy);
            files
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.at(name), text).unwrap();
        }

        fn sources(&self) -> Sources {
            let mut sources = Sources::new(PolicySource::File(self.at("policy.yaml")));
            sources.require_identity = false;
            sources
        }
    }

    const GOOD: &str = "{version: 1, network_policies: {k: {endpoints: [{host: a.example.com, port: 443}]}}}";

    fn allows(store: &Store, host: &str) -> bool {
        let host = Host::parse(host).unwrap();
        store.current().decide(Question { host: &host, port: 443, program: None }).allows()
    }

    #[test]
    fn generations_follow_the_content() {
        let files = Files::new(GOOD);
        let store = Store::open(files.sources()).unwrap();
        let generation = store.subscribe();
        assert!(allows(&store, "a.example.com"));
        assert_eq!(store.reload(), Ok(ReloadOutcome::Unchanged));
        files.write("policy.yaml", &GOOD.replace("a.example", "b.example"));
        assert_eq!(store.reload(), Ok(ReloadOutcome::Replaced { generation: 2, static_change: false }));
        assert!(allows(&store, "b.example.com") && !allows(&store, "a.example.com"));
        assert_eq!(*generation.borrow(), 2);
        assert_eq!(store.current().generation, 2);
    }

    #[test]
    fn a_bad_file_keeps_the_last_good_generation() {
        let files = Files::new(GOOD);
        let store = Store::open(files.sources()).unwrap();
        for bad in ["version: 2", "", "\t", "{"] {
            files.write("policy.yaml", bad);
            assert!(store.reload().is_err(), "{bad:?}");
        }
        std::fs::remove_file(files.at("policy.yaml")).unwrap();
        assert!(store.reload().is_err());
        assert!(allows(&store, "a.example.com"));
        assert_eq!(store.current().generation, 1);
    }

    #[test]
    fn a_bad_file_denies_all_where_that_was_asked_for() {
        let files = Files::new(GOOD);
        let mut sources = files.sources();
        sources.on_invalid = OnInvalid::DenyAll;
        let store = Store::open(sources).unwrap();
        files.write("policy.yaml", "version: 2");
        assert!(store.reload().is_err());
        assert!(store.reload().is_err());
        assert_eq!(store.current().generation, 2);
        let host = Host::parse("a.example.com").unwrap();
        let decision = store.current().decide(Question { host: &host, port: 443, program: None });
        assert!(!decision.allows());
        assert!(decision.reason.contains("invalid"), "{}", decision.reason);
        files.write("policy.yaml", GOOD);
        assert_eq!(store.reload(), Ok(ReloadOutcome::Replaced { generation: 3, static_change: false }));
        assert!(allows(&store, "a.example.com"));
    }

    #[test]
    fn static_sections_stay_as_they_were() {
        let files = Files::new("{version: 1, filesystem_policy: {read_only: [/srv]}}");
        let store = Store::open(files.sources()).unwrap();
        files.write("policy.yaml", "{version: 1, filesystem_policy: {read_only: [/srv, /home]}}");
        assert_eq!(store.reload(), Ok(ReloadOutcome::Replaced { generation: 2, static_change: true }));
        assert_eq!(store.current().policy.filesystem.read_only, [PathBuf::from("/srv")]);
    }

    #[test]
    fn an_operator_s_rules_decide_and_reload() {
        let files = Files::new(GOOD);
        let rules = |action: &str| {
            format!(
                "package openshell.egress\nimport rego.v1\ndecision := {{\"action\": \"{action}\", \"reason\": \"ours\"}}"
            )
        };
        files.write("rules.rego", &rules("allow"));
        let mut sources = files.sources();
        sources.rules = Some(files.at("rules.rego"));
        let store = Store::open(sources.clone()).unwrap();
        assert!(allows(&store, "anything.example.org"));
        files.write("rules.rego", &rules("deny"));
        assert!(matches!(store.reload(), Ok(ReloadOutcome::Replaced { .. })));
        assert!(!allows(&store, "a.example.com"));
        files.write("rules.rego", "package openshell.egress\nimport rego.v1\n\ndecision := {");
        let error = store.reload().unwrap_err();
        assert!(error.to_string().contains("rules.rego:4:"), "{error}");
        assert_eq!(store.sources().files(), [files.at("policy.yaml"), files.at("rules.rego")]);
        sources.wasm = Some(files.at("policy.wasm"));
        assert!(Store::open(sources).unwrap_err().to_string().contains("--policy-rules or --policy-wasm"));
    }

    #[test]
    fn links_of_programs_are_followed() {
        let files = Files::new(
            "{version: 1, network_policies: {k: {endpoints: [{host: a.example.com, port: 443}], \
             binaries: [{path: /usr/bin/python3}]}}}",
        );
        std::fs::create_dir_all(files.at("root/usr/bin")).unwrap();
        files.write("root/usr/bin/python3.11", "");
        std::os::unix::fs::symlink("python3.11", files.at("root/usr/bin/python3")).unwrap();
        let mut sources = files.sources();
        sources.require_identity = true;
        let ask = |sources: Sources, path: &str| {
            let executable = crate::attribution::Executable { path: path.into(), sha256: [0; 32] };
            let program = crate::attribution::Program { executable, ancestors: [].into() };
            let host = Host::parse("a.example.com").unwrap();
            let store = Store::open(sources).unwrap();
            store.current().decide(Question { host: &host, port: 443, program: Some(&program) }).allows()
        };
        sources.root = files.at("root");
        assert!(ask(sources.clone(), "/usr/bin/python3.11"));
        assert!(!ask(sources.clone(), "/usr/bin/python3.12"));
        sources.root = files.at("empty");
        assert!(!ask(sources, "/usr/bin/python3.11"));
    }
}
