//! Where events go, and the handle by which everything emits them.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
#[cfg(test)]
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::metrics::Metrics;
use super::writer::{Queue, Record, Writer};
use super::{Disposition, Event, Finding, NetworkActivity, Severity, Stage, line, ocsf};

/// How long the end of the process waits for a slow reader.
const FLUSH: Duration = Duration::from_secs(2);

/// Where OCSF records go (`--events`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// Nowhere.
    #[default]
    Off,
    /// Standard output, one record a line.
    Stdout,
    /// A file, appended to, made with mode 0600.
    File(PathBuf),
}

impl FromStr for Destination {
    type Err = Infallible;

    /// `off`, `-` for standard output, or a path.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "off" => Self::Off,
            "-" => Self::Stdout,
            path => Self::File(path.into()),
        })
    }
}

/// How much of what happens is said on standard error (`--log-level`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What stops the sandbox or leaves it unprotected.
    Error,
    /// Refusals and findings as well.
    #[default]
    Warn,
    /// What was allowed as well, and the workload's start and end.
    Info,
    /// Everything.
    Debug,
}

/// What [`LogLevel::from_str`] did not understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no log level: use error, warn, info, debug or off")]
pub struct UnknownLevel(String);

impl FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        match text.to_ascii_lowercase().as_str() {
            "off" => Ok(Self::Off),
            "error" => Ok(Self::Error),
            "warn" | "warning" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" | "trace" => Ok(Self::Debug),
            _ => Err(UnknownLevel(text.to_owned())),
        }
    }
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// Names of the sandbox that every record carries; what is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxIdentity {
    /// Name that people know it by.
    pub name: Option<String>,
    /// UUID.
    pub id: Option<String>,
}

/// What [`Events::new`] needs to know.
#[derive(Clone, Debug, Default)]
pub struct EventsConfig {
    /// Where OCSF records go.
    pub ocsf: Destination,
    /// How much is said on standard error.
    pub log_level: LogLevel,
    /// Whose events these are.
    pub sandbox: SandboxIdentity,
}

/// The recorder of events, shared by everything that emits them. Cheap to clone.
///
/// Emitting never waits: when the writer is behind by its whole queue, the event is dropped and counted, and the loss is
/// itself reported once there is room. Findings of [`Severity::High`] and above have places of their own in the queue.
#[derive(Clone, Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    metrics: Arc<Metrics>,
    records: bool,
    log_level: LogLevel,
    queue: Option<Arc<Queue>>,
    #[cfg(test)]
    recorded: Option<Arc<Mutex<Vec<Event>>>>,
}

impl Drop for Shared {
    /// The last user is gone: what waits is written, then the writer ends.
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.drain(FLUSH);
            queue.close();
        }
    }
}

impl Events {
    /// Opens the destinations and starts the writer.
    ///
    /// # Errors
    /// The file that cannot be opened, by its path, or a thread that cannot be started.
    pub fn new(config: EventsConfig) -> io::Result<Self> {
        let records: Option<Box<dyn Write + Send>> = match &config.ocsf {
            Destination::Off => None,
            Destination::Stdout => Some(Box::new(io::stdout())),
            Destination::File(path) => Some(Box::new(open(path)?)),
        };
        Self::start(config, records, Box::new(io::stderr()))
    }

    fn start(
        config: EventsConfig,
        records: Option<Box<dyn Write + Send>>,
        lines: Box<dyn Write + Send>,
    ) -> io::Result<Self> {
        let metrics = Arc::new(Metrics::new());
        let queue = Arc::new(Queue::default());
        let writes_records = records.is_some();
        let ocsf = ocsf::Encoder::new(config.sandbox);
        let mut writer = Writer::new(queue.clone(), metrics.clone(), records, lines, config.log_level, ocsf);
        std::thread::Builder::new().name("events".into()).spawn(move || writer.run())?;
        Ok(Self {
            shared: Arc::new(Shared {
                metrics,
                records: writes_records,
                log_level: config.log_level,
                queue: Some(queue),
                #[cfg(test)]
                recorded: None,
            }),
        })
    }

    /// A recorder that only counts.
    #[must_use]
    pub fn off() -> Self {
        Self {
            shared: Arc::new(Shared {
                metrics: Arc::new(Metrics::new()),
                records: false,
                log_level: LogLevel::Off,
                queue: None,
                #[cfg(test)]
                recorded: None,
            }),
        }
    }

    /// A recorder that keeps every event where a test can look at it.
    #[cfg(test)]
    pub(crate) fn recorded() -> (Self, Arc<Mutex<Vec<Event>>>) {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let shared = Shared {
            metrics: Arc::new(Metrics::new()),
            records: true,
            log_level: LogLevel::Off,
            queue: None,
            recorded: Some(recorded.clone()),
        };
        (Self { shared: Arc::new(shared) }, recorded)
    }

