//! Security events as OCSF 1.8 JSON: Network Activity (4001), HTTP Activity (4002), SSH Activity (4007), Process
//! Activity (1007) and Detection Finding (2004), one compact line each, with the profiles `host`, `security_control` and `network_proxy`.

mod record;

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use record::{
    Acting, Activity, Class, ConnectionInfo, Device, Endpoint, Fields, FileFacts, FindingInfo, HttpRequest,
    HttpResponse, Metadata, Named, Process, Product, Record, Traffic, Unmapped, Url, User,
};

use super::line::{printable, sentence};
use super::sink::SandboxIdentity;
use super::{
    Actor, Disposition, Event, Finding, HttpRequestFacts, NetworkActivity, ProcessActivity, ProcessStep, Severity,
    SshActivity, SshOutcome, SshStep, Stage,
};

/// Version of the schema that records follow.
const SCHEMA: &str = "1.8.0";

/// `device.type_id` of a virtual machine or a container.
const DEVICE_VIRTUAL: u8 = 6;

/// `file.type_id` of a regular file.
const FILE_REGULAR: u8 = 1;

/// `connection_info.direction_id` of traffic that leaves.
const OUTBOUND: u8 = 2;

/// `activity_id` of what has no number of its own.
const OTHER: u8 = 99;

/// Encodes events, and holds what all of one process have in common.
#[derive(Debug)]
pub(super) struct Encoder {
    device: Device,
    sequence: u64,
}

impl Encoder {
    pub(super) fn new(sandbox: SandboxIdentity) -> Self {
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Self { device: Device { type_id: DEVICE_VIRTUAL, r#type: "Virtual", hostname, sandbox }, sequence: 0 }
    }

    /// Appends the record of `event` and a line end to `to`.
    pub(super) fn encode(&mut self, at: SystemTime, event: &Event, to: &mut Vec<u8>) {
        self.sequence += 1;
        let start = to.len();
        let record = self.record(at, event);
        // Only a type that cannot be JSON can fail here, and these can; a half record would still be worse than none.
        if serde_json::to_writer(&mut *to, &record).is_err() {
            to.truncate(start);
            return;
        }
        to.push(b'\n');
    }

    fn record<'e>(&'e self, at: SystemTime, event: &'e Event) -> Record<'e> {
        let mut record = Record {
            class: Class::Finding,
            activity: Activity(1, "Create"),
            severity: Severity::Informational,
            time: at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX)),
            message: sentence(event),
            metadata: Metadata {
                version: SCHEMA,
                sequence: self.sequence,
                profiles: &["host"],
                product: Product {
                    name: env!("CARGO_PKG_NAME"),
                    vendor_name: "OpenShell",
                    version: env!("CARGO_PKG_VERSION"),
                },
            },
            device: &self.device,
            fields: Fields::default(),
        };
        match event {
            Event::Network(activity) => network(&mut record, activity),
            Event::Process(process) => process_activity(&mut record, process),
            Event::Ssh(activity) => ssh_activity(&mut record, activity),
            Event::Finding(finding) => finding_created(&mut record, finding),
        }
        record
    }
}

fn network<'e>(record: &mut Record<'e>, activity: &'e NetworkActivity) {
    let denied = activity.disposition == Disposition::Denied;
    record.class = if activity.http.is_some() { Class::Http } else { Class::Network };
    record.activity = match &activity.http {
        Some(http) => method(&http.method),
        None => match (denied, activity.stage) {
            (false, _) => Activity(1, "Open"),
            (true, Stage::Reload) => Activity(2, "Close"),
            (true, Stage::Dial) => Activity(4, "Fail"),
            (true, _) => Activity(5, "Refuse"),
        },
    };
    record.severity = match (denied, activity.stage) {
        (false, _) => Severity::Informational,
        // Somebody tries to get around the proxy, or hides who they are.
        (true, Stage::Bypass | Stage::Attribution) => Severity::Medium,
        (true, _) => Severity::Low,
    };
    record.metadata.profiles = match activity.via {
        None => &["host", "security_control"],
        Some(_) => &["host", "security_control", "network_proxy"],
    };
    let fields = &mut record.fields;
    // A dial that fails was allowed; that it came to nothing is an error, not a decision.
    let (action, disposition) = match (denied, activity.stage) {
        // Let through, and noticed.
        (false, _) if activity.disposition == Disposition::Audited => ((1, "Allowed"), (15, "Detected")),
        (false, _) => ((1, "Allowed"), (1, "Allowed")),
        (true, Stage::Dial) => ((1, "Allowed"), (27, "Error")),
        (true, _) => ((2, "Denied"), (2, "Blocked")),
    };
    (fields.action_id, fields.action) = (Some(action.0), Some(action.1));
    (fields.disposition_id, fields.disposition) = (Some(disposition.0), Some(disposition.1));
    let status = if denied { (2, "Failure") } else { (1, "Success") };
    (fields.status_id, fields.status) = (Some(status.0), Some(status.1));
    fields.status_detail = activity.reason.as_deref().map(printable);
    fields.count = (activity.count > 1).then_some(activity.count);
    fields.policy = activity.policy.as_deref().map(|name| Named { name: printable(name) });
    fields.dst_endpoint = Some(endpoint(&activity.host, activity.address, activity.port));
    fields.proxy_endpoint = activity.via.as_ref().map(|via| endpoint(&via.host, None, via.port));
    fields.connection_info = Some(ConnectionInfo {
        direction_id: OUTBOUND,
        direction: "Outbound",
        protocol_name: printable(&activity.protocol),
        protocol_num: protocol_number(&activity.protocol),
    });
    fields.actor = acting(&activity.actor);
    fields.http_request = activity
        .http
        .as_ref()
        .map(|http| HttpRequest { http_method: printable(&http.method), url: url(activity, http) });
    fields.http_response = activity.http.as_ref().and_then(|http| http.status).map(|code| HttpResponse { code });
    fields.unmapped = Some(Unmapped { stage: activity.stage.name() });
}

