//! What the workload does on a terminal, and its supervisor for it.

use std::io::{Read, Write};

use super::*;
use crate::sys::in_tests::spawn_on;

/// A shell on a terminal, and what the terminal shows.
struct Screen {
    master: std::fs::File,
    shell: std::process::Child,
    shown: String,
}

impl Screen {
    fn new() -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut command = std::process::Command::new("/bin/bash");
        command.args(["--norc", "--noprofile", "-i"]).env("PS1", "> ");
        let shell = spawn_on(&pty.slave, command).unwrap();
        nix::fcntl::fcntl(&pty.master, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        Self { master: pty.master.into(), shell, shown: String::new() }
    }

    fn type_in(&mut self, keys: &str) {
        self.shown.clear();
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows `text`, from what was typed last.
    fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.shows(text) {
            assert!(Instant::now() < deadline, "{text:?} does not come: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Presses a key that is for the foreground job until the terminal shows `text`: which job that is takes the shell a
    /// moment, and a key that comes before is lost.
    fn press(&mut self, key: &str, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        self.type_in(key);
        for round in 1.. {
            if self.shows(text) {
                return;
            }
            assert!(Instant::now() < deadline, "{text:?} does not come: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(5));
            if round % 50 == 0 {
                self.master.write_all(key.as_bytes()).unwrap();
            }
        }
    }

    fn shows(&mut self, text: &str) -> bool {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = self.master.read(&mut chunk) {
            self.shown.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
        self.shown.contains(text)
    }

    /// Runs the supervisor on the orders of `world`.
    fn supervise(&mut self, world: &World, suffix: &str) {
        let orders = world.directory.path().join("orders");
        std::fs::write(&orders, serde_json::to_vec(&world.orders).unwrap()).unwrap();
        let own = std::env::current_exe().unwrap();
        let role = SUPERVISE.to_str().unwrap();
        self.type_in(&format!("{} {role} {}{suffix}\n", own.display(), orders.display()));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn the_terminal_is_the_workload_s_while_it_runs() {
    for isolated in [false, true] {
        // It forks nothing: a terminal signal between a shell's vfork and the exec stops the child alone, here as
        // anywhere.
        let script = "exec 3<> fifo; trap 'echo got-int' INT; trap 'exit 9' QUIT; echo re''ady; while :; do read -t 0.05 -u 3; done";
        let world = World::of(&["/bin/bash", "-c", script]);
        nix::unistd::mkfifo(&world.directory.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        chown(world.directory.path().join("fifo"), Some(UID), Some(GID)).unwrap();
        let world = if isolated { world.isolated() } else { world };
        let mut screen = Screen::new();
        screen.supervise(&world, "");
        screen.expect("ready");
        screen.type_in("\x03");
        screen.expect("got-int");
        // Stopped like any job of the shell, and continued like one.
        screen.type_in("\x1a");
        screen.expect("Stopped");
        screen.type_in("echo in the sh''ell\n");
        screen.expect("in the shell");
        screen.type_in("fg\n");
        screen.expect("supervise-in-tests");
        std::thread::sleep(Duration::from_millis(100));
        screen.type_in("\x03");
        screen.expect("got-int");
        // In the background it goes on without the terminal.
        screen.type_in("\x1a");
        screen.expect("Stopped");
        screen.type_in("bg\n");
        screen.expect("> ");
        screen.type_in("jobs\n");
        screen.expect("Running");
        screen.type_in("fg\n");
        screen.expect("supervise-in-tests");
        std::thread::sleep(Duration::from_millis(100));
        screen.type_in("\x1c");
        screen.expect("> ");
        screen.type_in("echo co''de=$?\n");
        screen.expect("code=9");
    }
}

#[test]
fn a_shell_as_the_workload_has_job_control() {
    for isolated in [false, true] {
        let mut world = World::of(&["/bin/bash", "--norc", "--noprofile", "-i"]);
        world.orders.environment.push(c"PS1=inside> ".to_owned());
        world.orders.grants.read_write.extend([PathBuf::from("/dev/tty"), PathBuf::from("/dev/pts")]);
        let world = if isolated { world.isolated() } else { world };
        let mut screen = Screen::new();
        screen.supervise(&world, "");
        screen.expect("inside> ");
        assert!(!screen.shown.contains("no job control"), "{}", screen.shown);
        // Stopped before it has executed it would be nobody's to continue: bash waits for it to get so far.
        screen.type_in("bash -c 'echo u\"\"p; exec sleep 1000'\n");
        screen.expect("up");
        screen.type_in("\x1a");
        screen.expect("Stopped");
        screen.type_in("fg\n");
        screen.expect("sleep 1000");
        std::thread::sleep(Duration::from_millis(100));
        screen.press("\x03", "inside> ");
        screen.type_in("exit 5\n");
        screen.expect("h> ");
        screen.type_in("echo co''de=$?\n");
        screen.expect("code=5");
    }
}

#[test]
fn in_a_pipeline_the_other_jobs_keep_the_terminal() {
    let world = World::new("echo re''ady; exec sleep 30").isolated();
    let mut screen = Screen::new();
    screen.supervise(&world, " | cat");
    screen.expect("ready");
    screen.type_in("\x03");
    screen.expect("> ");
    screen.type_in("echo co''de=${PIPESTATUS[0]}\n");
    screen.expect("code=130");
}
