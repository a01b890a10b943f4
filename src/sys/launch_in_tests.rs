//! Lets the unit-test executable be its own `launch` process, as the product's executable is: what is run again is
//! `/proc/self/exe`, and in a unit test that is the test harness. An entry in `.init_array` runs before `main`, sees
//! the arguments of the hidden role, and never lets the harness start.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int};

extern "C" fn launch_before_main(argc: c_int, argv: *const *const c_char, _environment: *const *const c_char) {
    if argc != 2 || argv.is_null() {
        return;
    }
    // SAFETY: the C library passes `argc` valid strings; argc is 2.
    let argument = unsafe { CStr::from_ptr(*argv.add(1)) };
    if argument == crate::workload::launch::ROLE && crate::role::launch::was_spawned() {
        super::process::exit_now(crate::role::launch::main());
    }
}

#[used]
// SAFETY: `.init_array` holds pointers to functions of this signature, which glibc calls with main's arguments.
#[unsafe(link_section = ".init_array")]
static LAUNCH_BEFORE_MAIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = launch_before_main;
