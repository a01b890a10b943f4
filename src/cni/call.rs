//! The environment that a runtime calls a plugin with (CNI specification 1.1, section 2, "Parameters").

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::{CniError, INVALID_ENVIRONMENT};

/// Longest name of an interface (`IFNAMSIZ` without the closing zero).
const INTERFACE_BYTES: usize = 15;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A container joins a network.
    Add,
    /// It leaves.
    Del,
    /// Is it as ADD left it?
    Check,
    /// Which versions of the specification are spoken?
    Version,
    /// Could ADD be served?
    Status,
    /// What of containers that are gone is to be cleaned up?
    Gc,
}

impl Command {
    const ALL: [(&str, Self); 6] = [
        ("ADD", Self::Add),
        ("DEL", Self::Del),
        ("CHECK", Self::Check),
        ("VERSION", Self::Version),
        ("STATUS", Self::Status),
        ("GC", Self::Gc),
    ];

    /// As the specification writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, command)| *command == self).map_or("", |(name, _)| name)
    }
}

/// The pod, as far as the runtime tells. Other runtimes than Kubernetes' tell nothing, or only a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReference {
    /// `K8S_POD_NAMESPACE`.
    pub namespace: Option<String>,
    /// `K8S_POD_NAME`.
    pub name: Option<String>,
    /// `K8S_POD_UID`: tells the pod from an earlier one of its name.
    pub uid: Option<String>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is asked for.
    pub command: Command,
    /// The container's network namespace, where the command needs one or the runtime has one.
    pub netns: Option<PathBuf>,
    /// The pod.
    pub pod: PodReference,
}

impl Call {
    /// Reads the environment through `variable`.
    ///
    /// # Errors
    /// A variable that the command needs is missing or means nothing.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, CniError> {
        let text = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value.into_string().map(Some).map_err(|_| invalid(format!("{name} is not UTF-8"))),
        };
        let given = text("CNI_COMMAND")?;
        let command = match &given {
            None => {
                return Err(invalid(
                    "CNI_COMMAND is missing: a container runtime calls this plugin, people call cni-install and doctor",
                ));
            }
            Some(given) => {
                Command::ALL.iter().find(|(name, _)| name == given).map(|(_, command)| *command).ok_or_else(|| {
                    invalid(format!("CNI_COMMAND={given:?}: expected ADD, DEL, CHECK, VERSION, STATUS or GC"))
                })?
            }
        };
        let needs = |name: &'static str, value: &Option<String>| match value {
            None => Err(invalid(format!("{name} is missing, and {} needs it", command.name()))),
            Some(_) => Ok(()),
        };
        let netns = text("CNI_NETNS")?;
        if matches!(command, Command::Add | Command::Del | Command::Check) {
            let (container, interface) = (text("CNI_CONTAINERID")?, text("CNI_IFNAME")?);
            needs("CNI_CONTAINERID", &container)?;
            needs("CNI_IFNAME", &interface)?;
            check("CNI_CONTAINERID", container.as_deref(), is_container_id, "letters, digits, '_', '.' and '-'")?;
            check("CNI_IFNAME", interface.as_deref(), is_interface, "the name of an interface")?;
            if command != Command::Del {
                needs("CNI_NETNS", &netns)?;
            }
        }
        let pod = match command {
            Command::Add | Command::Check => pod_in(text("CNI_ARGS")?.as_deref().unwrap_or_default())?,
            // Nothing depends on it, so nothing may fail for it.
            _ => PodReference::default(),
        };
        Ok(Self { command, netns: netns.map(PathBuf::from), pod })
    }
}

fn invalid(details: impl std::fmt::Display) -> CniError {
    CniError::new(INVALID_ENVIRONMENT, "invalid environment", details)
}

fn check(name: &str, value: Option<&str>, is_good: fn(&str) -> bool, expected: &'static str) -> Result<(), CniError> {
    match value.filter(|value| !is_good(value)) {
        None => Ok(()),
        Some(value) => Err(invalid(format!("{name}={value:?}: expected {expected}"))),
    }
}

