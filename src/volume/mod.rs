//! What init containers lay out in the volumes of a pod, for containers that could not do it themselves.

pub mod directory;
pub mod sideload;
pub mod tls;
pub mod workspace;
