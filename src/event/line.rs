//! The one-line form for people, and the escaping of what the workload may have chosen.
//!
//! Hosts, paths and reasons come from programs that policy does not trust, and the line lands on somebody's terminal:
//! whatever a terminal could take for a command, and whatever reorders text, is shown by its number instead.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{
    Actor, Disposition, Event, LogLevel, NetworkActivity, ProcessStep, Severity, SshActivity, SshOutcome, SshStep,
    Stage,
};

/// Characters of one untrusted string that a line or a record shows. A host name has at most 253 (RFC 1035 §2.3.4); a
/// path of that many tells what was meant.
const SHOWN_CHARACTERS: usize = 256;

/// The same of a reason, which ends in what its reader can do: an excerpt of the policy with the paths of programs.
const REASON_CHARACTERS: usize = 1024;

/// Level at which an event is worth a line.
pub(super) fn level(event: &Event) -> LogLevel {
    match event {
        Event::Network(activity) if activity.disposition != Disposition::Allowed => LogLevel::Warn,
        Event::Ssh(SshActivity { outcome: SshOutcome::Refused(_), .. }) => LogLevel::Warn,
        Event::Network(_) | Event::Process(_) | Event::Ssh(_) => LogLevel::Info,
        Event::Finding(finding) => match finding.severity {
            Severity::Critical | Severity::High => LogLevel::Error,
            Severity::Medium | Severity::Low => LogLevel::Warn,
            Severity::Informational => LogLevel::Info,
        },
    }
}

/// What happened, as one sentence without a line end.
pub(super) fn sentence(event: &Event) -> String {
    match event {
        Event::Network(activity) => network(activity),
        Event::Process(process) => {
            let command = printable(&process.command);
            let pid = process.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            match process.activity {
                ProcessStep::Launched => format!("started {command}{pid}"),
                ProcessStep::Exited(code) => format!("ended {command}{pid}: exit code {code}"),
            }
        }
        Event::Ssh(activity) => ssh(activity),
        Event::Finding(finding) => {
            let word = match finding.severity {
                Severity::Informational => "note",
                Severity::Low | Severity::Medium => "warning",
                Severity::High => "alert",
                Severity::Critical => "failure",
            };
            format!("{word}: {} [{}]", printable_to(&finding.message, REASON_CHARACTERS), finding.kind)
        }
    }
}

fn ssh(activity: &SshActivity) -> String {
    let what = match &activity.step {
        SshStep::Opened => "a connection".to_owned(),
        SshStep::Closed => "the end of a connection".to_owned(),
        SshStep::Ran { command, terminal, pid, ended } => {
            let what = command.as_deref().map_or(Cow::Borrowed("a shell"), printable);
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            let ended = ended.map_or_else(String::new, |code| format!(": exit code {code}"));
            format!("{what}{}{pid}{ended}", if *terminal { " on a terminal" } else { "" })
        }
        SshStep::Forwarded { host, port } => {
            format!("a connection to {}", destination(host, u16::try_from(*port).unwrap_or_default()))
        }
        SshStep::Carried { what, over } => {
            format!("{}files: {}", if *over { "the end of " } else { "" }, printable(what))
        }
        SshStep::Passed { path, read, written } => {
            format!("file {}: {written} bytes in, {read} bytes out", printable(path))
        }
        SshStep::Asked(name) => format!("{:?}", printable(name)),
    };
    let (verb, reason) = match &activity.outcome {
        SshOutcome::Done => ("ssh", None),
        SshOutcome::Refused(reason) => ("refused ssh", Some(reason)),
        SshOutcome::Failed(reason) => ("ssh", Some(reason)),
    };
    let mut line = format!("{verb} {what}");
    actor(&mut line, &activity.actor);
    if activity.count > 1 {
        let _ = write!(line, " {} times", activity.count);
    }
    if let Some(reason) = reason {
        let _ = write!(line, ": {}", printable_to(reason, REASON_CHARACTERS));
    }
    line
}

