//! `completions` and `man`: printed from the same definitions that parse the flags.

use std::io::Write;

use clap::Command;
use clap_complete::Shell;

use crate::cli;
use crate::contract::exit;
use crate::event::say;

/// The program, as it is installed.
const PROGRAM: &str = "openshell-supervisor";

/// Prints the completion script of a shell.
pub fn completions(arguments: cli::Completions) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::program(), PROGRAM, &mut script);
    match arguments.shell {
        Shell::Bash => write_out(agreeing(&String::from_utf8_lossy(&script)).as_bytes()),
        _ => write_out(&script),
    }
}

/// The script for bash with one name for each command. That of clap_complete (4.6) remembers the command in which it is by the
/// program's name with `__` for each dash, and looks it up by the same name with `__subcmd__` for each: no case is ever met, and
/// nothing behind a role completed, in a program with a dash in its name.
fn agreeing(script: &str) -> String {
    script.replace(&PROGRAM.replace('-', "__subcmd__"), &PROGRAM.replace('-', "__"))
}

/// Prints the page of the program or of one role.
pub fn man(arguments: cli::Man) -> u8 {
    let command = match &arguments.role {
        None => super::program(),
        Some(name) => match named(name) {
            Some((name, command)) => {
                let name = format!("{PROGRAM} {name}");
                // clap wants names that last, and this process ends with the page.
                let page: &'static str = name.replace([' ', ','], "-").leak();
                command.name(page).bin_name(name)
            }
            None => {
                say!("openshell-supervisor: man: no role {name:?}; the roles are\n{}", super::list());
                return exit::USAGE;
            }
        },
    };
    let mut page = Vec::new();
    match clap_mangen::Man::new(command).render(&mut page) {
        Ok(()) => write_out(&page),
        Err(error) => {
            say!("openshell-supervisor: man: cannot render the page: {error}");
            1
        }
    }
}

/// A role by its name, or what a role can be told to do, by the name of its page: `policy-check`.
fn named(name: &str) -> Option<(String, Command)> {
    if let Some(role) = super::find(name) {
        return Some((role.name.to_owned(), (role.command)()));
    }
    super::TABLE.iter().find_map(|role| {
        let action = name.strip_prefix(role.name)?.strip_prefix(['-', ' '])?;
        let command = (role.command)().find_subcommand(action)?.clone();
        Some((format!("{} {action}", role.name), command))
    })
}

/// A reader that has gone (`| head`) is no failure.
fn write_out(text: &[u8]) -> u8 {
    let _ = std::io::stdout().write_all(text);
    0
}
