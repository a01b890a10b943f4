//! What containers reserve and get at the most: by whom each is said, and what the API makes of them together.

use std::collections::BTreeMap;

use serde_json::Value;

use super::config::DriverConfig;
use super::names::GPU;
use super::object::{Fields, strings};
use super::problem::Problems;
use super::sandbox::SandboxSpec;
use super::shape::{self, Quantity};

/// The resources of the agent's container.
pub(super) struct Resources {
    requests: BTreeMap<String, Said>,
    limits: BTreeMap<String, Said>,
}

/// The resources of every other container.
pub(super) fn of_supervisor(config: &DriverConfig) -> Value {
    Resources::listed(&config.supervisor_requests, &config.supervisor_limits, "supervisor_resources").build()
}

/// Checks those.
pub(super) fn check_supervisor(config: &DriverConfig, problems: &Problems) {
    let (requests, limits, place) = (&config.supervisor_requests, &config.supervisor_limits, "supervisor_resources");
    check_names(requests, &format!("{place}.requests"), problems);
    check_names(limits, &format!("{place}.limits"), problems);
    Resources::listed(requests, limits, place).check(problems);
}

/// Checks resources one by one.
pub(super) fn check_names(listed: &BTreeMap<String, String>, place: &str, problems: &Problems) {
    for (name, quantity) in listed {
        let path = format!("{place}.{name}");
        if !is_resource(name) {
            let expected =
                "cpu, memory, ephemeral-storage, or another resource with its domain, such as nvidia.com/gpu";
            problems.without(&path, expected, "correct its name");
        }
        shape::quantity(problems, &path, quantity);
    }
}

/// Quantities with the fields that say them.
fn said(all: &BTreeMap<String, String>, place: &str) -> BTreeMap<String, Said> {
    let said = |(name, quantity): (&String, &String)| (name.clone(), Said::new(quantity, &format!("{place}.{name}")));
    all.iter().map(said).collect()
}

/// A quantity, and the field that says it.
#[derive(Clone)]
struct Said {
    quantity: String,
    field: String,
}

impl Said {
    fn new(quantity: &str, field: &str) -> Self {
        Self { quantity: quantity.to_owned(), field: field.to_owned() }
    }
}

impl Resources {
    fn listed(requests: &BTreeMap<String, String>, limits: &BTreeMap<String, String>, place: &str) -> Self {
        Self {
            requests: said(requests, &format!("{place}.requests")),
            limits: said(limits, &format!("{place}.limits")),
        }
    }

    /// The gateway's, with the sandbox's own over them, then the user's for what is not said yet.
    pub(super) fn of(sandbox: &SandboxSpec) -> Self {
        let platform = &sandbox.platform_config;
        let mut requests = said(&platform.requests, "platform_config.resources_raw.requests");
        let mut limits = said(&platform.limits, "platform_config.resources_raw.limits");
        let typed = &sandbox.resources;
        for (name, request, limit) in
            [("cpu", &typed.cpu_request, &typed.cpu_limit), ("memory", &typed.memory_request, &typed.memory_limit)]
        {
            let [request, limit] = [(request, "request"), (limit, "limit")].map(|(quantity, which)| {
                quantity.as_ref().map(|quantity| Said::new(quantity, &format!("resources.{name}_{which}")))
            });
            // What is limited is reserved as well, or the scheduler would promise it to others.
            requests.extend(request.or_else(|| limit.clone()).map(|said| (name.to_owned(), said)));
            limits.extend(limit.map(|said| (name.to_owned(), said)));
        }
        limits.extend(sandbox.gpu.map(|count| (GPU.to_owned(), Said::new(&count.to_string(), "gpu"))));
        let user = &sandbox.driver_config;
        for (all, more, place) in [(&mut requests, &user.requests, "requests"), (&mut limits, &user.limits, "limits")] {
            for (name, said) in self::said(more, &format!("driver_config.containers.agent.resources.{place}")) {
                all.entry(name).or_insert(said);
            }
        }
        Self { requests, limits }
    }

    /// As the container has them.
    pub(super) fn build(&self) -> Value {
        let plain = |all: &BTreeMap<String, Said>| -> BTreeMap<String, String> {
            all.iter().map(|(name, said)| (name.clone(), said.quantity.clone())).collect()
        };
        let (requests, limits) = (plain(&self.requests), plain(&self.limits));
        Fields::new().maybe("limits", strings(&limits)).maybe("requests", strings(&requests)).build()
    }

    /// What the API refuses of them together (Kubernetes, `ValidateResourceRequirements`).
    pub(super) fn check(&self, problems: &Problems) {
        for (name, limit) in &self.limits {
            whole_where_counted(name, limit, problems);
        }
        for (name, request) in &self.requests {
            whole_where_counted(name, request, problems);
            let Some(limit) = self.limits.get(name) else {
                if is_counted(name) || name.starts_with(HUGE_PAGES) {
                    let expected =
                        format!("a limit of {name} with it, and of the same: nobody gets more than is reserved");
                    problems.with(&request.field, &request.quantity, expected, "say the limit alone");
                }
                continue;
            };
            let (Some(least), Some(most)) = (Quantity::parse(&request.quantity), Quantity::parse(&limit.quantity))
            else {
                continue;
            };
            let same = is_counted(name) || name.starts_with(HUGE_PAGES);
            if least > most || (same && least != most) {
                let than = if same { "as much as" } else { "no more than" };
                let expected = format!("{than} the limit, {} in {}", limit.quantity, limit.field);
                problems.with(&request.field, &request.quantity, expected, "lower the request, or raise the limit");
            }
        }
    }
}

/// How the names of huge pages begin, which have their size behind it.
const HUGE_PAGES: &str = "hugepages-";

/// Names of resources that every node has.
const OF_EVERY_NODE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Whether there is such a resource of containers: Kubernetes' own, or another one with its maker's domain.
fn is_resource(name: &str) -> bool {
    let own = OF_EVERY_NODE.contains(&name) || name.starts_with(HUGE_PAGES);
    shape::is_label_key(name) && !name.starts_with("requests.") && (own || name.contains('/'))
}

/// Whether the resource is a number of devices, as what has another domain than Kubernetes' is.
fn is_counted(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

fn whole_where_counted(name: &str, said: &Said, problems: &Problems) {
    let broken = Quantity::parse(&said.quantity).is_some_and(|quantity| !quantity.is_whole());
    if is_counted(name) && broken {
        problems.with(&said.field, &said.quantity, format!("a whole number of {name}"), "write how many");
    }
}