fn network(activity: &NetworkActivity) -> String {
    let denied = activity.disposition == Disposition::Denied;
    let verb = match (denied, activity.stage) {
        (false, _) if activity.disposition == Disposition::Audited => "audited",
        (false, _) => "allowed",
        (true, Stage::Dial) => "failed",
        (true, Stage::Reload) => "closed",
        (true, _) => "denied",
    };
    let mut line = String::with_capacity(160);
    line.push_str(verb);
    if let Some(http) = &activity.http {
        let _ = write!(line, " {}", printable(&http.method));
    }
    if activity.protocol != "tcp" {
        let _ = write!(line, " {}", printable(&activity.protocol));
    }
    let _ = write!(line, " {}", destination(&activity.host, activity.port));
    if let Some(http) = &activity.http {
        let _ = write!(line, "{}", printable(&http.path));
    }
    if let Some(via) = &activity.via {
        let _ = write!(line, " via {via}");
    }
    match (denied, activity.stage, &activity.policy) {
        (true, Stage::Bypass, _) => line.push_str(" around the proxy"),
        (true, Stage::Destination, _) => line.push_str(" by the destination guard"),
        (true, Stage::Attribution, _) => line.push_str(" for want of an identity"),
        (true, Stage::Parse, _) => line.push_str(" as malformed"),
        (true, Stage::Dial, _) => {}
        (true, Stage::Reload, _) => line.push_str(" by the new policy"),
        (true, Stage::Tls, _) => line.push_str(" for its TLS"),
        (true, Stage::Connect | Stage::Forward | Stage::Request, None) => line.push_str(" by policy"),
        (_, _, Some(policy)) => {
            let _ = write!(line, " by policy {}", printable(policy));
        }
        (false, _, None) => {}
    }
    actor(&mut line, &activity.actor);
    if activity.count > 1 {
        let _ = write!(line, " {} times", activity.count);
    }
    if let Some(reason) = &activity.reason {
        let _ = write!(line, ": {}", printable_to(reason, REASON_CHARACTERS));
    }
    line
}

/// `host:port` as URLs spell it (RFC 3986 §3.2.2): an IPv6 address in brackets, no port where there is none.
pub(super) fn destination(host: &str, port: u16) -> String {
    let host = printable(host);
    match (port, host.contains(':')) {
        (0, _) => host.into_owned(),
        (_, true) => format!("[{host}]:{port}"),
        (_, false) => format!("{host}:{port}"),
    }
}

fn actor(line: &mut String, actor: &Actor) {
    let binary = actor.binary.as_deref().map(printable);
    let pid = actor.pid.map(|pid| format!("pid {pid}"));
    // The user is worth its place only where the program is not known.
    let uid = actor.uid.filter(|_| actor.binary.is_none()).map(|uid| format!("uid {uid}"));
    let mut separator = " (";
    for part in [binary, pid.map(Cow::Owned), uid.map(Cow::Owned)].into_iter().flatten() {
        line.push_str(separator);
        line.push_str(&part);
        separator = ", ";
    }
    if separator == ", " {
        line.push(')');
    }
}

/// `text` with everything that a terminal would not simply print shown by number, cut to [`SHOWN_CHARACTERS`].
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    printable_to(text, SHOWN_CHARACTERS)
}

