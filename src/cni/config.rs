//! The network configuration that a runtime gives on standard input, and the versions that it may be written in.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::call::Command;
use super::error::{CniError, INCOMPATIBLE_VERSION, INVALID_CONFIG, UNDECODABLE};

/// Where `cni-install` puts the credentials, unless configured.
pub const KUBECONFIG: &str = "/etc/cni/net.d/openshell-cni-kubeconfig";

/// Longest configuration: those of runtimes, with a result of many interfaces, have some kilobytes.
pub const CONFIG_BYTES: u64 = 1 << 20;

/// A version of the specification. What is the same in the later ones is not told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.3.0 and 0.3.1: ADD, DEL, VERSION.
    V03,
    /// 0.4.0: CHECK as well.
    V04,
    /// 1.0.0.
    V10,
    /// 1.1.0: STATUS and GC as well.
    V11,
}

/// Those that are spoken, as VERSION lists them.
pub const VERSIONS: [(&str, Version); 5] = [
    ("0.3.0", Version::V03),
    ("0.3.1", Version::V03),
    ("0.4.0", Version::V04),
    ("1.0.0", Version::V10),
    ("1.1.0", Version::V11),
];

/// Their names.
pub const SPOKEN: [&str; VERSIONS.len()] = {
    let mut names = [""; VERSIONS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = VERSIONS[index].0;
        index += 1;
    }
    names
};

/// The newest, in which is answered what does not say its own.
pub const NEWEST: &str = "1.1.0";

/// What every configuration has.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config<'i> {
    /// The version that the answer is to be in.
    #[serde(borrow, default)]
    pub cni_version: Option<Cow<'i, str>>,
    /// What the plugins before this one have come to, as they wrote it.
    #[serde(borrow, default)]
    pub prev_result: Option<&'i RawValue>,
    /// Our own part.
    #[serde(default, deserialize_with = "object")]
    openshell: Option<Settings>,
}

/// An object and nothing else: from a list serde would take the fields in their order.
fn object<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Option<Settings>, D::Error> {
    let object: Option<Map<String, Value>> = Option::deserialize(deserializer)?;
    object.map(|object| Settings::deserialize(Value::Object(object)).map_err(D::Error::custom)).transpose()
}

/// Key `openshell`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Credentials for the API server.
    #[serde(default = "default_kubeconfig")]
    pub kubeconfig: PathBuf,
    /// Namespaces that sandboxes live in: pods elsewhere are not looked at. Empty: they may live in any.
    #[serde(default)]
    pub sandbox_namespaces: Vec<String>,
    /// Runtime classes whose containers the node's own kernel runs: a sandbox with another one is refused.
    #[serde(default)]
    pub runtime_classes: Vec<String>,
    /// Where refusals and fences are noted, a line each.
    #[serde(default)]
    pub log_file: Option<PathBuf>,
    /// What is made, empty, when the plugin is called: for ways of chaining that older runtimes pass over in silence.
    #[serde(default)]
    pub called_file: Option<PathBuf>,
}

fn default_kubeconfig() -> PathBuf {
    PathBuf::from(KUBECONFIG)
}

impl<'i> Config<'i> {
    /// Reads it.
    ///
    /// # Errors
    /// It is no configuration.
    pub fn read(input: &'i [u8]) -> Result<Self, CniError> {
        let undecodable = |details: String| CniError::new(UNDECODABLE, "undecodable network configuration", details);
        let text = std::str::from_utf8(input).map_err(|error| undecodable(format!("standard input: {error}")))?;
        if text.trim().is_empty() {
            return Err(undecodable("standard input is empty: expected a network configuration".to_owned()));
        }
        // A list would be taken for the fields in their order.
        if !text.trim_start().starts_with('{') {
            return Err(undecodable("standard input is no JSON object: expected a network configuration".to_owned()));
        }
        serde_json::from_str(text).map_err(|error| undecodable(format!("standard input: {error}")))
    }

    /// The version as it is written, for the answer.
    #[must_use]
    pub fn version_text(&self) -> &str {
        self.cni_version.as_deref().filter(|version| !version.is_empty()).unwrap_or(NEWEST)
    }