    /// What `/metrics` shows.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Counts `event` and has it written where it is wanted. Never waits.
    pub fn emit(&self, event: Event) {
        if let Event::Network(activity) = &event {
            self.shared.metrics.count_connection(activity.disposition, activity.stage, activity.count.max(1));
        }
        self.record(event);
    }

    /// As [`emit`](Self::emit) for one network activity, which is built only if somebody will read it: what the data
    /// path calls for every request.
    pub fn emit_network(&self, disposition: Disposition, stage: Stage, build: impl FnOnce() -> NetworkActivity) {
        self.shared.metrics.count_connection(disposition, stage, 1);
        let level = if disposition == Disposition::Allowed { LogLevel::Info } else { LogLevel::Warn };
        if self.shared.records || self.shared.log_level >= level {
            self.record(Event::Network(build()));
        }
    }

    /// A [`Finding`] in one call.
    pub fn find(&self, severity: Severity, kind: &'static str, message: impl Into<String>) {
        self.emit(Event::Finding(Finding { severity, kind, message: message.into() }));
    }

    fn record(&self, event: Event) {
        let shared = &self.shared;
        shared.metrics.count_rest(&event);
        #[cfg(test)]
        if let Some(recorded) = &shared.recorded {
            recorded.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            return;
        }
        let Some(queue) = &shared.queue else { return };
        if shared.records || shared.log_level >= line::level(&event) {
            let urgent = matches!(&event, Event::Finding(finding) if finding.severity >= Severity::High);
            if !queue.push(Record { at: SystemTime::now(), event }, urgent) {
                shared.metrics.events_dropped.inc();
            }
        }
    }

    /// Waits until everything emitted so far is written, or its reader has proved too slow ([`FLUSH`]).
    pub fn flush(&self) {
        if let Some(queue) = &self.shared.queue {
            queue.drain(FLUSH);
        }
    }
}

