//! What the product promises, kept by black-box tests: the numbers are those of `SPECIFICATION.md`, and every file
//! here is one group of promises. Real programs, real kernels, real name spaces; root is needed, and said to be.

#[allow(dead_code, reason = "the bench uses the same harness, and other parts of it")]
mod world;

mod origins;

mod cli;
mod lifecycle;
mod network;
mod programs;
mod run;
mod confinement;
mod executable;
mod wire;
mod bounds;
mod doctor;
mod events;
mod identity;
mod policy;
mod reload;
mod specification;
