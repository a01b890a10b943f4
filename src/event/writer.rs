//! Between emitting and writing: the bounded queue, and the thread that empties it.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::SigSet;

use super::metrics::Metrics;
use super::{Event, Finding, LogLevel, Severity, line, ocsf};

/// Events that wait for the writer. At the rate of forward requests that the proxy is made for this is a tenth of a
/// second of a stalled reader, in about a megabyte.
pub(super) const QUEUE: usize = 4096;

/// Further places that only findings of [`Severity::High`] and above may take: there are few kinds of them, and each is
/// reported once.
const RESERVE: usize = 256;

/// How long one write to a descriptor that somebody made non-blocking may be retried.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);

/// Pause between such retries.
const WRITE_PAUSE: Duration = Duration::from_millis(5);

/// JSON that is gathered before it is written: far below what a pipe takes at once, far above one event.
const BATCH_BYTES: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct Record {
    pub at: SystemTime,
    pub event: Event,
}

/// What emitters and the writer share.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// The writer sleeps here.
    filled: Condvar,
    /// Whoever flushes sleeps here.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Record>,
    dropped: u64,
    /// The writer holds records that are not written yet.
    writing: bool,
    /// The writer sleeps; only then is waking it worth a system call.
    sleeping: bool,
    closed: bool,
}

impl Queue {
    /// Lets the writer end once it has written what waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was room.
    pub(super) fn push(&self, record: Record, urgent: bool) -> bool {
        let mut state = self.lock();
        if state.waiting.len() >= QUEUE + if urgent { RESERVE } else { 0 } {
            state.dropped += 1;
            return false;
        }
        state.waiting.push_back(record);
        let wake = std::mem::take(&mut state.sleeping);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        true
    }

    /// Moves what waits into `batch` and says how many were dropped since the last time; `false` once closed and empty.
    fn take(&self, batch: &mut VecDeque<Record>) -> Option<u64> {
        let mut state = self.lock();
        state.writing = false;
        while state.waiting.is_empty() && state.dropped == 0 {
            self.drained.notify_all();
            if state.closed {
                return None;
            }
            state.sleeping = true;
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.sleeping = false;
        state.writing = true;
        std::mem::swap(&mut state.waiting, batch);
        Some(std::mem::take(&mut state.dropped))
    }

    pub(super) fn drain(&self, patience: Duration) {
        let state = self.lock();
        let busy = |state: &mut State| state.writing || !state.waiting.is_empty() || state.dropped > 0;
        // Timing out is the answer to a reader that does not read: the process ends without it.
        drop(self.drained.wait_timeout_while(state, patience, busy));
    }
}

/// The thread that writes.
pub(super) struct Writer {
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    records: Option<Output>,
    lines: Output,
    log_level: LogLevel,
    ocsf: ocsf::Encoder,
}

impl Writer {
    /// What writes `records`, if anything does, and `lines`.
    pub(super) fn new(
        queue: Arc<Queue>,
        metrics: Arc<Metrics>,
        records: Option<Box<dyn Write + Send>>,
        lines: Box<dyn Write + Send>,
        log_level: LogLevel,
        ocsf: ocsf::Encoder,
    ) -> Self {
        Self { queue, metrics, records: records.map(Output::new), lines: Output::new(lines), log_level, ocsf }
    }

    pub(super) fn run(&mut self) {
        // Signals belong to the threads that handle them; one that is delivered here would be lost on them.
        let _ = SigSet::all().thread_block();
        let mut batch = VecDeque::new();
        let mut json = Vec::new();
        while let Some(dropped) = self.queue.take(&mut batch) {
            for record in batch.drain(..) {
                self.write(&record, &mut json);
            }
            if dropped > 0 {
                self.say(
                    Severity::Medium,
                    "events-dropped",
                    format!(
                        "{dropped} events were dropped because whoever reads them is too slow; `--log-level` and \
                         `--events` choose less, or a file"
                    ),
                    &mut json,
                );
            }
            self.write_records(&mut json);
        }
    }

    fn write(&mut self, record: &Record, json: &mut Vec<u8>) {
        if self.log_level >= line::level(&record.event) {
            let text = format!("openshell: {}\n", line::sentence(&record.event));
            // One write a line keeps lines whole beside the workload's own.
            if !self.lines.write(text.as_bytes(), 1) {
                self.metrics.event_write_errors.inc();
            }
        }
        if self.records.is_some() {
            self.ocsf.encode(record.at, &record.event, json);
            if json.len() >= BATCH_BYTES {
                self.write_records(json);
            }
        }
    }

    fn say(&mut self, severity: Severity, kind: &'static str, message: String, json: &mut Vec<u8>) {
        let event = Event::Finding(Finding { severity, kind, message });
        self.metrics.count_rest(&event);
        self.write(&Record { at: SystemTime::now(), event }, json);
    }

    fn write_records(&mut self, json: &mut Vec<u8>) {
        let Some(records) = &mut self.records else { return };
        if json.is_empty() {
            return;
        }
        let count = json.iter().filter(|byte| **byte == b'\n').count() as u64;
        let lost_before = records.lost;
        let written = records.write(json, count);
        json.clear();
        if !written {
            self.metrics.event_write_errors.inc_by(count);
            if lost_before == 0 {
                let reason = records.reason.take().map_or_else(String::new, |error| error.to_string());
                let event = Event::Finding(Finding {
                    severity: Severity::High,
                    kind: "events-not-written",
                    message: format!(
                        "event records are being lost: {reason}; make room or restart with another `--events`"
                    ),
                });
                self.metrics.count_rest(&event);
                if self.log_level >= LogLevel::Error {
                    let text = format!("openshell: {}\n", line::sentence(&event));
                    self.lines.write(text.as_bytes(), 1);
                }
            }
        } else if lost_before > 0 {
            self.say(
                Severity::Medium,
                "events-not-written",
                format!("{lost_before} event records were lost before writing worked again"),
                json,
            );
            self.write_records(json);
        }
    }
}

/// One destination, and what it lost.
struct Output {
    to: Box<dyn Write + Send>,
    /// Records lost since a write last worked.
    lost: u64,
    /// The last write ended inside a record.
    torn: bool,
    /// Why the last write failed.
    reason: Option<io::Error>,
}

impl Output {
    fn new(to: Box<dyn Write + Send>) -> Self {
        Self { to, lost: 0, torn: false, reason: None }
    }

    /// Writes `bytes`, `records` whole lines; `false` if they, or some of them, were lost. Never panics and never ends
    /// the process: a closed pipe or a full disk costs the record, not the sandbox.
    fn write(&mut self, bytes: &[u8], records: u64) -> bool {
        match self.try_write(bytes) {
            Ok(()) => {
                self.lost = 0;
                true
            }
            Err(error) => {
                self.lost += records;
                self.reason = Some(error);
                false
            }
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.torn {
            // Ends the broken line, so that only it is unreadable.
            self.write_all(b"\n")?;
            self.torn = false;
        }
        self.write_all(bytes)?;
        self.to.flush()
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut since: Option<Instant> = None;
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.torn = count < bytes.len();
                    bytes = &bytes[count..];
                    since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The open file description is shared with whoever started us, and with the workload, which may have
                // made it non-blocking (Node does so with pipes).
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if since.get_or_insert_with(Instant::now).elapsed() >= WRITE_PATIENCE {
                        return Err(error);
                    }
                    std::thread::sleep(WRITE_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
