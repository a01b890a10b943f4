//! How far a transfer is, for a person at a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is written anew: as often as anybody can read it.
const EVERY: Duration = Duration::from_millis(100);

/// Characters of the bar.
const BAR: usize = 30;

/// A line on standard error, where that is a terminal.
pub(super) struct Progress {
    what: String,
    /// Bytes that there will be, where somebody knows.
    total: Option<u64>,
    begun: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// `None` where nobody looks.
    pub(super) fn begin(what: &str, total: Option<u64>) -> Option<Self> {
        std::io::stderr().is_terminal().then(|| Self {
            // What is not to be printed could do anything with a terminal.
            what: what.chars().map(|it| if it.is_control() { '?' } else { it }).collect(),
            total: total.filter(|&total| total > 0),
            begun: Instant::now(),
            shown: None,
        })
    }

    /// So many bytes have gone or come.
    pub(super) fn show(&mut self, bytes: u64) {
        if self.shown.is_none_or(|shown| shown.elapsed() >= EVERY) {
            self.shown = Some(Instant::now());
            let line = line(&self.what, bytes, self.total, self.begun.elapsed());
            let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            // The line was for the time being.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, bytes: u64, total: Option<u64>, time: Duration) -> String {
    let rate = bytes as f64 / time.as_secs_f64().max(0.001);
    let speed = format!("{} {}/s", amount(bytes as f64), amount(rate));
    match total {
        None => format!("{what} {speed}"),
        Some(total) => {
            // The archive is a little longer than what is in it.
            let part = (bytes as f64 / total as f64).min(1.0);
            let full = (part * BAR as f64) as usize;
            format!("{what} [{}{}] {:3.0}% {speed}", "#".repeat(full), " ".repeat(BAR - full), part * 100.0)
        }
    }
}

/// With a unit that leaves a number people can read.
fn amount(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_fast() {
        let second = Duration::from_secs(1);
        assert_eq!(line("x", 1_500_000, None, second), "x 1.5 MB 1.5 MB/s");
        let half = line("x", 500, Some(1000), second);
        assert!(half.contains(&format!("[{}{}]  50%", "#".repeat(15), " ".repeat(15))), "{half}");
        assert!(line("x", 5000, Some(1000), second).contains("100%"));
        assert_eq!(amount(2e15), "2000000.0 GB");
    }
}
