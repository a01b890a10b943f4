//! What must hold of the inputs beyond their shape (facts: refused before anything is rendered).

mod annotations;
mod config;
mod mounts;
mod sandbox;
mod together;

pub(super) use config::config;
pub(super) use sandbox::sandbox;
pub(super) use together::together;
