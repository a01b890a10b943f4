//! What the product promises, kept by black-box tests: the numbers are those of `SPECIFICATION.md`, and every file
//! here is one group of promises. Real programs, real kernels, real name spaces; root is needed, and said to be.

#[allow(dead_code, reason = "the bench uses the same harness, and other parts of it")]
mod world;

mod clients;
mod cluster;
mod containerd;
mod cri;
mod installer;
#[allow(dead_code, reason = "as whole as its users will want it")]
mod kubernetes;
mod node;
mod origins;
#[allow(dead_code, reason = "the bench uses the same pods, and other parts of them")]
mod pod;
mod podman;
#[allow(dead_code, reason = "the bench uses the same pods, and other parts of them")]
mod two_pods;

mod access;
mod access_attacks;
mod access_client;
mod access_clients;
mod access_files;
mod access_hostile;
mod access_pods;
mod admission;
mod attach;
mod bounds;
mod cli;
mod cni;
mod cni_install;
mod cni_operation;
mod cni_pods;
mod confinement;
mod cri_pods;
mod doctor;
mod events;
mod examples;
mod executable;
mod fence;
mod identity;
mod interception;
mod learning;
mod lifecycle;
mod network;
mod network_init;
mod network_policies;
mod newcomer;
mod parent;
mod pods;
mod policy;
mod programs;
mod proxy_pod;
mod reload;
mod render;
mod rights;
mod run;
mod sidecar;
mod sideload;
mod specification;
mod trust;
mod verify_fence;
mod verify_policy;
mod wait_for_tcp;
mod wire;
