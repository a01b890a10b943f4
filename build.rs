//! Link arguments of the executable alone, so that changing them does not rebuild the dependencies.

use std::path::PathBuf;
use std::{env, fs};

/// Leaves the tables out by which a stack is unwound (System V ABI, "DWARF Call Frame Information"). In a release a panic
/// aborts, so nothing reads them, and they are a tenth of the executable. `INSERT` keeps the linker's own layout.
const NO_UNWIND_TABLES: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame.*) *(.gcc_except_table) \
                                *(.gcc_except_table.*) } } INSERT AFTER .text;\n";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A static-pie relocates itself at every start, and the supervisor starts itself twice per workload: packed
    // relative relocations (ELF gABI, SHT_RELR) take a twentieth of the space, and of the reading.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    if env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        let script = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("no-unwind-tables.ld");
        match fs::write(&script, NO_UNWIND_TABLES) {
            Ok(()) => {
                println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
                println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", script.display());
                // See src/sys/unwind.rs.
                println!("cargo::rustc-link-arg-bins=-Wl,--wrap=_Unwind_Backtrace");
            }
            Err(error) => println!("cargo::error={}: {error}", script.display()),
        }
    }
}