    /// The version, if it has this command.
    ///
    /// # Errors
    /// It is not spoken here, or has no such command.
    pub fn version_for(&self, command: Command) -> Result<Version, CniError> {
        let incompatible = |details| CniError::new(INCOMPATIBLE_VERSION, "incompatible CNI version", details);
        let spoken = || SPOKEN.join(", ");
        // Before 0.3.0 the field could be missing.
        let named = self.cni_version.as_deref().unwrap_or("0.1.0");
        let version = VERSIONS
            .iter()
            .find(|(name, _)| *name == named)
            .map(|(_, version)| *version)
            .ok_or_else(|| incompatible(format!("cniVersion is {named:?}: expected one of {}", spoken())))?;
        let first = match command {
            Command::Add | Command::Del | Command::Version => Version::V03,
            Command::Check => Version::V04,
            Command::Status | Command::Gc => Version::V11,
        };
        if version < first {
            return Err(incompatible(format!("cniVersion {named} has no command {}", command.name())));
        }
        Ok(version)
    }

    /// Our own part.
    ///
    /// # Errors
    /// There is none: without one nothing says whose pods are to be fenced.
    pub fn settings(&self) -> Result<&Settings, CniError> {
        self.openshell.as_ref().ok_or_else(|| {
            CniError::new(
                INVALID_CONFIG,
                "invalid network configuration",
                "key `openshell` is missing: expected an object with kubeconfig and sandboxNamespaces, as cni-install \
                 writes it",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_is_kept_as_it_was_written() {
        let before = r#"{ "ips" : [ ], "unknown":1.0e2,  "cniVersion":"1.0.0" }"#;
        let input = format!(
            r#"{{"cniVersion":"1.0.0","name":"n","type":"openshell-cni","prevResult":{before},
                "openshell":{{"kubeconfig":"/k","sandboxNamespaces":["a"],"logFile":"/l","logLevel":"info"}}}}"#
        );
        let config = Config::read(input.as_bytes()).unwrap();
        assert_eq!(config.prev_result.map(RawValue::get), Some(before));
        assert_eq!(
            config.settings().unwrap(),
            &Settings {
                kubeconfig: "/k".into(),
                sandbox_namespaces: vec!["a".to_owned()],
                runtime_classes: Vec::new(),
                log_file: Some("/l".into()),
                called_file: None
            }
        );
    }

    #[test]
    fn commands_are_those_of_the_version() {
        let allowed = |version: &str, command| {
            let input = format!(r#"{{"cniVersion":"{version}"}}"#);
            Config::read(input.as_bytes()).unwrap().version_for(command).map_err(|error| error.code)
        };
        for (version, known) in VERSIONS {
            for command in [Command::Add, Command::Del, Command::Version] {
                assert_eq!(allowed(version, command), Ok(known));
            }
            assert_eq!(allowed(version, Command::Check).is_ok(), known >= Version::V04, "{version}");
            assert_eq!(allowed(version, Command::Status).is_ok(), known >= Version::V11, "{version}");
            assert_eq!(allowed(version, Command::Gc).is_ok(), known >= Version::V11, "{version}");
        }
        for version in ["0.2.0", "1.2.0", "", "x"] {
            assert_eq!(allowed(version, Command::Add), Err(INCOMPATIBLE_VERSION), "{version}");
        }
        let none = Config::read(b"{}").unwrap();
        assert_eq!(none.version_for(Command::Add).unwrap_err().code, INCOMPATIBLE_VERSION);
        assert_eq!(none.settings().unwrap_err().code, INVALID_CONFIG);
    }

    #[test]
    fn garbage_is_undecodable() {
        for input in [
            &b""[..],
            b" \n",
            b"{",
            b"[]",
            b"\xff",
            b"{} {}",
            br#"{"openshell":7}"#,
            br#"{"openshell":[]}"#,
            br#"{"cniVersion":1}"#,
        ] {
            assert_eq!(Config::read(input).unwrap_err().code, UNDECODABLE, "{}", String::from_utf8_lossy(input));
        }
        let defaults = Config::read(br#"{"openshell":{}}"#).unwrap();
        assert_eq!(defaults.settings().unwrap().kubeconfig, PathBuf::from(KUBECONFIG));
        assert!(defaults.settings().unwrap().sandbox_namespaces.is_empty());
    }
}
