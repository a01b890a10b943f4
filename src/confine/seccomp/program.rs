//! From refusals to one program for the kernel's filter machine (Documentation/userspace-api/seccomp_filter.rst,
//! Documentation/networking/filter.rst).
//!
//! The kernel translates a filter at every start, and runs it once for each call number that there is, to learn which calls
//! it need never be asked about. So the program finds a number by halving, and knows both answers: a tenth of the steps that one
//! comparison after the other takes, in a program of one answer each, which is what seccompiler makes.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{BpfProgram, sock_filter};

use super::SeccompError;
use super::rules::Test;

/// Loads a word of `seccomp_data` into the accumulator.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// Keeps the accumulator's bits that are in the operand.
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Goes on, further on by the operand.
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;

const NUMBER: usize = std::mem::offset_of!(libc::seccomp_data, nr);
const ARCHITECTURE: usize = std::mem::offset_of!(libc::seccomp_data, arch);
const ARGUMENTS: usize = std::mem::offset_of!(libc::seccomp_data, args);

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` of linux/audit.h. Both keep the low word of an argument first.
const AUDIT_ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// x32 calls carry `AUDIT_ARCH_X86_64` and this bit (`__X32_SYSCALL_BIT`), so a comparison with 64-bit numbers misses
/// them, and a kernel built with CONFIG_X86_X32_ABI would run them. On other architectures no number is that large.
pub(super) const X32: u32 = 1 << 30;

/// One way in which a call is refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// What it returns then.
    pub errno: i32,
    /// What must hold of its arguments, all of it.
    pub when: &'static [Test],
}

/// The program that refuses, of each call, what is listed, and lets all else pass. Another architecture's calls (`int 0x80`)
/// kill the process.
///
/// # Errors
/// [`SeccompError::Architecture`]; [`SeccompError::Long`] for refusals that a jump does not reach over.
pub(super) fn compile(refusals: &BTreeMap<u32, Vec<Refusal>>) -> Result<BpfProgram, SeccompError> {
    let architecture = AUDIT_ARCHITECTURE.ok_or(SeccompError::Architecture)?;
    // What is done from a number on, up to the next.
    let mut spans = vec![(0, vec![allow()])];
    for (&number, refusals) in refusals {
        enter(&mut spans, number, judge(refusals)?);
        enter(&mut spans, number + 1, vec![allow()]);
    }
    enter(&mut spans, X32, vec![refuse(libc::ENOSYS)]);
    let mut program = vec![
        load(ARCHITECTURE),
        branch(IF_EQUAL, architecture, 1, 0),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    program.extend(halve(&spans));
    Ok(program)
}

/// Numbers come in order; one that is there is judged anew, and neighbours that are treated alike are one span.
fn enter(spans: &mut Vec<(u32, BpfProgram)>, number: u32, code: BpfProgram) {
    if spans.last().is_some_and(|(from, _)| *from == number) {
        spans.pop();
    }
    if spans.last().is_none_or(|(_, before)| *before != code) {
        spans.push((number, code));
    }
}

/// Finds the span of the number in the accumulator.
fn halve(spans: &[(u32, BpfProgram)]) -> BpfProgram {
    let (low, high) = spans.split_at(spans.len() / 2);
    let Some((from, code)) = high.first() else { return BpfProgram::new() };
    if low.is_empty() {
        return code.clone();
    }
    let (low, high) = (halve(low), halve(high));
    let mut program = match u8::try_from(low.len()) {
        Ok(over) => vec![branch(IF_AT_LEAST, *from, over, 0)],
        // Only an unconditional jump reaches so far.
        Err(_) => vec![branch(IF_AT_LEAST, *from, 0, 1), statement(JUMP, low.len() as u32)],
    };
    program.extend(low);
    program.extend(high);
    program
}

fn judge(refusals: &[Refusal]) -> Result<BpfProgram, SeccompError> {
    let mut program = BpfProgram::new();
    for refusal in refusals {
        // From the last test on, since each skips what comes after it.
        let mut code = vec![refuse(refusal.errno)];
        for test in refusal.when.iter().rev() {
            let skipped = u8::try_from(code.len()).map_err(|_| SeccompError::Long)?;
            code.splice(0..0, check(test, skipped));
        }
        program.extend(code);
        if refusal.when.is_empty() {
            return Ok(program);
        }
    }
    program.push(allow());
    Ok(program)
}

/// Goes on where `test` holds, and `skipped` further where it does not.
fn check(test: &Test, skipped: u8) -> BpfProgram {
    let low = |argument| load(ARGUMENTS + 8 * usize::from(argument));
    match *test {
        Test::Is(argument, value) => vec![low(argument), branch(IF_EQUAL, value, 0, skipped)],
        Test::Not(argument, value) => vec![low(argument), branch(IF_EQUAL, value, skipped, 0)],
        Test::Above(argument, value) => vec![low(argument), branch(IF_ABOVE, value, 0, skipped)],
        Test::Below(argument, value) => vec![low(argument), branch(IF_AT_LEAST, value, skipped, 0)],
        Test::Any(argument, bits) => vec![low(argument), branch(IF_ANY, bits, 0, skipped)],
        Test::Has(argument, bits) => check(&Test::Under(argument, bits, bits), skipped),
        Test::Under(argument, mask, value) => {
            vec![low(argument), statement(AND, mask), branch(IF_EQUAL, value & mask, 0, skipped)]
        }
    }
}

fn load(offset: usize) -> sock_filter {
    statement(LOAD, offset as u32)
}

fn allow() -> sock_filter {
    statement(RETURN, libc::SECCOMP_RET_ALLOW)
}

fn refuse(errno: i32) -> sock_filter {
    statement(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
}

fn statement(code: u16, k: u32) -> sock_filter {
    branch(code, k, 0, 0)
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::confine::seccomp::{Profile, Sockets, refusals_of};

    /// Runs a program as the kernel would. Returns what it returns, and how many steps that took.
    fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let (mut at, mut accumulator) = (0, 0_u32);
        for steps in 1.. {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let holds = match code {
                LOAD => {
                    let offset = k as usize;
                    accumulator = match offset {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        _ => (arguments[(offset - ARGUMENTS) / 8] >> (8 * ((offset - ARGUMENTS) % 8))) as u32,
                    };
                    continue;
                }
                AND => {
                    accumulator &= k;
                    continue;
                }
                JUMP => {
                    at += k as usize;
                    continue;
                }
                RETURN => return (k, steps),
                IF_EQUAL => accumulator == k,
                IF_ABOVE => accumulator > k,
                IF_ANY => accumulator & k != 0,
                IF_AT_LEAST => accumulator >= k,
                _ => panic!("the kernel would refuse {code:#x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
        unreachable!("steps end before numbers do")
    }

    /// The same, straight from the table.
    fn meant(refusals: &BTreeMap<u32, Vec<Refusal>>, number: u32, arguments: [u64; 6]) -> u32 {
        if number >= X32 {
            return libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        }
        let holds = |test: &Test| {
            let low = |argument: u8| arguments[usize::from(argument)] as u32;
            match *test {
                Test::Is(argument, value) => low(argument) == value,
                Test::Not(argument, value) => low(argument) != value,
                Test::Above(argument, value) => low(argument) > value,
                Test::Below(argument, value) => low(argument) < value,
                Test::Any(argument, bits) => low(argument) & bits != 0,
                Test::Has(argument, bits) => low(argument) & bits == bits,
                Test::Under(argument, mask, value) => low(argument) & mask == value,
            }
        };
        let mut all = refusals.get(&number).into_iter().flatten();
        let refusal = all.find(|refusal| refusal.when.iter().all(holds));
        refusal.map_or(libc::SECCOMP_RET_ALLOW, |refusal| libc::SECCOMP_RET_ERRNO | refusal.errno as u32)
    }

    const PROFILES: [Profile; 3] = [Profile::Baseline, Profile::Strict, Profile::Gpu];

    #[test]
    fn another_architecture_s_calls_kill() {
        let program = compile(&refusals_of(Profile::Baseline, Sockets::All)).unwrap();
        let own = AUDIT_ARCHITECTURE.unwrap();
        assert_eq!(run(&program, own, libc::SYS_getpid as u32, [0; 6]).0, libc::SECCOMP_RET_ALLOW, "control");
        assert_eq!(run(&program, own ^ 1, libc::SYS_getpid as u32, [0; 6]).0, libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn a_call_is_found_in_few_steps() {
        /// Twice the halvings of a thousand numbers, and what stands around them.
        const STEPS: usize = 24;
        for profile in PROFILES {
            let program = compile(&refusals_of(profile, Sockets::Streams)).unwrap();
            for number in 0..1000 {
                let (answer, steps) = run(&program, AUDIT_ARCHITECTURE.unwrap(), number, [0; 6]);
                let by_argument = refusals_of(profile, Sockets::Streams).get(&number).is_some_and(|all| all.len() > 1);
                assert!(steps <= STEPS || by_argument, "{number}: {answer:#x} after {steps} steps");
            }
        }
    }

    #[test]
    fn far_jumps_reach() {
        // Refusals of one argument each, so many that no conditional jump reaches over half of them.
        const WHEN: &[Test] = &[Test::Is(0, 7), Test::Not(1, 7), Test::Above(2, 7), Test::Below(3, 7)];
        let refusals: BTreeMap<_, _> =
            (0..200).map(|number| (2 * number, vec![Refusal { errno: number as i32, when: WHEN }; 2])).collect();
        let program = compile(&refusals).unwrap();
        for number in 0..402 {
            for arguments in [[7, 8, 8, 6, 0, 0], [7, 7, 8, 6, 0, 0]] {
                let answer = run(&program, AUDIT_ARCHITECTURE.unwrap(), number, arguments).0;
                assert_eq!(answer, meant(&refusals, number, arguments), "{number}");
            }
        }
        let too_many = [Test::Is(0, 7); 200];
        let when: &'static [Test] = Box::leak(Box::new(too_many));
        let refusals = BTreeMap::from([(1, vec![Refusal { errno: 1, when }])]);
        assert!(matches!(compile(&refusals), Err(SeccompError::Long)));
    }

    fn argument() -> impl Strategy<Value = u64> {
        let near = 0..64_u64;
        let bit = (0..64_u32).prop_map(|bit| 1 << bit);
        let command =
            prop_oneof![Just(0x5412_u64), Just(0x541c), Just(libc::AT_EMPTY_PATH as u64), Just(libc::SIGCHLD as u64)];
        prop_oneof![near, bit, command, any::<u64>()]
    }

    proptest! {
        #[test]
        fn the_program_says_what_the_table_says(
            profile in prop::sample::select(&PROFILES),
            sockets in prop_oneof![Just(Sockets::All), Just(Sockets::Streams)],
            arguments in prop::array::uniform6((argument(), argument()).prop_map(|(one, other)| one | other)),
            odd in any::<u32>(),
        ) {
            let refusals = refusals_of(profile, sockets);
            let program = compile(&refusals).unwrap();
            for number in (0..600).chain([odd, X32 - 1, X32, X32 | 1, u32::MAX]) {
                let answer = run(&program, AUDIT_ARCHITECTURE.unwrap(), number, arguments).0;
                prop_assert_eq!(answer, meant(&refusals, number, arguments), "{} {:?}", number, arguments);
            }
        }
    }
}
