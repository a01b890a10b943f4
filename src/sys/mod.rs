//! The only room where unsafe code may stand, each block with its SAFETY line, and the thin layer over kernel
//! interfaces that several mechanisms share.
#![allow(unsafe_code, reason = "the one room for it: src/lib.rs denies it everywhere else")]

pub mod attempt;
pub mod capability;
pub mod child;
pub mod file;
#[cfg(test)]
pub(crate) mod in_tests;
pub mod memory;
pub mod netlink;
pub mod notify;
pub mod process;
pub mod procfs;
pub mod reactor;
pub mod rights;
pub mod tty;
mod unwind;
pub mod xattr;
