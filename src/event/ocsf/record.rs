//! The shape of a record: what OCSF has for its classes, as far as there is something to say.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Serialize;

use crate::event::Severity;
use crate::event::sink::SandboxIdentity;

/// Class and category, with their captions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Class {
    Network,
    Http,
    Ssh,
    Process,
    Finding,
}

impl Class {
    fn facts(self) -> (u32, &'static str, u32, &'static str) {
        match self {
            Self::Network => (4001, "Network Activity", 4, "Network Activity"),
            Self::Http => (4002, "HTTP Activity", 4, "Network Activity"),
            Self::Ssh => (4007, "SSH Activity", 4, "Network Activity"),
            Self::Process => (1007, "Process Activity", 1, "System Activity"),
            Self::Finding => (2004, "Detection Finding", 2, "Findings"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Activity(pub(super) u8, pub(super) &'static str);

/// A record before its derived numbers are written.
pub(super) struct Record<'e> {
    pub(super) class: Class,
    pub(super) activity: Activity,
    pub(super) severity: Severity,
    pub(super) time: u64,
    pub(super) message: String,
    pub(super) metadata: Metadata<'e>,
    pub(super) device: &'e Device,
    pub(super) fields: Fields<'e>,
}

impl Serialize for Record<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'w, 'e> {
            time: u64,
            class_uid: u32,
            class_name: &'static str,
            category_uid: u32,
            category_name: &'static str,
            activity_id: u8,
            activity_name: &'static str,
            type_uid: u32,
            severity_id: u8,
            severity: &'static str,
            message: &'w str,
            metadata: &'w Metadata<'e>,
            device: &'w Device,
            #[serde(flatten)]
            fields: &'w Fields<'e>,
        }
        let (class_uid, class_name, category_uid, category_name) = self.class.facts();
        let Activity(activity_id, activity_name) = self.activity;
        Whole {
            time: self.time,
            class_uid,
            class_name,
            category_uid,
            category_name,
            activity_id,
            activity_name,
            type_uid: class_uid * 100 + u32::from(activity_id),
            severity_id: self.severity as u8,
            severity: match self.severity {
                Severity::Informational => "Informational",
                Severity::Low => "Low",
                Severity::Medium => "Medium",
                Severity::High => "High",
                Severity::Critical => "Critical",
            },
            message: &self.message,
            metadata: &self.metadata,
            device: self.device,
            fields: &self.fields,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
pub(super) struct Metadata<'e> {
    pub(super) version: &'static str,
    pub(super) sequence: u64,
    pub(super) profiles: &'e [&'static str],
    pub(super) product: Product,
}

#[derive(Serialize)]
pub(super) struct Product {
    pub(super) name: &'static str,
    pub(super) vendor_name: &'static str,
    pub(super) version: &'static str,
}

#[derive(Debug)]
pub(super) struct Device {
    pub(super) type_id: u8,
    pub(super) r#type: &'static str,
    pub(super) hostname: Option<String>,
    pub(super) sandbox: SandboxIdentity,
}

impl Serialize for Device {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type_id", &self.type_id)?;
        map.serialize_entry("type", self.r#type)?;
        for (key, value) in [("hostname", &self.hostname), ("name", &self.sandbox.name), ("uid", &self.sandbox.id)] {
            if let Some(value) = value {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

/// What only some classes have.
#[derive(Default, Serialize)]
pub(super) struct Fields<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) action_id: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) action: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disposition_id: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disposition: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) is_alert: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status_id: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status_detail: Option<Cow<'e, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<Named<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dst_endpoint: Option<Endpoint<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proxy_endpoint: Option<Endpoint<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connection_info: Option<ConnectionInfo<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) http_request: Option<HttpRequest<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) http_response: Option<HttpResponse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) actor: Option<Acting<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<Process<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<FileFacts<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) traffic: Option<Traffic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) finding_info: Option<FindingInfo<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unmapped: Option<Unmapped>,
}

#[derive(Serialize)]
pub(super) struct Named<'e> {
    pub(super) name: Cow<'e, str>,
}

#[derive(Serialize)]
pub(super) struct Endpoint<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hostname: Option<Cow<'e, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ip: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
}

#[derive(Serialize)]
pub(super) struct ConnectionInfo<'e> {
    pub(super) direction_id: u8,
    pub(super) direction: &'static str,
    pub(super) protocol_name: Cow<'e, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protocol_num: Option<u8>,
}

#[derive(Serialize)]
pub(super) struct HttpRequest<'e> {
    pub(super) http_method: Cow<'e, str>,
    pub(super) url: Url<'e>,
}

#[derive(Serialize)]
pub(super) struct Url<'e> {
    pub(super) scheme: &'static str,
    pub(super) hostname: Cow<'e, str>,
    pub(super) port: u16,
    pub(super) path: Cow<'e, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) query_string: Option<Cow<'e, str>>,
}

#[derive(Serialize)]
pub(super) struct HttpResponse {
    pub(super) code: u16,
}

#[derive(Serialize)]
pub(super) struct Acting<'e> {
    pub(super) process: Process<'e>,
}

#[derive(Serialize)]
pub(super) struct Process<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Cow<'e, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<FileFacts<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<User>,
}

#[derive(Serialize)]
pub(super) struct FileFacts<'e> {
    pub(super) type_id: u8,
    pub(super) name: Cow<'e, str>,
    pub(super) path: Cow<'e, str>,
}

#[derive(Serialize)]
pub(super) struct Traffic {
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

#[derive(Serialize)]
pub(super) struct User {
    pub(super) uid: String,
}

#[derive(Serialize)]
pub(super) struct FindingInfo<'e> {
    pub(super) uid: &'static str,
    pub(super) types: [&'static str; 1],
    pub(super) title: Cow<'e, str>,
}

#[derive(Serialize)]
pub(super) struct Unmapped {
    pub(super) stage: &'static str,
}
