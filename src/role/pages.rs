//! `completions` and `man`: printed from the same definitions that parse the flags.

use std::io::Write;

use crate::cli;
use crate::contract::exit;
use crate::event::say;

/// Prints the completion script of a shell.
pub fn completions(arguments: cli::Completions) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::program(), "openshell-supervisor", &mut script);
    write_out(&script)
}

/// Prints the page of the program or of one role.
pub fn man(arguments: cli::Man) -> u8 {
    let command = match &arguments.role {
        None => super::program(),
        Some(name) => match super::find(name) {
            Some(role) => {
                let name = format!("openshell-supervisor {}", role.name);
                // clap wants names that last, and this process ends with the page.
                let page: &'static str = name.replace([' ', ','], "-").leak();
                (role.command)().name(page).bin_name(name)
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

/// A reader that has gone (`| head`) is no failure.
fn write_out(text: &[u8]) -> u8 {
    let _ = std::io::stdout().write_all(text);
    0
}