/// "Must start with an alphanumeric character, optionally followed by any combination of alphanumeric characters,
/// underscore, dot, or hyphen."
fn is_container_id(id: &str) -> bool {
    id.starts_with(|first: char| first.is_ascii_alphanumeric())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// `dev_valid_name` in the kernel.
fn is_interface(name: &str) -> bool {
    name.len() <= INTERFACE_BYTES
        && !matches!(name, "." | "..")
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
}

/// CNI_ARGS: pairs `KEY=VALUE` between semicolons.
fn pod_in(arguments: &str) -> Result<PodReference, CniError> {
    let mut pod = PodReference::default();
    for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(invalid(format!("CNI_ARGS has {pair:?}: expected KEY=VALUE, separated by ';'")));
        };
        let value = Some(value.to_owned()).filter(|value| !value.is_empty());
        let field = match key {
            "K8S_POD_NAMESPACE" => &mut pod.namespace,
            "K8S_POD_NAME" => &mut pod.name,
            "K8S_POD_UID" => &mut pod.uid,
            _ => continue,
        };
        if field.is_some() {
            return Err(invalid(format!("CNI_ARGS has {key} twice: which one is meant?")));
        }
        *field = value;
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(variables: &[(&str, &str)]) -> Result<Call, CniError> {
        Call::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    const ADD: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "0a_b.c-d"),
        ("CNI_NETNS", "/var/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=agents;K8S_POD_NAME=a-0;K8S_POD_UID=u-1;K8S_POD_X=a=b"),
    ];

    fn without(name: &str) -> Vec<(&'static str, &'static str)> {
        ADD.into_iter().filter(|(known, _)| *known != name).collect()
    }

    fn with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
        let mut variables = without(name);
        variables.push((name, value));
        variables
    }

    #[test]
    fn an_add_names_its_namespace_and_its_pod() {
        let call = call(&ADD).unwrap();
        let text = |text: &str| Some(text.to_owned());
        let pod = PodReference { namespace: text("agents"), name: text("a-0"), uid: text("u-1") };
        assert_eq!(call, Call { command: Command::Add, netns: Some("/var/run/netns/x".into()), pod });
    }

    #[test]
    fn each_command_needs_what_the_specification_says() {
        for name in ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
            let error = call(&without(name)).unwrap_err();
            assert!(error.code == INVALID_ENVIRONMENT && error.details.contains(name), "{error}");
            assert_eq!(call(&with(name, "")).unwrap_err().code, INVALID_ENVIRONMENT, "{name} is empty");
        }
        assert!(call(&without("CNI_ARGS")).is_ok());
        for command in ["VERSION", "STATUS", "GC"] {
            assert!(call(&[("CNI_COMMAND", command)]).is_ok(), "{command}");
        }
        let mut del = without("CNI_NETNS");
        del[0].1 = "DEL";
        assert_eq!(call(&del).unwrap().netns, None);
        del[0].1 = "CHECK";
        assert!(call(&del).unwrap_err().details.contains("CNI_NETNS"));
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        for (name, value) in [
            ("CNI_COMMAND", "add"),
            ("CNI_COMMAND", "REMOVE"),
            ("CNI_CONTAINERID", "-x"),
            ("CNI_CONTAINERID", "../x"),
            ("CNI_IFNAME", "a/b"),
            ("CNI_IFNAME", "a b"),
            ("CNI_IFNAME", ".."),
            ("CNI_IFNAME", "sixteen-letters-"),
            ("CNI_ARGS", "K8S_POD_NAME"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=agents;K8S_POD_NAMESPACE=web"),
        ] {
            let error = call(&with(name, value)).unwrap_err();
            assert!(error.code == INVALID_ENVIRONMENT && error.details.contains(name), "{name}={value}: {error}");
        }
        let command = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
        assert!(Call::of(|_| Some(OsString::clone(&command))).unwrap_err().details.contains("UTF-8"));
    }
}
