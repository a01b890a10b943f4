//! Rego by regorus: compiled once into a program for its virtual machine, run by as many machines as ask at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::program::Program;
use regorus::rvm::vm::RegoVM;
use regorus::{CompiledPolicy, Engine, Rc, Value};

use super::super::decision::{Action, Question};
use super::super::document::Document;
use super::super::problem::{LoadError, Problem};
use super::{EndpointRef, EngineError, Input, SHIPPED_RULES, Verdict};

/// What is evaluated.
const ENTRY: &str = "data.openshell.egress.decision";

/// The rule in it.
const RULE: &str = "decision";

/// Instructions of one evaluation, after which it counts as failed. The shipped rules take some hundreds, and some tens
/// more for each endpoint that shares a host; this ends a runaway rule of an operator's in a fraction of a second.
const MAX_INSTRUCTIONS: usize = 5_000_000;

/// Machines kept for the next question; more than the connections that are decided at one instant would idle.
const MAX_IDLE_MACHINES: usize = 16;

const GRAMMAR: &str = "correct the Rego; policies/README.md documents what it is given and must return";

/// Rules ready to run.
struct Compiled {
    program: Arc<Program>,
    policy: CompiledPolicy,
}

/// The shipped rules, compiled when first asked: every generation shares them, and a workload that never connects does
/// not wait for them. That they compile is a test's business.
static SHIPPED: OnceLock<Result<Arc<Compiled>, LoadError>> = OnceLock::new();

/// Rules with one generation's data.
pub(in super::super) struct RegoEngine {
    /// An operator's rules; `None` for the shipped ones.
    own: Option<Arc<Compiled>>,
    data: Value,
    idle: Mutex<Vec<RegoVM>>,
}

impl fmt::Debug for RegoEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegoEngine").field("shipped", &self.own.is_none()).finish_non_exhaustive()
    }
}

impl RegoEngine {
    /// The shipped rules, with a generation's data.
    ///
    /// # Errors
    ///
    /// The data cannot be converted.
    pub(in super::super) fn shipped(document: &Document<'_>) -> Result<Self, LoadError> {
        Ok(Self { own: None, data: data("egress.rego", document)?, idle: Mutex::default() })
    }

    /// Compiles an operator's `rules`, which errors call `name`.
    ///
    /// # Errors
    ///
    /// They do not parse or compile, have no entry, or define what the data holds already.
    pub(in super::super) fn with_rules(rules: &str, name: &str, document: &Document<'_>) -> Result<Self, LoadError> {
        let own = Arc::new(Compiled::new(rules, name)?);
        let this = Self { own: Some(own), data: data(name, document)?, idle: Mutex::default() };
        this.prepare().map_err(|error| LoadError::of_file(name, error.to_string(), "rename the rule"))?;
        Ok(this)
    }

    /// Does now what the first question would have to wait for.
    pub(super) fn prepare(&self) -> Result<(), EngineError> {
        let machine = self.machine()?;
        self.put_back(machine);
        Ok(())
    }

    fn compiled(&self) -> Result<&Compiled, EngineError> {
        let compiled = match &self.own {
            Some(own) => Ok(own),
            None => SHIPPED.get_or_init(|| Compiled::new(SHIPPED_RULES, "egress.rego").map(Arc::new)).as_ref(),
        };
        compiled.map(|compiled| &**compiled).map_err(|error| EngineError::Evaluation(error.to_string()))
    }

    fn machine(&self) -> Result<RegoVM, EngineError> {
        if let Some(machine) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(machine);
        }
        let compiled = self.compiled()?;
        let mut machine = RegoVM::new_with_policy(compiled.policy.clone());
        machine.set_max_instructions(MAX_INSTRUCTIONS);
        machine.load_program(Arc::clone(&compiled.program));
        machine.set_data(self.data.clone()).map_err(|error| EngineError::Evaluation(error.to_string()))?;
        Ok(machine)
    }

    fn put_back(&self, machine: RegoVM) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_MACHINES {
            idle.push(machine);
        }
    }

    pub(super) fn decide(&self, question: Question<'_>) -> Result<Verdict, EngineError> {
        let mut machine = self.machine()?;
        machine.set_input(input(question));
        let result = machine.execute_entry_point_by_index(0);
        // A machine that failed is not asked again: nothing is known about the state that it was left in.
        let answer = result.map_err(|error| EngineError::Evaluation(error.to_string()))?;
        self.put_back(machine);
        verdict(&answer)
    }
}

impl Compiled {
    fn new(rules: &str, name: &str) -> Result<Self, LoadError> {
        let failed = |message: String, remedy: &str| LoadError::of_file(name, message, remedy);
        let mut engine = Engine::new();
        let package =
            engine.add_policy(name.to_owned(), rules.to_owned()).map_err(|error| located(name, &error.to_string()))?;
        if package != "data.openshell.egress" {
            let message = format!("package {package}; expected openshell.egress");
            return Err(failed(message, "start the file with 'package openshell.egress'"));
        }
        let defined = engine.has_declared_rule_rooted_at(name, RULE);
        if !defined.map_err(|error| located(name, &error.to_string()))? {
            return Err(failed(format!("no rule '{RULE}'"), "define it; policies/README.md shows its shape"));
        }
        let entry: Rc<str> = ENTRY.into();
        let policy = engine.compile_with_entrypoint(&entry).map_err(|error| located(name, &error.to_string()))?;
        let program =
            Compiler::compile_from_policy(&policy, &[ENTRY]).map_err(|error| located(name, &error.to_string()))?;
        Ok(Self { program, policy })
    }
}

