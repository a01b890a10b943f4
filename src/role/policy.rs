//! `policy`: check a file, or explain a decision.
