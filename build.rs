//! Link arguments of the executable alone, so that changing them does not rebuild the dependencies.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A static-pie relocates itself at every start, and the supervisor starts itself twice per workload: packed
    // relative relocations (ELF gABI, SHT_RELR) take a twentieth of the space, and of the reading.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