fn data(name: &str, document: &Document<'_>) -> Result<Value, LoadError> {
    serde_json::to_value(document)
        .map(Value::from)
        .map_err(|error| LoadError::of_file(name, format!("the policy has no form as data: {error}"), GRAMMAR))
}

/// An error of regorus', which draws the place as `--> FILE:LINE:COLUMN` and puts what is wrong after `error:`.
fn located(name: &str, error: &str) -> LoadError {
    let place = error.split_once("--> ").and_then(|(_, rest)| {
        let mut parts = rest.lines().next()?.rsplitn(3, ':');
        let (column, line) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((line, column))
    });
    let message = error.rsplit_once("error: ").map_or(error, |(_, message)| message).trim().replace('\n', " ");
    let mut problem = Problem::of_file(message, GRAMMAR);
    if let Some((line, column)) = place {
        (problem.line, problem.column) = (line, column);
    }
    LoadError { file: name.to_owned(), problems: vec![problem] }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::from(fields.into_iter().map(|(key, value)| (Value::from(key), value)).collect::<BTreeMap<_, _>>())
}

fn input(question: Question<'_>) -> Value {
    let Input { network, process } = Input::of(question);
    let network = object([("host", network.host.as_ref().into()), ("port", u32::from(network.port).into())]);
    match process {
        None => object([("network", network)]),
        Some(process) => {
            let ancestors: Vec<Value> = process.ancestors.into_iter().map(Value::from).collect();
            let process = object([
                ("path", process.path.into()),
                ("sha256", process.sha256.into()),
                ("ancestors", ancestors.into()),
            ]);
            object([("network", network), ("process", process)])
        }
    }
}

fn verdict(answer: &Value) -> Result<Verdict, EngineError> {
    let shape = |what: &str| EngineError::Shape(what.to_owned());
    if *answer == Value::Undefined {
        return Err(shape("nothing, as no rule applied"));
    }
    answer.as_object().map_err(|_| shape("no object"))?;
    let text = |value: &Value| value.as_string().map(|text| text.to_string()).ok();
    let action = match text(&answer["action"]).as_deref() {
        Some("allow") => Action::Allow,
        Some("deny") => Action::Deny,
        _ => return Err(shape("action is neither allow nor deny")),
    };
    let policy = match &answer["policy"] {
        Value::Null | Value::Undefined => None,
        value => Some(text(value).ok_or_else(|| shape("policy is no text"))?),
    };
    let mut endpoints = Vec::new();
    match &answer["endpoints"] {
        Value::Undefined => {}
        Value::Array(listed) => {
            for endpoint in listed.iter() {
                let (policy, index) = (text(&endpoint["policy"]), endpoint["index"].as_u64().ok());
                let (Some(policy), Some(index)) = (policy, index.and_then(|index| usize::try_from(index).ok())) else {
                    return Err(shape("an endpoint is no {policy, index}"));
                };
                endpoints.push(EndpointRef { policy, index });
            }
        }
        _ => return Err(shape("endpoints is no list")),
    }
    Ok(Verdict {
        action,
        reason: text(&answer["reason"]).ok_or_else(|| shape("reason is no text"))?,
        policy,
        endpoints,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const SHIPPED_TESTS: &str = include_str!("../../../policies/egress_test.rego");

    fn load(rules: &str) -> Result<RegoEngine, String> {
        let policy = Policy::restrictive_default();
        RegoEngine::with_rules(rules, "r.rego", &Document::of(&policy, true, "/".as_ref()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_rego_test_holds() {
        let mut engine = Engine::new();
        // As OPA does: a builtin that is given the wrong type leaves its rule undefined.
        engine.set_strict_builtin_errors(false);
        engine.add_policy("egress.rego".into(), SHIPPED_RULES.into()).unwrap();
        engine.add_policy("egress_test.rego".into(), SHIPPED_TESTS.into()).unwrap();
        let names: Vec<&str> = SHIPPED_TESTS
            .lines()
            .filter_map(|line| line.split_whitespace().next().filter(|word| word.starts_with("test_")))
            .collect();
        assert!(names.len() > 20, "found {} tests", names.len());
        for name in names {
            let result = engine.eval_rule(format!("data.openshell.egress_test.{name}")).unwrap();
            assert_eq!(result, Value::from(true), "{name}");
        }
    }

    #[test]
    fn rules_are_validated_when_loaded() {
        assert!(load(SHIPPED_RULES).is_ok());
        for (rules, expected) in [
            ("package openshell.egress\nimport rego.v1\ndecision := {", "r.rego:"),
            ("package other\nimport rego.v1\ndecision := 1", "expected openshell.egress"),
            ("package openshell.egress\nimport rego.v1\nallow := true", "no rule 'decision'"),
            ("package openshell.egress\nimport rego.v1\ndecision := nowhere", "nowhere"),
        ] {
            let error = load(rules).unwrap_err();
            assert!(error.contains(expected), "{rules}: {error}");
        }
    }
}
