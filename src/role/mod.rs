//! One file a role.
pub mod launch;
