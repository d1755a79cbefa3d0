//! A command that is recorded from its first instruction on.

use super::Error;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io;
use std::process::{Child, Command};

/// The shell stops itself, and becomes the command when it goes on. So the command has the process number that is
/// recorded.
const STOPPED: &str = "kill -STOP $$; exec \"$0\" \"$@\"";

/// A command that waits until it is let go. Dropped before, it never runs.
#[derive(Debug)]
pub struct Waiting(Option<Child>);

impl Waiting {
    /// Starts the command, which waits.
    ///
    /// # Errors
    /// If there is no shell.
    pub fn start(command: &[OsString]) -> Result<Self, Error> {
        let failed = || Error::system("the command cannot be started");
        let child = Command::new("/bin/sh").arg("-c").arg(STOPPED).args(command).spawn().map_err(failed())?;
        let this = Self(Some(child));
        match waitpid(this.pid(), Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(..)) => Ok(this),
            Ok(_) => Err(failed()(io::Error::other("the shell ended"))),
            Err(error) => Err(failed()(error.into())),
        }
    }

    /// Its process number.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.0.as_ref().map_or(0, |child| child.id().cast_signed()))
    }

    /// Lets it run.
    ///
    /// # Errors
    /// If somebody has killed it.
    pub fn go(mut self) -> Result<Child, Error> {
        let failed = || Error::system("the command cannot be let go");
        kill(self.pid(), Signal::SIGCONT).map_err(|error| failed()(error.into()))?;
        self.0.take().ok_or(Error::Writer)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
