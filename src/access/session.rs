//! One session: a command, a shell or a subsystem, on pipes or on a terminal (RFC 4254 §6).

use std::ffi::OsStr;
use std::future::pending;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

use bytes::BytesMut;
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, SpecialCharacterIndices, tcgetattr};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::attach::{self, Looking};
use super::carry::Carrying;
use super::descriptor::Descriptor;
use super::files::Passed;
use super::server::Caller;
use super::shell::{self, NoShell};
use super::ssh::channel::{Channel, Request, Stream};
use super::ssh::wire::{Malformed, Reader};
use crate::contract::exit;
use crate::event::{SshOutcome, SshStep};
use crate::sys::tty;
use crate::workload::control::Ending;
use crate::workload::environment::UserVariable;
use crate::workload::guest::{Program, Task};
use crate::workload::launch::LaunchError;
use crate::workload::launcher::{Guest, GuestHandle, Launcher};
use crate::workload::standard::Shape;

/// Variables that a client may set. They describe its terminal, its language, and what its git can do; everything else of a
/// program's environment is the sandbox's business.
const MAY_SET: [&str; 7] = ["LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "GIT_PROTOCOL"];
/// The same, for what begins so.
const MAY_SET_PREFIX: &str = "LC_";

/// Variables that one session may set.
const VARIABLES_LIMIT: usize = 64;

/// Modes that a terminal may be asked for: there are some sixty.
const MODES_LIMIT: usize = 256;

/// Largest terminal, in characters either way; what the kernel keeps has 16 bits.
const SIZE_LIMIT: u32 = 0xffff;

/// What is read from a program at a time.
const CHUNK: usize = 32 << 10;

/// After a program's end, what it has left running may still write to its streams: so long nothing, and nobody waits
/// longer for it.
const QUIET: Duration = Duration::from_millis(200);

/// The same, for what goes on writing.
const DRAIN: Duration = Duration::from_secs(2);

/// Most that is carried then, of what they write.
const LEFT_BEHIND: usize = 1 << 20;

/// Longest line of a report: a path, each byte of which JSON may take six for, and as much for why it failed.
const REPORT_LIMIT: usize = 64 << 10;

/// When its channel is closed, a program is hung up on, asked to end after so long, and killed after as long again.
const HANG_UP: Duration = Duration::from_millis(500);

/// What a session is asked for before its program.
#[derive(Debug, Default)]
struct Wishes {
    variables: Vec<UserVariable>,
    terminal: Option<Shape>,
}

/// What it is to run.
enum Wanted {
    Shell,
    Command(Vec<u8>),
    Files(Carrying),
}

/// Serves a session from its beginning to its end.
pub(super) async fn serve(channel: Channel, caller: Caller) {
    let mut wishes = Wishes::default();
    while let Some(request) = channel.request().await {
        let wanted = match request.name.as_str() {
            "env" => {
                channel.answer(&request, wishes.set(&request).is_some());
                continue;
            }
            "pty-req" => {
                let read = wishes.want_terminal(&request);
                channel.answer(&request, read.is_ok());
                continue;
            }
            "shell" => Wanted::Shell,
            "exec" => match Reader::new(&request.details).string() {
                Ok(line) => Carrying::of_command(line).map_or_else(|| Wanted::Command(line.to_vec()), Wanted::Files),
                Err(_) => return channel.answer(&request, false),
            },
            "subsystem" => {
                let name = Reader::new(&request.details).string().unwrap_or_default();
                if let Some(carrying) = Carrying::of_subsystem(name) {
                    Wanted::Files(carrying)
                } else if let Some(looking) = Looking::of_subsystem(name) {
                    channel.answer(&request, true);
                    caller.record(SshStep::Asked(looking.name().into()), SshOutcome::Done);
                    return attach::serve(&channel, looking, wishes.terminal.as_ref(), &caller).await;
                } else {
                    let name = String::from_utf8_lossy(name).into_owned();
                    channel.answer(&request, false);
                    caller.record(SshStep::Asked(name), SshOutcome::Refused("there is no such subsystem".into()));
                    continue;
                }
            }
            attach::HAS_TERMINAL => {
                channel.answer(&request, caller.inside.console.is_terminal());
                continue;
            }
            // Among them what is not offered here: X11, agents, break.
            _ => {
                channel.answer(&request, false);
                continue;
            }
        };
        channel.answer(&request, true);
        return run(&channel, &wishes, wanted, &caller).await;
    }
}

impl Wishes {
    fn set(&mut self, request: &Request) -> Option<()> {
        let mut reader = Reader::new(&request.details);
        let (name, value) = (reader.text().ok()?, reader.text().ok()?);
        let may = MAY_SET.contains(&name) || name.starts_with(MAY_SET_PREFIX);
        if !may || self.variables.len() >= VARIABLES_LIMIT {
            return None;
        }
        self.variables.push(UserVariable::checked(OsStr::new(name), OsStr::new(value)).ok()?);
        Some(())
    }

    fn want_terminal(&mut self, request: &Request) -> Result<(), Malformed> {
        let mut reader = Reader::new(&request.details);
        let kind = reader.text()?;
        let mut shape = read_size(&mut reader)?;
        let mut modes = Reader::new(reader.string()?);
        // Opcodes from 160 on have no arguments that anybody knows, and end it (RFC 4254 §8).
        while let Ok(opcode @ 1..160) = modes.u8() {
            if shape.modes.len() >= MODES_LIMIT {
                return Err(Malformed("too many terminal modes"));
            }
            shape.modes.push((opcode, modes.u32()?));
        }
        if !kind.is_empty()
            && let Ok(variable) = UserVariable::checked(OsStr::new("TERM"), OsStr::new(kind))
        {
            self.variables.push(variable);
        }
        self.terminal = Some(shape);
        Ok(())
    }
}

pub(super) fn read_size(reader: &mut Reader<'_>) -> Result<Shape, Malformed> {
    let mut next = || Ok(reader.u32()?.min(SIZE_LIMIT) as u16);
    let (columns, rows, width, height) = (next()?, next()?, next()?, next()?);
    Ok(Shape { rows, columns, width, height, modes: Vec::new() })
}

async fn run(channel: &Channel, wishes: &Wishes, wanted: Wanted, caller: &Caller) {
    let inside = &caller.inside;
    let program = match &wanted {
        Wanted::Shell => Ok(Program::Image(shell::login(&inside.shells))),
        Wanted::Command(line) => shell::command(&inside.shells, line).map(Program::Image),
        Wanted::Files(carrying) => carrying.words().map(Program::Own).ok_or(NoShell::Nul),
    };
    let terminal = wishes.terminal.is_some();
    let step = |pid: Option<u32>, ended: Option<Ending>| {
        let ran = |command| SshStep::Ran { command, terminal, pid, ended: ended.map(Ending::exit_code) };
        match &wanted {
            Wanted::Shell => ran(None),
            Wanted::Command(line) => ran(first_word(line)),
            Wanted::Files(carrying) => SshStep::Carried { what: carrying.to_string(), over: ended.is_some() },
        }
    };
    let launched = match program {
        Ok(program) => start(caller, wishes, program).await,
        Err(error) => Err(LaunchError { code: exit::USAGE, message: error.to_string(), private_proc: false }),
    };
    match launched {
        Ok(mut guest) => {
            let pid = Some(guest.pid);
            caller.record(step(pid, None), SshOutcome::Done);
            let report = if matches!(wanted, Wanted::Files(_)) { guest.streams.pop() } else { None };
            let heard = report.map(|report| tokio::spawn(hear(report, caller.clone())));
            let ending = attend(channel, guest, &inside.launcher).await;
            if let Some(heard) = heard {
                // Its other end has closed with the program.
                let _ = timeout(DRAIN, heard).await;
            }
            let outcome = match ending.exit_code() {
                0 => SshOutcome::Done,
                code => SshOutcome::Failed(format!("exit code {code}")),
            };
            caller.record(step(pid, Some(ending)), outcome);
            conclude(channel, ending);
        }
        Err(error) => {
            let message = explain(error.message, &wanted, error.code);
            caller.record(step(None, None), SshOutcome::Refused(message.clone()));
            let _ = channel.send(Stream::Error, format!("openshell-supervisor: {message}\r\n").as_bytes()).await;
            conclude(channel, Ending::Code(error.code));
        }
    }
}

/// Records what a program of ours reports, one line for each file, to its end.
async fn hear(report: OwnedFd, caller: Caller) {
    let Ok(report) = Descriptor::new(report) else { return };
    let (mut chunk, mut lines) = (vec![0; CHUNK], BytesMut::new());
    while let Ok(length @ 1..) = report.read(&mut chunk).await {
        lines.extend_from_slice(&chunk[..length]);
        while let Some(end) = lines.iter().position(|&byte| byte == b'\n') {
            // It is this executable's own, and read on in any case: it must not find its pipe closed.
            let Ok(Passed { path, read, written, failed }) = serde_json::from_slice(&lines.split_to(end + 1)) else {
                continue;
            };
            let outcome = failed.map_or(SshOutcome::Done, SshOutcome::Failed);
            caller.record(SshStep::Passed { path, read, written }, outcome);
        }
        if lines.len() > REPORT_LIMIT {
            lines.clear();
        }
    }
}

/// Where there is no shell at all, why that matters.
fn explain(message: String, wanted: &Wanted, code: u8) -> String {
    if code != exit::NOT_FOUND {
        return message;
    }
    match wanted {
        Wanted::Shell => format!("the sandbox has no shell ({message}); give a command"),
        Wanted::Command(line) => match shell::words(line) {
            Err(error @ NoShell::Needed(_)) => error.to_string(),
            _ => message,
        },
        Wanted::Files(_) => message,
    }
}

/// What events name of a command line: arguments may hold secrets.
fn first_word(line: &[u8]) -> Option<String> {
    let parts = |byte: &u8| byte.is_ascii_whitespace() || b";&|<>()".contains(byte);
    let word = line.split(parts).find(|word| !word.is_empty())?;
    // So may the value of a variable that is set for it.
    let word = word.split(|&byte| byte == b'=').next()?;
    Some(String::from_utf8_lossy(word).into_owned())
}

async fn start(caller: &Caller, wishes: &Wishes, program: Program) -> Result<Guest, LaunchError> {
    let inside = &caller.inside;
    let task = Task {
        program,
        environment: inside.environment.build(wishes.terminal.is_some(), &wishes.variables),
        workdir: inside.workdir.clone(),
        terminal: wishes.terminal.clone(),
    };
    inside.launcher.launch(&task).await
}

/// The supervisor's ends of a program's streams.
struct Ports {
    input: Option<Descriptor>,
    output: Descriptor,
    error: Option<Descriptor>,
}

impl Ports {
    fn of(guest: &mut Guest) -> std::io::Result<Self> {
        let missing = || std::io::Error::other("a program came without its streams");
        let mut streams = std::mem::take(&mut guest.streams).into_iter().map(Descriptor::new);
        let first = streams.next().ok_or_else(missing)??;
        Ok(match (streams.next().transpose()?, streams.next().transpose()?) {
            (Some(output), error) => Self { input: Some(first), output, error },
            // A terminal is one for all.
            (None, _) => Self { input: None, output: first, error: None },
        })
    }
}

/// Stands between a program and its channel, until the program's end. Where the channel is closed before, or the sandbox
/// ends, that end is brought about.
async fn attend(channel: &Channel, mut guest: Guest, launcher: &Launcher) -> Ending {
    let handle = guest.handle();
    let outcome = match Ports::of(&mut guest) {
        Ok(ports) => {
            let Ports { input, output, error } = ports;
            let (ended, seen) = watch::channel(None);
            let feed = async {
                match input {
                    Some(pipe) => feed_pipe(channel, pipe).await,
                    None => feed_terminal(channel, &output).await,
                }
                pending::<()>().await;
            };
            let show = async {
                let errors = async {
                    if let Some(error) = &error {
                        show(channel, error, Stream::Error, seen.clone()).await;
                    }
                };
                tokio::join!(show(channel, &output, Stream::Data, seen.clone()), errors);
            };
            let live = async {
                let ending = guest.wait().await;
                ended.send_replace(Some(Instant::now()));
                ending
            };
            tokio::select! {
                // What is asked before data comes is done before: a program that is told a word finds the terminal's new size.
                biased;
                (ending, ()) = async { tokio::join!(live, show) } => Some(ending),
                () = obey(channel, &handle, &output) => None,
                () = feed => None,
                // Interactive shells are deaf to SIGTERM, and would hold the end up.
                _ = launcher.ending() => None,
            }
        }
        Err(_) => None,
    };
    // All of its streams are closed here, which hangs up on a terminal.
    match outcome {
        Some(ending) => ending,
        None => end(guest).await,
    }
}

/// Does what the client asks for while the program runs; returns when the channel is closed.
async fn obey(channel: &Channel, guest: &GuestHandle, output: &Descriptor) {
    while let Some(request) = channel.request().await {
        let mut reader = Reader::new(&request.details);
        let done = match request.name.as_str() {
            "window-change" => {
                read_size(&mut reader).is_ok_and(|shape| tty::set_size(output.as_fd(), &shape.size()).is_ok())
            }
            "signal" => match reader.text().ok().and_then(|name| Signal::from_str(&format!("SIG{name}")).ok()) {
                Some(signal) => {
                    guest.signal(signal).await;
                    true
                }
                None => false,
            },
            _ => false,
        };
        channel.answer(&request, done);
    }
}

/// Carries the client's input, and its end, which is the pipe's.
async fn feed_pipe(channel: &Channel, pipe: Descriptor) {
    while let Some(data) = channel.take(Stream::Data).await {
        // A program that reads no more is none of the client's concern; what it sends is still taken.
        let _ = pipe.write(&data).await;
    }
}

/// The same, for a terminal, whose end is a key: the one that means so, where lines are edited.
async fn feed_terminal(channel: &Channel, terminal: &Descriptor) {
    while let Some(data) = channel.take(Stream::Data).await {
        let _ = terminal.write(&data).await;
    }
    if let Ok(settings) = tcgetattr(terminal.as_fd())
        && settings.local_flags.contains(LocalFlags::ICANON)
    {
        let _ = terminal.write(&[settings.control_chars[SpecialCharacterIndices::VEOF as usize]]).await;
    }
}

/// Carries one stream of a program's output, until its end, or for as long after the program's own end as is worth it.
async fn show(channel: &Channel, port: &Descriptor, stream: Stream, mut ended: watch::Receiver<Option<Instant>>) {
    let mut chunk = vec![0; CHUNK];
    let mut left_behind = 0;
    while left_behind < LEFT_BEHIND {
        let length = tokio::select! {
            biased;
            read = port.read(&mut chunk) => read.unwrap_or(0),
            () = overdue(&mut ended) => 0,
        };
        if length == 0 || channel.send(stream, &chunk[..length]).await.is_err() {
            return;
        }
        if ended.borrow().is_some_and(|at| at.elapsed() > DRAIN) {
            left_behind += length;
        }
    }
}

async fn overdue(ended: &mut watch::Receiver<Option<Instant>>) {
    let at = ended.wait_for(Option::is_some).await.ok().and_then(|at| *at);
    match at {
        Some(at) => sleep_until((Instant::now() + QUIET).min(at + DRAIN)).await,
        None => pending().await,
    }
}

/// Ends a program whose client is gone. What has made itself deaf to a hang-up (nohup(1)) outlives it, if it is not what
/// the client had started itself.
async fn end(mut guest: Guest) -> Ending {
    let handle = guest.handle();
    for signals in [&[Signal::SIGHUP, Signal::SIGCONT][..], &[Signal::SIGTERM], &[Signal::SIGKILL]] {
        for &signal in signals {
            handle.signal(signal).await;
        }
        if let Ok(ending) = timeout(HANG_UP, guest.wait()).await {
            return ending;
        }
    }
    guest.wait().await
}

/// Tells how it ended, and closes.
pub(super) fn conclude(channel: &Channel, ending: Ending) {
    channel.eof();
    match ending {
        Ending::Code(code) => channel.exit_status(code.into()),
        Ending::Signal(number) => match Signal::try_from(number) {
            Ok(signal) => channel.exit_signal(signal.as_str().trim_start_matches("SIG")),
            // Realtime signals have no names.
            Err(_) => channel.exit_status(ending.exit_code().into()),
        },
    }
    channel.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::ssh::wire::Writer;

    fn request(name: &str, fill: impl FnOnce(&mut Vec<u8>)) -> Request {
        let mut details = Vec::new();
        fill(&mut details);
        Request { name: name.into(), wants_answer: true, details: details.into() }
    }

    #[test]
    fn only_named_variables_are_set() {
        let mut wishes = Wishes::default();
        let mut set = |name: &str| {
            let request = request("env", |details| {
                details.put_string(name.as_bytes());
                details.put_string(b"value");
            });
            wishes.set(&request).is_some()
        };
        assert!(["LANG", "LC_ALL", "GIT_PROTOCOL"].into_iter().all(&mut set));
        for name in ["LD_PRELOAD", "PATH", "HTTP_PROXY", "OPENSHELL_SANDBOX", "LC_A=B", "", "GIT_SSH_COMMAND"] {
            assert!(!set(name), "{name}");
        }
        assert!((0..VARIABLES_LIMIT).map(|_| set("LANG")).filter(|set| *set).count() < VARIABLES_LIMIT);
    }

    #[test]
    fn terminals_of_any_size_and_mode_are_wanted_or_refused() {
        let want = |size: [u32; 4], modes: &[u8]| {
            let request = request("pty-req", |details| {
                details.put_string(b"xterm");
                size.into_iter().for_each(|value| details.put_u32(value));
                details.put_string(modes);
            });
            let mut wishes = Wishes::default();
            wishes.want_terminal(&request).map(|()| wishes.terminal.unwrap())
        };
        let shape = want([80, 24, 0, 0], &[53, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!((shape.columns, shape.rows, shape.modes), (80, 24, vec![(53, 0)]));
        assert_eq!(want([u32::MAX; 4], &[]).unwrap().columns, u16::MAX);
        assert!(want([80, 24, 0, 0], &[53, 0, 0]).is_err(), "cut short");
        assert!(want([80, 24, 0, 0], &[53, 0, 0, 0, 1].repeat(MODES_LIMIT + 1)).is_err(), "too many");
        assert!(want([80, 24, 0, 0], &[200, 1]).unwrap().modes.is_empty(), "unknown ones end it");
    }
}
