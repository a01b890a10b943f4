//! The workload's environment, built from nothing. One builder for every way that a program is started inside.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::confine::identity::Identity;
use crate::contract::env::{INSIDE, PREFIX, USER_ENVIRONMENT};

/// Where programs are looked for when nobody says: what Debian, Fedora and Alpine images use.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables that describe the terminal and language, and pass from whoever typed `run`.
const SESSION: &[&str] = &["TERM", "COLORTERM", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ"];

/// Every spelling that a client was found to read; lower case is what curl insists on for `http_proxy`.
const PROXY_VARIABLES: &[&str] =
    &["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"];

/// Destinations that never leave the namespace.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";

/// Bytes of environment that the kernel takes for one string (`MAX_ARG_STRLEN`, execve(2)).
const VARIABLE_LIMIT: usize = 128 << 10;

/// Most bytes of `OPENSHELL_USER_ENVIRONMENT`; a single variable cannot be longer either.
const USER_JSON_LIMIT: usize = VARIABLE_LIMIT;

/// What passes from the supervisor's own environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// Nothing.
    #[default]
    None,
    /// Terminal, language and time zone, for `run`.
    Session,
    /// These names.
    Listed(Vec<String>),
    /// All but what starts with `OPENSHELL_`, for the entrypoint of a container: there the supervisor's environment is
    /// the image's.
    AllButOurs,
}

/// A variable that cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A name of the supervisor's.
    #[error("variable {0}: names that start with OPENSHELL_ are the supervisor's; choose another")]
    Reserved(String),
    /// No name at all, or one that cannot be.
    #[error("variable {0:?}: expected NAME=VALUE, or NAME to pass it through, NAME without `=` and NUL bytes")]
    Name(String),
    /// A value with a NUL byte, or an endless one.
    #[error("variable {0}: its value holds a NUL byte or exceeds {VARIABLE_LIMIT} bytes")]
    Value(String),
    /// The driver's map is none.
    #[error("{USER_ENVIRONMENT}: {0}; expected a JSON object of strings of at most {USER_JSON_LIMIT} bytes")]
    Json(String),
}

/// A variable that the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserVariable {
    /// Name.
    pub name: OsString,
    /// Value.
    pub value: OsString,
}

/// Reads `--env K=V` and `--env K`; the latter takes the value from the supervisor's environment, and is no variable
/// where there is none.
///
/// # Errors
/// [`EnvironmentError`].
pub fn parse_assignment(text: &OsStr) -> Result<Option<UserVariable>, EnvironmentError> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, std::env::var_os(text)),
    };
    let name = OsStr::from_bytes(name).to_owned();
    check_name(&name)?;
    match value {
        Some(value) => check_value(&name, &value).map(|()| Some(UserVariable { name, value })),
        None => Ok(None),
    }
}

/// Reads the driver's JSON map, `OPENSHELL_USER_ENVIRONMENT`.
///
/// # Errors
/// [`EnvironmentError`].
pub fn parse_json(text: &str) -> Result<Vec<UserVariable>, EnvironmentError> {
    if text.len() > USER_JSON_LIMIT {
        return Err(EnvironmentError::Json(format!("{} bytes", text.len())));
    }
    let map: BTreeMap<String, String> =
        serde_json::from_str(text).map_err(|error| EnvironmentError::Json(error.to_string()))?;
    map.into_iter()
        .map(|(name, value)| {
            let variable = UserVariable { name: name.into(), value: value.into() };
            check_name(&variable.name)?;
            check_value(&variable.name, &variable.value)?;
            Ok(variable)
        })
        .collect()
}

impl UserVariable {
    /// One that may be set.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub fn checked(name: &OsStr, value: &OsStr) -> Result<Self, EnvironmentError> {
        check_name(name)?;
        check_value(name, value)?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

fn check_name(name: &OsStr) -> Result<(), EnvironmentError> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.iter().any(|&byte| byte == b'=' || byte == 0) {
        return Err(EnvironmentError::Name(name.to_string_lossy().into_owned()));
    }
    if is_ours(name) {
        return Err(EnvironmentError::Reserved(name.to_string_lossy().into_owned()));
    }
    Ok(())
}

fn check_value(name: &OsStr, value: &OsStr) -> Result<(), EnvironmentError> {
    if value.as_bytes().contains(&0) || name.len() + value.len() + 2 > VARIABLE_LIMIT {
        return Err(EnvironmentError::Value(name.to_string_lossy().into_owned()));
    }
    Ok(())
}

fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX.as_bytes()))
}

/// The builder.
#[derive(Clone, Debug)]
pub struct Environment<'e> {
    /// Whose home, name and shell.
    pub identity: &'e Identity,
    /// What passes from the supervisor's environment.
    pub inherit: Inherit,
    /// The user's own, in order; a later one of the same name wins.
    pub user: &'e [UserVariable],
    /// URL of the proxy, where there is one.
    pub proxy: Option<&'e str>,
    /// Names of variables that point at whom to trust, with the path, where TLS is terminated.
    pub trust: &'e [(&'e str, &'e str)],
    /// Whether the workload has a terminal.
    pub terminal: bool,
}

impl Environment<'_> {
    /// The strings for execve(2), sorted by name. What the user set explicitly wins over everything of ours, the proxy
    /// variables included (there is no other way out, so nothing is lost but the user's own network); what was merely
    /// inherited does not.
    #[must_use]
    pub fn build(&self) -> Vec<CString> {
        self.build_from(std::env::vars_os())
    }

    fn build_from(&self, supervisor: impl Iterator<Item = (OsString, OsString)>) -> Vec<CString> {
        let mut variables: BTreeMap<OsString, OsString> = supervisor.filter(|(name, _)| self.passes(name)).collect();
        let mut default = |name: &str, value: &str| {
            variables.entry(name.into()).or_insert_with(|| value.into());
        };
        default("PATH", DEFAULT_PATH);
        default("TERM", if self.terminal { "xterm-256color" } else { "dumb" });
        // The shell that the user has, or the one that every image with a shell has.
        let shell = self.identity.shell.as_deref().unwrap_or("/bin/sh");
        let mut set = |name: &str, value: &str| {
            variables.insert(name.into(), value.into());
        };
        // An image's HOME is that of the user who built it.
        for (name, value) in [
            ("HOME", self.identity.home.as_str()),
            ("USER", &self.identity.name),
            ("LOGNAME", &self.identity.name),
            ("SHELL", shell),
            (INSIDE, "1"),
        ] {
            set(name, value);
        }
        if let Some(proxy) = self.proxy {
            PROXY_VARIABLES.iter().for_each(|name| set(name, proxy));
            ["NO_PROXY", "no_proxy"].iter().for_each(|name| set(name, NO_PROXY));
            // Node's fetch reads the variables above only when told to.
            set("NODE_USE_ENV_PROXY", "1");
        }
        self.trust.iter().for_each(|(name, path)| set(name, path));
        for variable in self.user {
            variables.insert(variable.name.clone(), variable.value.clone());
        }
        variables
            .into_iter()
            .filter_map(|(name, value)| {
                let mut bytes = name.into_vec();
                bytes.push(b'=');
                bytes.extend(value.into_vec());
                // An inherited string holds no NUL, and ours and the user's were checked.
                CString::new(bytes).ok()
            })
            .collect()
    }

    fn passes(&self, name: &OsStr) -> bool {
        match &self.inherit {
            Inherit::None => false,
            Inherit::Session => SESSION.iter().any(|session| name == OsStr::new(session)),
            Inherit::Listed(names) => names.iter().any(|listed| name == OsStr::new(listed)) && !is_ours(name),
            Inherit::AllButOurs => !is_ours(name),
        }
    }
}

/// What every program in a sandbox has in its environment, kept for those that are started later.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Whose home, name and shell.
    pub identity: Identity,
    /// What passes from the supervisor's environment.
    pub inherit: Inherit,
    /// The user's own.
    pub user: Vec<UserVariable>,
    /// URL of the proxy, where there is one.
    pub proxy: Option<String>,
    /// Whom to trust, see [`Environment::trust`].
    pub trust: Vec<(String, String)>,
}

