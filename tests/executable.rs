//! Promises 14.x: one static executable of a bounded size that runs no program but itself and the workload.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::world::{release, supervisor};

/// Bars of design §13, in bytes.
const LARGEST: u64 = 26_000_000;
const LARGEST_WITHOUT_WASM: u64 = 15_000_000;

/// What the program headers and the dynamic section of an ELF file say.
#[derive(Debug, Default)]
struct Elf {
    position_independent: bool,
    interpreter: bool,
    needed: usize,
}

impl Elf {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the executable");
        let number = |at: usize, length: usize| {
            bytes[at..at + length].iter().rev().fold(0_usize, |value, &byte| (value << 8) | usize::from(byte))
        };
        assert_eq!(&bytes[..5], b"\x7fELF\x02", "no 64-bit ELF file");
        // elf(5): e_type at 16, e_phoff at 32, e_phentsize at 54, e_phnum at 56; ET_DYN is 3.
        let mut elf = Self { position_independent: number(16, 2) == 3, ..Self::default() };
        for index in 0..number(56, 2) {
            let header = number(32, 8) + index * number(54, 2);
            let (kind, offset, size) = (number(header, 4), number(header + 8, 8), number(header + 32, 8));
            match kind {
                // PT_INTERP
                3 => elf.interpreter = true,
                // PT_DYNAMIC: entries of tag and value; DT_NEEDED is 1.
                2 => elf.needed = (offset..offset + size).step_by(16).filter(|&entry| number(entry, 8) == 1).count(),
                _ => {}
            }
        }
        elf
    }
}

#[test]
fn the_release_executable_is_static_pie_and_small_enough() {
    let built = supervisor();
    let elf = Elf::read(built);
    assert!(elf.position_independent && !elf.interpreter && elf.needed == 0, "{elf:?}");
    let size = std::fs::metadata(built).expect("size").len();
    assert!(size <= LARGEST, "{size} bytes are more than {LARGEST}");
    // Control: a dynamic program is seen as one.
    let dynamic = Elf::read(Path::new("/bin/ls"));
    assert!(dynamic.interpreter && dynamic.needed > 0, "{dynamic:?}");
}

#[test]
fn without_wasm_policies_it_is_smaller() {
    let built = release(Some("slim"), &["--no-default-features", "--features", "supervisor"]);
    let size = std::fs::metadata(&built).expect("size").len();
    assert!(size <= LARGEST_WITHOUT_WASM, "{size} bytes are more than {LARGEST_WITHOUT_WASM}");
    let help = Command::new(&built).args(["run", "--help"]).output().expect("start");
    assert!(!String::from_utf8_lossy(&help.stdout).contains("--policy-wasm"));
}

#[test]
fn an_error_whose_backtrace_is_asked_for_is_told_all_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let (policy, rules) = (directory.path().join("policy.yaml"), directory.path().join("rules.rego"));
    std::fs::write(&policy, "version: 1\n").expect("write");
    std::fs::write(&rules, "package openshell.egress\ndecision := {\n").expect("write");
    for value in [None, Some("1"), Some("full")] {
        let mut explain = Command::new(supervisor());
        explain.args(["policy", "explain"]).arg(&policy).arg("--policy-rules").arg(&rules);
        explain.args(["--host", "api.example.com", "--port", "443", "--binary", "/usr/bin/curl"]);
        explain.env_remove("RUST_BACKTRACE").envs(value.map(|value| ("RUST_BACKTRACE", value)));
        let told = explain.output().expect("start");
        let stderr = String::from_utf8_lossy(&told.stderr);
        assert!(told.status.code() == Some(1) && stderr.contains("rules.rego:3:1"), "{value:?}: {told:?}");
    }
}

#[test]
fn no_program_is_executed_but_itself_and_the_workload() {
    let trace = std::env::temp_dir().join(format!("openshell-trace-{}", std::process::id()));
    let status = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=execve,execveat", "-e", "signal=none", "-o"])
        .arg(&trace)
        .arg(supervisor())
        .args(["run", "--allow", "api.example.com:443", "--", "/bin/true"])
        .status()
        .expect("strace");
    assert!(status.success());
    let text = std::fs::read_to_string(&trace).expect("the trace");
    std::fs::remove_file(&trace).expect("remove");
    let executed: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains("exec") && line.trim_end().ends_with("= 0"))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    let allowed = BTreeSet::from([supervisor().to_str().expect("a path"), "/proc/self/exe", "/bin/true"]);
    assert!(executed.contains("/bin/true"), "the trace shows nothing: {text}");
    assert!(executed.is_subset(&allowed), "{executed:?}");
}
