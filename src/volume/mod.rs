//! What init containers lay out in the pod's volumes.

pub mod sideload;