impl Recipe {
    /// The strings for execve(2) of one program. What was `asked` for it alone wins.
    #[must_use]
    pub fn build(&self, terminal: bool, asked: &[UserVariable]) -> Vec<CString> {
        let user: Vec<UserVariable> = self.user.iter().chain(asked).cloned().collect();
        let trust: Vec<(&str, &str)> = self.trust.iter().map(|(name, path)| (name.as_str(), path.as_str())).collect();
        let environment = Environment {
            identity: &self.identity,
            inherit: self.inherit.clone(),
            user: &user,
            proxy: self.proxy.as_deref(),
            trust: &trust,
            terminal,
        };
        environment.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
            name: "agent".into(),
            home: "/home/agent".into(),
            shell: Some("/bin/zsh".into()),
            switch: true,
            notes: Vec::new(),
        }
    }

    fn built(inherit: Inherit, user: &[UserVariable], supervisor: &[(&str, &str)]) -> BTreeMap<String, String> {
        let identity = identity();
        let environment = Environment {
            identity: &identity,
            inherit,
            user,
            proxy: Some("http://127.0.0.1:3128"),
            trust: &[],
            terminal: true,
        };
        environment
            .build_from(supervisor.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
            .into_iter()
            .map(|string| {
                let text = string.into_string().unwrap();
                let (name, value) = text.split_once('=').unwrap();
                (name.to_owned(), value.to_owned())
            })
            .collect()
    }

    const SUPERVISOR: &[(&str, &str)] = &[
        ("OPENSHELL_SANDBOX_TOKEN", "secret"),
        ("openshell_lower", "secret"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("LANG", "de_DE.UTF-8"),
        ("PATH", "/opt/bin"),
        ("HTTP_PROXY", "http://192.0.2.1:1"),
        ("HOME", "/root"),
    ];

    #[test]
    fn nothing_passes_unless_asked() {
        let none = built(Inherit::None, &[], SUPERVISOR);
        assert!(!none.values().any(|value| value == "secret"));
        assert_eq!(none.get("PATH").unwrap(), DEFAULT_PATH);
        assert_eq!(none.get("LANG"), None);
        let session = built(Inherit::Session, &[], SUPERVISOR);
        assert_eq!(session.get("LANG").unwrap(), "de_DE.UTF-8");
        assert!(!session.values().any(|value| value == "secret"));
    }

    #[test]
    fn the_image_s_environment_passes_without_ours() {
        let all = built(Inherit::AllButOurs, &[], SUPERVISOR);
        assert_eq!(all.get("AWS_SECRET_ACCESS_KEY").unwrap(), "secret", "control: the image's own passes");
        assert!(!all.contains_key("OPENSHELL_SANDBOX_TOKEN") && !all.contains_key("openshell_lower"));
        assert_eq!(all.get("PATH").unwrap(), "/opt/bin");
        assert_eq!(all.get("HOME").unwrap(), "/home/agent");
        assert_eq!(all.get("HTTP_PROXY").unwrap(), "http://127.0.0.1:3128");
        assert_eq!(all.get("OPENSHELL_SANDBOX").unwrap(), "1");
    }

    #[test]
    fn the_user_s_own_win() {
        let user = [
            UserVariable { name: "no_proxy".into(), value: "*".into() },
            UserVariable { name: "HOME".into(), value: "/elsewhere".into() },
        ];
        let built = built(Inherit::None, &user, &[]);
        assert_eq!((built.get("no_proxy").unwrap().as_str(), built.get("HOME").unwrap().as_str()), ("*", "/elsewhere"));
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"] {
            assert_eq!(built.get(name).unwrap(), "http://127.0.0.1:3128", "{name}");
        }
        assert_eq!(built.get("NODE_USE_ENV_PROXY").unwrap(), "1");
    }

    #[test]
    fn bad_assignments_say_why() {
        assert!(matches!(parse_assignment(OsStr::new("=x")), Err(EnvironmentError::Name(_))));
        assert!(matches!(parse_assignment(OsStr::new("OPENSHELL_X=1")), Err(EnvironmentError::Reserved(_))));
        assert!(matches!(parse_assignment(OsStr::new("a=\0")), Err(EnvironmentError::Value(_))));
        assert_eq!(parse_assignment(OsStr::new("OURS_IS_NOT_SET_ANYWHERE")).unwrap(), None);
        let variable = parse_assignment(OsStr::new("A=b=c")).unwrap().unwrap();
        assert_eq!((variable.name, variable.value), ("A".into(), "b=c".into()));
        assert!(matches!(parse_json("[]"), Err(EnvironmentError::Json(_))));
        assert!(matches!(parse_json(r#"{"A": 1}"#), Err(EnvironmentError::Json(_))));
        assert!(matches!(parse_json(r#"{"OPENSHELL_A": "1"}"#), Err(EnvironmentError::Reserved(_))));
        assert!(matches!(parse_json(r#"{"A=": "1"}"#), Err(EnvironmentError::Name(_))));
        assert_eq!(parse_json(r#"{"A": "1"}"#).unwrap().len(), 1);
    }
}
