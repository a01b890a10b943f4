//! What a plugin answers instead of a result (CNI specification 1.1, section 5, "Error").

use std::fmt;

use serde::Serialize;

/// "Incompatible CNI version."
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// "Container unknown or does not exist."
pub const UNKNOWN_CONTAINER: u32 = 3;
/// "Invalid necessary environment variables."
pub const INVALID_ENVIRONMENT: u32 = 4;
/// "I/O failure."
pub const IO_FAILURE: u32 = 5;
/// "Failed to decode content."
pub const UNDECODABLE: u32 = 6;
/// "Invalid network config."
pub const INVALID_CONFIG: u32 = 7;
/// "Try again later."
pub const TRY_AGAIN: u32 = 11;
/// STATUS: "The plugin is not available (i.e. cannot service ADD requests)."
pub const NOT_AVAILABLE: u32 = 50;
/// Ours, from here on: the credentials for the API server cannot be used.
pub const CREDENTIALS: u32 = 100;
/// The API server refuses, or does not know the pod.
pub const API_REFUSED: u32 = 101;
/// The pod asks for a fence that would not hold, or in words that mean none.
pub const UNFIT_POD: u32 = 102;
/// The fence does not stand, or is not what it should be.
pub const FENCE: u32 = 103;

/// An answer to the runtime that is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// One of this module's numbers.
    pub code: u32,
    /// What failed, in a few words that are always the same.
    pub message: &'static str,
    /// What exactly, and what helps.
    pub details: String,
}

impl CniError {
    /// An error of this kind.
    pub fn new(code: u32, message: &'static str, details: impl fmt::Display) -> Self {
        Self { code, message, details: details.to_string() }
    }

    /// The object that goes to standard output, in the caller's version of the specification.
    #[must_use]
    pub fn object(&self, version: &str) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Object<'a> {
            cni_version: &'a str,
            code: u32,
            msg: &'a str,
            details: &'a str,
        }
        let object = Object { cni_version: version, code: self.code, msg: self.message, details: &self.details };
        // Strings and a number: nothing of that can fail.
        serde_json::to_string(&object).unwrap_or_default()
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.details)
    }
}
