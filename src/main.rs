//! Dispatch, nothing else.

fn main() -> std::process::ExitCode {
    openshell_supervisor::role::dispatch(std::env::args_os())
}