fn url<'e>(activity: &'e NetworkActivity, http: &'e HttpRequestFacts) -> Url<'e> {
    let (path, query) = match http.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (http.path.as_str(), None),
    };
    Url {
        scheme: if http.secure { "https" } else { "http" },
        hostname: printable(&activity.host),
        port: activity.port,
        path: printable(path),
        query_string: query.map(printable),
    }
}

fn process_activity<'e>(record: &mut Record<'e>, process: &'e ProcessActivity) {
    record.class = Class::Process;
    let command = printable(&process.command);
    let name = basename(&command);
    record.activity = match process.activity {
        ProcessStep::Launched => Activity(1, "Launch"),
        ProcessStep::Exited(_) => Activity(2, "Terminate"),
    };
    let fields = &mut record.fields;
    (fields.status_id, fields.status) = (Some(1), Some("Success"));
    if let ProcessStep::Exited(code) = process.activity {
        fields.exit_code = Some(code);
    }
    // The supervisor acts on the workload.
    fields.actor = Some(Acting {
        process: Process {
            pid: Some(std::process::id()),
            name: Some(Cow::Borrowed(env!("CARGO_PKG_NAME"))),
            file: None,
            user: None,
        },
    });
    fields.process = Some(Process { pid: process.pid, name: Some(name), file: None, user: None });
}

/// Programs that are run are process activity, as the workload is; the rest is what they came in by.
fn ssh_activity<'e>(record: &mut Record<'e>, activity: &'e SshActivity) {
    let denied = matches!(activity.outcome, SshOutcome::Refused(_));
    record.class = Class::Ssh;
    record.activity = match (&activity.step, denied) {
        (SshStep::Closed | SshStep::Carried { over: true, .. }, _) => Activity(2, "Close"),
        (SshStep::Ran { ended: Some(_), .. }, _) => Activity(2, "Terminate"),
        (SshStep::Ran { .. }, _) => Activity(1, "Launch"),
        (SshStep::Passed { .. }, _) => Activity(6, "Traffic"),
        (_, true) => Activity(5, "Refuse"),
        (_, false) => Activity(1, "Open"),
    };
    // Somebody who may not come in is worth a look.
    record.severity = match (&activity.step, denied) {
        (_, false) => Severity::Informational,
        (SshStep::Opened, true) => Severity::Medium,
        (_, true) => Severity::Low,
    };
    let fields = &mut record.fields;
    if let SshStep::Ran { command, pid, ended, .. } = &activity.step {
        record.class = Class::Process;
        let name = command.as_deref().map_or(Cow::Borrowed("shell"), printable);
        fields.process = Some(Process { pid: *pid, name: Some(basename(&name)), file: None, user: None });
        fields.exit_code = *ended;
    } else {
        record.metadata.profiles = &["host", "security_control"];
        let (action, disposition) =
            if denied { ((2, "Denied"), (2, "Blocked")) } else { ((1, "Allowed"), (1, "Allowed")) };
        (fields.action_id, fields.action) = (Some(action.0), Some(action.1));
        (fields.disposition_id, fields.disposition) = (Some(disposition.0), Some(disposition.1));
    }
    if let SshStep::Forwarded { host, port } = &activity.step {
        fields.dst_endpoint = Some(endpoint(host, None, u16::try_from(*port).unwrap_or_default()));
    }
    if let SshStep::Passed { path, read, written } = &activity.step {
        let path = printable(path);
        fields.file = Some(FileFacts { type_id: FILE_REGULAR, name: basename(&path), path });
        // The client is the source.
        fields.traffic = Some(Traffic { bytes_in: *read, bytes_out: *written });
    }
    let (status, reason) = match &activity.outcome {
        SshOutcome::Done => ((1, "Success"), None),
        SshOutcome::Refused(reason) | SshOutcome::Failed(reason) => ((2, "Failure"), Some(reason)),
    };
    (fields.status_id, fields.status) = (Some(status.0), Some(status.1));
    fields.status_detail = match (reason, &activity.step) {
        (Some(reason), SshStep::Carried { what, .. }) => {
            Some(format!("{}: {}", printable(what), printable(reason)).into())
        }
        (Some(reason), _) => Some(printable(reason)),
        (None, SshStep::Carried { what, .. }) => Some(printable(what)),
        (None, _) => None,
    };
    fields.count = (activity.count > 1).then_some(activity.count);
    fields.actor = acting(&activity.actor);
}

