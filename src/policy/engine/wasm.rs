//! Rules compiled by `opa build -t wasm`, run by opa-wasm on wasmtime.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use opa_wasm::wasmtime::{self, Config, Module, Store, StoreLimits, StoreLimitsBuilder};
use opa_wasm::{DefaultContext, Policy, Runtime};

use super::super::decision::Question;
use super::super::document::Document;
use super::super::problem::LoadError;
use super::{EngineError, Input, Verdict};

/// What is evaluated.
const ENTRY: &str = "openshell/egress/decision";

/// Instructions of one evaluation, after which it counts as failed: a loop without end must not hold a connection.
const EVALUATION_FUEL: u64 = 200_000_000;

/// Instructions to set an instance up, which parses the whole data document.
const SETUP_FUEL: u64 = 20_000_000_000;

/// Memory of one instance: OPA's modules keep the parsed data, some tens of bytes for each of its values.
const MAX_MEMORY_BYTES: usize = 512 * 1024 * 1024;

/// A compiled module with one generation's data.
pub(in super::super) struct WasmEngine {
    module: Module,
    data: serde_json::Value,
    /// The instance that answers next; `None` after one that failed, of whose memory nothing is known.
    instance: Mutex<Option<Instance>>,
}

struct Instance {
    store: Store<StoreLimits>,
    policy: Policy<DefaultContext>,
}

impl fmt::Debug for WasmEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmEngine").finish_non_exhaustive()
    }
}

impl WasmEngine {
    /// Compiles `bytes`, which errors call `name`, and loads the data.
    ///
    /// # Errors
    ///
    /// It is no module of OPA's ABI, or lacks the entry point.
    pub(in super::super) fn new(bytes: &[u8], name: &str, document: &Document<'_>) -> Result<Self, LoadError> {
        let remedy = "build it with: opa build -t wasm -e openshell/egress/decision RULES, and take policy.wasm";
        let failed = |message: String| LoadError::of_file(name, message, remedy);
        let mut config = Config::new();
        config.consume_fuel(true);
        let engine = wasmtime::Engine::new(&config).map_err(|error| failed(format!("no engine: {error:#}")))?;
        let module =
            Module::new(&engine, bytes).map_err(|error| failed(format!("not a WebAssembly module: {error:#}")))?;
        let data = serde_json::to_value(document).map_err(|error| failed(error.to_string()))?;
        let instance = instantiate(&module, &data)
            .map_err(|error| failed(format!("not a policy module of OPA's ABI: {error:#}")))?;
        let entries = instance.policy.entrypoints();
        if !entries.contains(ENTRY) {
            let mut entries: Vec<_> = entries.into_iter().collect();
            entries.sort_unstable();
            return Err(failed(format!("no entry point {ENTRY}; the module has: {}", entries.join(", "))));
        }
        Ok(Self { module, data, instance: Mutex::new(Some(instance)) })
    }

    pub(super) fn decide(&self, question: Question<'_>) -> Result<Verdict, EngineError> {
        // One at a time: an answer takes some tens of microseconds and is remembered.
        let mut slot = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        let mut instance = match slot.take() {
            Some(instance) => instance,
            None => instantiate(&self.module, &self.data).map_err(EngineError::Evaluation)?,
        };
        let answer = instance.evaluate(&Input::of(question)).map_err(EngineError::Evaluation)?;
        *slot = Some(instance);
        verdict(answer)
    }
}

fn instantiate(module: &Module, data: &serde_json::Value) -> Result<Instance, String> {
    let limits = StoreLimitsBuilder::new().memory_size(MAX_MEMORY_BYTES).instances(1).memories(2).build();
    let mut store = Store::new(module.engine(), limits);
    store.limiter(|limits| limits);
    store.set_fuel(SETUP_FUEL).map_err(|error| format!("{error:#}"))?;
    let policy = block_on(async {
        let runtime = Runtime::new(&mut store, module).await?;
        runtime.with_data(&mut store, data).await
    })
    .map_err(|error| format!("{error:#}"))?;
    Ok(Instance { store, policy })
}

impl Instance {
    fn evaluate(&mut self, input: &Input<'_>) -> Result<serde_json::Value, String> {
        self.store.set_fuel(EVALUATION_FUEL).map_err(|error| format!("{error:#}"))?;
        block_on(self.policy.evaluate(&mut self.store, ENTRY, input)).map_err(|error| format!("{error:#}"))
    }
}

/// OPA answers with a result set: a list of one object, or of none where no rule applied.
fn verdict(answer: serde_json::Value) -> Result<Verdict, EngineError> {
    #[derive(serde::Deserialize)]
    struct Row {
        result: serde_json::Value,
    }
    let shape = |error: serde_json::Error| EngineError::Shape(error.to_string());
    let rows: Vec<Row> = serde_json::from_value(answer).map_err(shape)?;
    match <[Row; 1]>::try_from(rows) {
        Ok([row]) => serde_json::from_value(row.result).map_err(shape),
        Err(rows) if rows.is_empty() => Err(EngineError::Shape("nothing, as no rule applied".to_owned())),
        Err(rows) => Err(EngineError::Shape(format!("{} results; expected one", rows.len()))),
    }
}

/// Wakes the thread that waits in [`block_on`].
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future of the engine's to its end. They are asynchronous by interface only: nothing in a policy waits, so this
/// neither needs a runtime nor stalls the one that calls it.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests;