/// The same, cut to another length.
fn printable_to(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most && text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len().min(4 * most));
    for (index, character) in text.chars().enumerate() {
        if index == most {
            shown.push('…');
            break;
        }
        if misleads(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Whether a character does anything else than show itself: it steers the terminal, ends a line, turns the direction of
/// text (UAX #9 §2, `Bidi_Control`), or is not seen, so that two names look like one (UTS #39 §3.1; general category Cf).
/// Whoever shows what a workload may have chosen shows such by its number.
#[must_use]
pub fn misleads(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, HttpRequestFacts, ProcessActivity, Via};
    use super::*;

    fn denied() -> NetworkActivity {
        NetworkActivity {
            disposition: Disposition::Denied,
            stage: Stage::Connect,
            host: "api.example.com".into(),
            port: 443,
            address: None,
            via: None,
            protocol: "tcp".into(),
            actor: Actor { binary: Some("/usr/bin/curl".into()), pid: Some(7), uid: Some(1000) },
            policy: None,
            reason: Some("no entry lists this host".into()),
            count: 1,
            http: None,
        }
    }

    #[test]
    fn a_denial_says_where_who_and_why() {
        assert_eq!(
            sentence(&Event::Network(denied())),
            "denied api.example.com:443 by policy (/usr/bin/curl, pid 7): no entry lists this host"
        );
    }

    #[test]
    fn an_allowance_names_its_entry_and_the_request() {
        let mut activity = denied();
        activity.disposition = Disposition::Allowed;
        activity.stage = Stage::Forward;
        activity.policy = Some("github".into());
        activity.reason = None;
        activity.http =
            Some(HttpRequestFacts { method: "GET".into(), path: "/a".into(), secure: false, status: Some(200) });
        assert_eq!(
            sentence(&Event::Network(activity)),
            "allowed GET api.example.com:443/a by policy github (/usr/bin/curl, pid 7)"
        );
    }

    #[test]
    fn an_upstream_proxy_is_named() {
        let mut activity = denied();
        activity.stage = Stage::Dial;
        activity.via = Some(Via { host: "2001:db8::1".into(), port: 3128 }.into());
        assert_eq!(
            sentence(&Event::Network(activity)),
            "failed api.example.com:443 via [2001:db8::1]:3128 (/usr/bin/curl, pid 7): no entry lists this host"
        );
    }

    #[test]
    fn a_bypass_without_a_program_shows_the_user_and_the_count() {
        let mut activity = denied();
        activity.stage = Stage::Bypass;
        activity.host = "2001:db8::1".into();
        activity.protocol = "udp".into();
        activity.port = 53;
        activity.count = 12;
        activity.reason = None;
        activity.actor = Actor { binary: None, pid: None, uid: Some(1000) };
        assert_eq!(
            sentence(&Event::Network(activity)),
            "denied udp [2001:db8::1]:53 around the proxy (uid 1000) 12 times"
        );
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown_by_number() {
        let mut activity = denied();
        activity.host = "a\u{1b}]0;owned\u{7}\r\nopenshell: allowed\u{9b}31m\u{202e}moc".into();
        let line = sentence(&Event::Network(activity));
        assert!(line.contains("a\\u{1b}]0;owned\\u{7}\\u{d}\\u{a}openshell"), "{line}");
        assert!(line.contains("\\u{9b}31m\\u{202e}moc"), "{line}");
        assert!(!line.chars().any(char::is_control));
        // The control: an ordinary name in another script passes as it is.
        assert_eq!(printable("bücher.example"), "bücher.example");
    }

    #[test]
    fn long_strings_are_cut() {
        let long = "a".repeat(100_000);
        assert_eq!(printable(&long).chars().count(), SHOWN_CHARACTERS + 1);
    }

    #[test]
    fn levels_show_denials_by_default_and_allowances_on_request() {
        let allowed = NetworkActivity { disposition: Disposition::Allowed, ..denied() };
        assert_eq!(level(&Event::Network(denied())), LogLevel::Warn);
        assert_eq!(level(&Event::Network(allowed)), LogLevel::Info);
        let finding = |severity| Event::Finding(Finding { severity, kind: "x", message: "y".into() });
        assert_eq!(level(&finding(Severity::High)), LogLevel::Error);
        assert_eq!(level(&finding(Severity::Informational)), LogLevel::Info);
        let process = ProcessActivity { activity: ProcessStep::Exited(3), command: "/bin/false".into(), pid: Some(2) };
        assert_eq!(sentence(&Event::Process(process)), "ended /bin/false (pid 2): exit code 3");
    }
}