/// Opens `path` for records. Mode 0600 for a new file: records name hosts and paths that the workload's user need not
/// see.
fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "cannot open the events file {}: {error}; name a file in a directory that exists and that the \
                 supervisor may write, `-` for standard output, or `off`",
                path.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use std::time::Instant;

    use super::super::Actor;
    use super::super::writer::QUEUE;
    use super::*;

    /// What a writer wrote, and the gate that holds it up.
    #[derive(Clone, Default)]
    struct Sheet {
        text: Arc<Mutex<Vec<u8>>>,
        gate: Arc<Mutex<()>>,
        failing: Arc<Mutex<Option<io::ErrorKind>>>,
    }

    impl Sheet {
        fn text(&self) -> String {
            String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Sheet {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            drop(self.gate.lock().unwrap());
            if let Some(kind) = *self.failing.lock().unwrap() {
                return Err(kind.into());
            }
            self.text.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn activity(disposition: Disposition) -> NetworkActivity {
        NetworkActivity {
            disposition,
            stage: Stage::Connect,
            host: "api.example.com".into(),
            port: 443,
            address: None,
            via: None,
            protocol: "tcp".into(),
            actor: Actor { binary: Some("/usr/bin/curl".into()), pid: Some(7), uid: None },
            policy: None,
            reason: None,
            count: 1,
            http: None,
        }
    }

    fn started(level: LogLevel, records: &Sheet, lines: &Sheet) -> Events {
        let config = EventsConfig { log_level: level, ..EventsConfig::default() };
        Events::start(config, Some(Box::new(records.clone())), Box::new(lines.clone())).unwrap()
    }

    #[test]
    fn records_are_appended_to_a_private_file_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        for round in 0..2 {
            let events = Events::new(EventsConfig {
                ocsf: Destination::File(path.clone()),
                log_level: LogLevel::Off,
                sandbox: SandboxIdentity { name: Some("demo".into()), id: None },
            })
            .unwrap();
            for _ in 0..1000 {
                events.emit(Event::Network(activity(Disposition::Allowed)));
            }
            events.flush();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.lines().count(), 1000 * (round + 1));
            for (index, line) in text.lines().skip(1000 * round).enumerate() {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(value["metadata"]["sequence"], index as u64 + 1);
                assert_eq!(value["device"]["name"], "demo");
            }
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let config = EventsConfig { ocsf: Destination::File("/nonexistent/events".into()), ..EventsConfig::default() };
        let error = Events::new(config).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/events") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn the_level_chooses_lines_and_not_records() {
        for (level, expected) in [(LogLevel::Off, 0), (LogLevel::Error, 0), (LogLevel::Warn, 1), (LogLevel::Info, 2)] {
            let (records, lines) = (Sheet::default(), Sheet::default());
            let events = started(level, &records, &lines);
            events.emit_network(Disposition::Allowed, Stage::Connect, || activity(Disposition::Allowed));
            events.emit_network(Disposition::Denied, Stage::Connect, || activity(Disposition::Denied));
            events.flush();
            assert_eq!(lines.text().lines().count(), expected, "{level}");
            assert_eq!(records.text().lines().count(), 2);
        }
    }

    #[test]
    fn an_activity_that_nobody_reads_is_counted_and_not_built() {
        let events = Events::off();
        events.emit_network(Disposition::Allowed, Stage::Connect, || panic!("built for nobody"));
        let text = events.metrics().render().unwrap();
        assert!(text.contains("{disposition=\"allowed\",stage=\"connect\"} 1"), "{text}");
    }

    #[test]
    fn a_stalled_reader_costs_events_that_are_counted_and_reported_but_no_alarm_and_no_time() {
        let (records, lines) = (Sheet::default(), Sheet::default());
        let events = started(LogLevel::Warn, &records, &lines);
        let gate = records.gate.lock().unwrap();
        let lines_gate = lines.gate.lock().unwrap();
        let begin = Instant::now();
        let offered = 3 * QUEUE;
        for _ in 0..offered {
            events.emit(Event::Network(activity(Disposition::Allowed)));
        }
        events.find(Severity::High, "landlock-not-enforced", "the kernel has none");
        assert!(begin.elapsed() < Duration::from_secs(1), "emitting waited: {:?}", begin.elapsed());
        let dropped = events.metrics().events_dropped.get();
        assert!(dropped >= (offered - 2 * QUEUE) as u64, "{dropped}");
        drop((gate, lines_gate));
        events.flush();
        assert!(lines.text().contains("the kernel has none"), "{}", lines.text());
        // In one report or in several, as the writer found time; together they tell of each.
        let reported: u64 = lines
            .text()
            .lines()
            .filter_map(|line| line.split_once(" events were dropped")?.0.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(reported, dropped, "{}", lines.text());
        // Every event was either written or counted.
        let written = records.text().lines().filter(|line| line.contains("\"class_uid\":4001")).count();
        assert_eq!(written as u64 + dropped, offered as u64);
    }

    #[test]
    fn a_closed_pipe_costs_the_record_and_nothing_else() {
        let (records, lines) = (Sheet::default(), Sheet::default());
        let events = started(LogLevel::Error, &records, &lines);
        *records.failing.lock().unwrap() = Some(io::ErrorKind::BrokenPipe);
        events.emit(Event::Network(activity(Disposition::Allowed)));
        events.flush();
        assert_eq!(events.metrics().event_write_errors.get(), 1);
        assert!(lines.text().contains("event records are being lost"), "{}", lines.text());
        *records.failing.lock().unwrap() = None;
        events.emit(Event::Network(activity(Disposition::Allowed)));
        events.flush();
        assert!(records.text().contains("1 event records were lost"), "{}", records.text());
        // A dead stderr is survived as well.
        *lines.failing.lock().unwrap() = Some(io::ErrorKind::StorageFull);
        events.find(Severity::Critical, "x", "y");
        events.flush();
        assert_eq!(events.metrics().event_write_errors.get(), 2);
    }

    #[test]
    fn dropping_the_last_handle_writes_what_waits() {
        let (records, lines) = (Sheet::default(), Sheet::default());
        let events = started(LogLevel::Off, &records, &lines);
        events.clone().emit(Event::Network(activity(Disposition::Denied)));
        drop(events);
        assert_eq!(records.text().lines().count(), 1);
    }

    #[test]
    fn a_recorder_for_tests_keeps_what_was_emitted() {
        let (events, recorded) = Events::recorded();
        events.find(Severity::Low, "x", "y");
        assert!(matches!(&recorded.lock().unwrap()[..], [Event::Finding(finding)] if finding.kind == "x"));
    }

    #[test]
    fn destinations_and_levels_are_read_as_written() {
        assert_eq!("-".parse(), Ok(Destination::Stdout));
        assert_eq!("off".parse(), Ok(Destination::Off));
        assert_eq!("/tmp/e".parse(), Ok(Destination::File("/tmp/e".into())));
        assert_eq!("INFO".parse(), Ok(LogLevel::Info));
        assert_eq!(
            "loud".parse::<LogLevel>().unwrap_err().to_string().split(':').next().unwrap(),
            "`loud` is no log level"
        );
    }
}