fn finding_created<'e>(record: &mut Record<'e>, finding: &'e Finding) {
    record.severity = finding.severity;
    let fields = &mut record.fields;
    fields.is_alert = Some(finding.severity >= Severity::High);
    // 1 is New: nothing follows up on a finding of ours.
    (fields.status_id, fields.status) = (Some(1), Some("New"));
    fields.finding_info =
        Some(FindingInfo { uid: finding.kind, types: [finding.kind], title: printable(&finding.message) });
}

fn method(name: &str) -> Activity {
    match name {
        "CONNECT" => Activity(1, "Connect"),
        "DELETE" => Activity(2, "Delete"),
        "GET" => Activity(3, "Get"),
        "HEAD" => Activity(4, "Head"),
        "OPTIONS" => Activity(5, "Options"),
        "POST" => Activity(6, "Post"),
        "PUT" => Activity(7, "Put"),
        "TRACE" => Activity(8, "Trace"),
        "PATCH" => Activity(9, "Patch"),
        _ => Activity(OTHER, "Other"),
    }
}

fn endpoint(host: &str, address: Option<IpAddr>, port: u16) -> Endpoint<'_> {
    let named = host.parse::<IpAddr>().ok();
    Endpoint {
        hostname: named.is_none().then(|| printable(host)),
        ip: address.or(named),
        port: (port != 0).then_some(port),
    }
}

/// Assigned protocol numbers (IANA), as far as events name them.
fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmp" => Some(1),
        "icmpv6" => Some(58),
        "sctp" => Some(132),
        number => number.parse().ok(),
    }
}

fn acting(actor: &Actor) -> Option<Acting<'_>> {
    if *actor == Actor::default() {
        return None;
    }
    let path = actor.binary.as_deref().map(printable);
    let name = path.as_ref().map(basename);
    let file = path.zip(name.clone()).map(|(path, name)| FileFacts { type_id: FILE_REGULAR, name, path });
    let user = actor.uid.map(|uid| User { uid: uid.to_string() });
    Some(Acting { process: Process { pid: actor.pid, name, file, user } })
}

