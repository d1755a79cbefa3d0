//! A command that is traced from its first instruction on.
//!
//! This program starts itself once more. The second process waits on a pipe until it is traced, and then becomes the
//! command. So the command has its own input, output and terminal, and the process number that is traced.

use crate::descriptors;
use crate::failure::Failure;
use crate::trace::calls;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::{Uid, User, initgroups, setgid, setuid};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};

/// The first argument of the second process. The next are the pipe's descriptor, the command's limit on descriptors (0
/// for what it has), the user that it becomes (empty for the same) and the command.
const WAIT: &str = "--wait-until-traced";

/// The command. Dropped before it is let go, it never runs.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    gate: Option<PipeWriter>,
}

impl Child {
    /// Starts the command, which waits.
    pub fn start(command: &[OsString]) -> Result<Self, Failure> {
        Self::start_as(command, None)
    }

    /// The same as another user, with the user's groups.
    pub fn start_as(command: &[OsString], user: Option<&str>) -> Result<Self, Failure> {
        if let Some(user) = user {
            known(user)?;
        }
        Self::second(command, Stdio::inherit(), user)
    }

    /// The same with another standard output than this program's.
    pub fn start_writing(command: &[OsString], output: Stdio) -> Result<Self, Failure> {
        Self::second(command, output, None)
    }

    fn second(command: &[OsString], output: Stdio, user: Option<&str>) -> Result<Self, Failure> {
        let (reader, gate) = io::pipe()?;
        // The second process inherits this end. The other end closes with this process, so that the second never waits
        // for ever.
        fcntl(reader.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).map_err(io::Error::from)?;
        let mut second = Command::new("/proc/self/exe");
        let limit = descriptors::before().unwrap_or(0);
        let words = [WAIT, &reader.as_raw_fd().to_string(), &limit.to_string(), user.unwrap_or_default()];
        second.args(words).args(command).stdout(output);
        Ok(Self { process: second.spawn()?, gate: Some(gate) })
    }

    /// Its process number, which the command keeps.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Lets the command run.
    pub fn go(&mut self) -> io::Result<()> {
        self.gate.take().map_or(Ok(()), |mut gate| gate.write_all(b"!"))
    }

    /// Its status, if it has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Sends it a signal, while it has not been waited for.
    pub fn signal(&self, signal: i32) {
        let signal = nix::sys::signal::Signal::try_from(signal);
        if let (Ok(signal), Ok(pid)) = (signal, i32::try_from(self.pid())) {
            // It may have ended.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It waits for the pipe and ends. A command that runs goes on.
        if self.gate.take().is_some() {
            let _ = self.process.wait();
        }
    }
}

/// What the second process does. `None` in any other process.
pub fn second_process() -> Option<Failure> {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(WAIT)) {
        return None;
    }
    let descriptor = args.next()?.to_str()?.parse::<RawFd>().ok()?;
    let limit = args.next()?.to_str()?.parse::<u64>().ok().filter(|limit| *limit > 0);
    let user = args.next()?.into_string().ok()?;
    let (name, rest) = (args.next()?, args);
    match limit.map_or(Ok(()), descriptors::set).and_then(|()| pass(descriptor)) {
        Ok(true) => {
            if let Err(failure) = if user.is_empty() { Ok(()) } else { become_user(&user) } {
                return Some(failure);
            }
            let error = Command::new(&name).args(rest).exec();
            let name = name.to_string_lossy();
            let message = format!("{name}: {error}");
            // The first words that people try.
            let is_call = error.kind() == io::ErrorKind::NotFound && calls::number(&name).is_some();
            let hint = format!("{name} is a system call: `perfweave trace -e {name}` prints those of all processes");
            Some(if is_call { Failure::hinting(message, hint) } else { Failure::new(message) })
        }
        Ok(false) => Some(Failure::Closed),
        Err(error) => Some(error.into()),
    }
}

/// A user by name or number.
fn known(name: &str) -> Result<User, Failure> {
    let user = match name.parse() {
        Ok(number) => User::from_uid(Uid::from_raw(number)),
        Err(_) => User::from_name(name),
    };
    let hint = "getent passwd lists those there are";
    user.map_err(io::Error::from)?.ok_or_else(|| Failure::hinting(format_args!("there is no user {name}"), hint))
}

/// Becomes a user, with the user's groups.
fn become_user(name: &str) -> Result<(), Failure> {
    let user = known(name)?;
    let groups = CString::new(user.name.as_str()).map_err(io::Error::from)?;
    initgroups(&groups, user.gid)
        .and_then(|()| setgid(user.gid))
        .and_then(|()| setuid(user.uid))
        .map_err(|error| Failure::hinting(format_args!("cannot become {name}: {error}"), "it takes root"))
}

/// Waits until the first process has begun to trace. False if it has ended instead.
fn pass(descriptor: RawFd) -> io::Result<bool> {
    // A new description of the same pipe: no descriptor is taken by its number, and the command inherits none.
    let mut pipe = File::open(format!("/proc/self/fd/{descriptor}"))?;
    let inherited = nix::unistd::close(descriptor);
    inherited?;
    Ok(pipe.read(&mut [0])? > 0)
}
