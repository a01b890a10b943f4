//! Roles.

pub mod policy;