fn basename<'e>(path: &Cow<'e, str>) -> Cow<'e, str> {
    fn last(path: &str) -> &str {
        path.rsplit('/').next().unwrap_or(path)
    }
    match path {
        Cow::Borrowed(path) => Cow::Borrowed(last(path)),
        Cow::Owned(path) => Cow::Owned(last(path).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn encode(event: Event) -> Value {
        let mut encoder = Encoder::new(SandboxIdentity { name: Some("demo".into()), id: Some("u-1".into()) });
        let mut bytes = Vec::new();
        encoder.encode(SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1234), &event, &mut bytes);
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        required(&value);
        value
    }

    /// What OCSF's base event requires of every class.
    fn required(value: &Value) {
        for key in ["activity_id", "category_uid", "class_uid", "type_uid", "severity_id", "time"] {
            assert!(value[key].is_u64(), "{key} in {value}");
        }
        let (class, activity) = (value["class_uid"].as_u64().unwrap(), value["activity_id"].as_u64().unwrap());
        assert_eq!(value["type_uid"], class * 100 + activity);
        assert_eq!(value["category_uid"], class / 1000);
        assert_eq!(value["time"], 1234);
        assert_eq!(value["metadata"]["version"], SCHEMA);
        for key in ["name", "vendor_name", "version"] {
            assert!(value["metadata"]["product"][key].is_string());
        }
        assert_eq!(value["device"]["uid"], "u-1");
        assert_eq!(value["device"]["type_id"], 6);
    }

    fn activity(disposition: Disposition, stage: Stage) -> NetworkActivity {
        NetworkActivity {
            disposition,
            stage,
            host: "api.example.com".into(),
            port: 443,
            address: Some(IpAddr::from([192, 0, 2, 1])),
            via: None,
            protocol: "tcp".into(),
            actor: Actor { binary: Some("/usr/bin/curl".into()), pid: Some(7), uid: Some(1000) },
            policy: Some("web".into()),
            reason: Some("because".into()),
            count: 1,
            http: None,
        }
    }

    #[test]
    fn a_connection_is_network_activity() {
        let value = encode(Event::Network(activity(Disposition::Denied, Stage::Connect)));
        assert_eq!(value["type_uid"], 400_105);
        assert_eq!((value["action_id"].as_u64(), value["disposition_id"].as_u64()), (Some(2), Some(2)));
        assert_eq!(value["dst_endpoint"]["hostname"], "api.example.com");
        assert_eq!(value["dst_endpoint"]["ip"], "192.0.2.1");
        assert_eq!(value["connection_info"]["protocol_num"], 6);
        assert_eq!(value["actor"]["process"]["file"]["path"], "/usr/bin/curl");
        assert_eq!(value["actor"]["process"]["user"]["uid"], "1000");
        assert_eq!(value["policy"]["name"], "web");
        assert_eq!(value["status_detail"], "because");
        assert_eq!(value["unmapped"]["stage"], "connect");
        assert_eq!(encode(Event::Network(activity(Disposition::Allowed, Stage::Connect)))["type_uid"], 400_101);
    }

    #[test]
    fn a_failed_dial_was_allowed_and_a_bypass_is_worse_than_a_denial() {
        let dial = encode(Event::Network(activity(Disposition::Denied, Stage::Dial)));
        assert_eq!((dial["action_id"].as_u64(), dial["disposition"].as_str()), (Some(1), Some("Error")));
        let mut bypass = activity(Disposition::Denied, Stage::Bypass);
        bypass.host = "2001:db8::1".into();
        bypass.address = None;
        bypass.count = 9;
        let bypass = encode(Event::Network(bypass));
        assert_eq!(bypass["severity_id"], 3);
        assert_eq!(bypass["count"], 9);
        assert_eq!(bypass["dst_endpoint"]["ip"], "2001:db8::1");
        assert!(bypass["dst_endpoint"].get("hostname").is_none());
    }

    #[test]
    fn a_request_is_http_activity_and_escapes_what_the_workload_chose() {
        let mut request = activity(Disposition::Allowed, Stage::Forward);
        let facts = |path: &str, secure| {
            Some(HttpRequestFacts { method: "BREW".into(), path: path.into(), secure, status: Some(418) })
        };
        request.http = facts("/\u{9b}2J", false);
        let plain = request.clone();
        request.http = facts("/a?b=\u{9b}&c?", true);
        let url = encode(Event::Network(request))["http_request"]["url"].clone();
        assert_eq!(
            (&url["scheme"], &url["path"], &url["query_string"]),
            (&"https".into(), &"/a".into(), &"b=\\u{9b}&c?".into())
        );
        let request = plain;
        let value = encode(Event::Network(request));
        assert_eq!(value["type_uid"], 400_299);
        assert_eq!(value["http_response"]["code"], 418);
        let url = &value["http_request"]["url"];
        assert_eq!((&url["scheme"], &url["path"]), (&"http".into(), &"/\\u{9b}2J".into()));
        assert!(url["query_string"].is_null(), "{url}");
    }

    #[test]
    fn start_end_and_findings_have_their_classes() {
        let step = |activity| Event::Process(ProcessActivity { activity, command: "/bin/sh".into(), pid: Some(2) });
        assert_eq!(encode(step(ProcessStep::Launched))["type_uid"], 100_701);
        let end = encode(step(ProcessStep::Exited(3)));
        assert_eq!((end["type_uid"].as_u64(), end["exit_code"].as_u64()), (Some(100_702), Some(3)));
        assert_eq!(end["process"]["name"], "sh");
        let finding = encode(Event::Finding(Finding {
            severity: Severity::High,
            kind: "landlock-not-enforced",
            message: "why".into(),
        }));
        assert_eq!(finding["type_uid"], 200_401);
        assert_eq!(finding["finding_info"]["uid"], "landlock-not-enforced");
        assert_eq!(finding["is_alert"], true);
    }
}
