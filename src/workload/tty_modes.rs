//! Terminal modes as SSH encodes them (RFC 4254 §8, RFC 8160 for IUTF8), on the kernel's terminals (termios(3)).

use nix::libc;
use nix::sys::termios::{ControlFlags, InputFlags, LocalFlags, OutputFlags, SpecialCharacterIndices as Key, Termios};

/// Control characters: opcode, and where termios has it.
const KEYS: &[(u8, Key)] = &[
    (1, Key::VINTR),
    (2, Key::VQUIT),
    (3, Key::VERASE),
    (4, Key::VKILL),
    (5, Key::VEOF),
    (6, Key::VEOL),
    (7, Key::VEOL2),
    (8, Key::VSTART),
    (9, Key::VSTOP),
    (10, Key::VSUSP),
    (12, Key::VREPRINT),
    (13, Key::VWERASE),
    (14, Key::VLNEXT),
    (18, Key::VDISCARD),
];

/// The value that means "no such key" (RFC 4254 §8).
const NO_KEY: u32 = 255;

const INPUT: &[(u8, InputFlags)] = &[
    (30, InputFlags::IGNPAR),
    (31, InputFlags::PARMRK),
    (32, InputFlags::INPCK),
    (33, InputFlags::ISTRIP),
    (34, InputFlags::INLCR),
    (35, InputFlags::IGNCR),
    (36, InputFlags::ICRNL),
    (38, InputFlags::IXON),
    (39, InputFlags::IXANY),
    (40, InputFlags::IXOFF),
    (41, InputFlags::IMAXBEL),
    (42, InputFlags::IUTF8),
];

const LOCAL: &[(u8, LocalFlags)] = &[
    (50, LocalFlags::ISIG),
    (51, LocalFlags::ICANON),
    (53, LocalFlags::ECHO),
    (54, LocalFlags::ECHOE),
    (55, LocalFlags::ECHOK),
    (56, LocalFlags::ECHONL),
    (57, LocalFlags::NOFLSH),
    (58, LocalFlags::TOSTOP),
    (59, LocalFlags::IEXTEN),
    (60, LocalFlags::ECHOCTL),
    (61, LocalFlags::ECHOKE),
    (62, LocalFlags::PENDIN),
];

const OUTPUT: &[(u8, OutputFlags)] = &[
    (70, OutputFlags::OPOST),
    (71, OutputFlags::OLCUC),
    (72, OutputFlags::ONLCR),
    (73, OutputFlags::OCRNL),
    (74, OutputFlags::ONOCR),
    (75, OutputFlags::ONLRET),
];

const CONTROL: &[(u8, ControlFlags)] = &[(92, ControlFlags::PARENB), (93, ControlFlags::PARODD)];

/// Applies `modes`; opcodes that a terminal without a line has no use for, such as speeds, change nothing.
pub fn apply(settings: &mut Termios, modes: &[(u8, u32)]) {
    for &(opcode, value) in modes {
        let set = value != 0;
        if let Some((_, key)) = KEYS.iter().find(|(known, _)| *known == opcode) {
            let value = if value == NO_KEY { libc::_POSIX_VDISABLE } else { value as u8 };
            settings.control_chars[*key as usize] = value;
        }
        if let Some((_, flag)) = INPUT.iter().find(|(known, _)| *known == opcode) {
            settings.input_flags.set(*flag, set);
        }
        if let Some((_, flag)) = LOCAL.iter().find(|(known, _)| *known == opcode) {
            settings.local_flags.set(*flag, set);
        }
        if let Some((_, flag)) = OUTPUT.iter().find(|(known, _)| *known == opcode) {
            settings.output_flags.set(*flag, set);
        }
        if let Some((_, flag)) = CONTROL.iter().find(|(known, _)| *known == opcode) {
            settings.control_flags.set(*flag, set);
        }
    }
}

/// The modes of a terminal, as a client tells them of its own.
#[must_use]
pub fn of(settings: &Termios) -> Vec<(u8, u32)> {
    let key = |value: u8| if value == libc::_POSIX_VDISABLE { NO_KEY } else { u32::from(value) };
    let keys = KEYS.iter().map(|(opcode, index)| (*opcode, key(settings.control_chars[*index as usize])));
    let input = INPUT.iter().map(|(opcode, flag)| (*opcode, u32::from(settings.input_flags.contains(*flag))));
    let local = LOCAL.iter().map(|(opcode, flag)| (*opcode, u32::from(settings.local_flags.contains(*flag))));
    let output = OUTPUT.iter().map(|(opcode, flag)| (*opcode, u32::from(settings.output_flags.contains(*flag))));
    keys.chain(input).chain(local).chain(output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::termios::tcgetattr;

    #[test]
    fn modes_are_applied_and_told() {
        let terminal = nix::pty::openpty(None, None).unwrap();
        let mut settings = tcgetattr(&terminal.slave).unwrap();
        assert!(settings.local_flags.contains(LocalFlags::ECHO), "control: a new terminal echoes");
        let opcodes_out_of_range = [(0, 1), (128, 9600), (255, u32::MAX), (99, 7)];
        apply(&mut settings, &[&[(53, 0), (42, 1), (1, 7), (2, 255)][..], &opcodes_out_of_range].concat());
        assert!(!settings.local_flags.contains(LocalFlags::ECHO));
        assert!(settings.input_flags.contains(InputFlags::IUTF8));
        assert_eq!(settings.control_chars[Key::VINTR as usize], 7);
        let told = of(&settings);
        assert!(
            told.contains(&(53, 0)) && told.contains(&(42, 1)) && told.contains(&(1, 7)) && told.contains(&(2, 255))
        );
    }
}
