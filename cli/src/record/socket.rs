//! A socket that other programs write lines into: each asks for a file, and is answered with its name.

use super::trigger::{Told, Trigger};
use crate::failure::Failure;
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;

/// The most bytes of a line.
const LINE: u64 = 1 << 10;

/// The path of a socket, which is removed at the end.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Socket {
    /// Listens in a thread.
    pub fn listen(path: &Path, told: Sender<Told>) -> Result<Self, Failure> {
        let listener = bind(path).map_err(|error| {
            Failure::hinting(
                format_args!("cannot listen at {}: {error}", path.display()),
                "the path must be free, in a folder where this user may write",
            )
        })?;
        let socket = Self(path.to_owned());
        thread::Builder::new().name("socket".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                let told = told.clone();
                // Nobody waits for a client that is slow. A thread that cannot be started is a client that is not heard.
                let _ = thread::Builder::new().name("client".into()).spawn(move || hear(&client, &told));
            }
        })?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Only this user may connect: a line writes a file. A socket that nobody listens to any more is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path) {
            Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            _ => return Err(error),
        },
        bound => bound?,
    };
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A trigger for each line, until the client or the recorder ends.
fn hear(client: &UnixStream, told: &Sender<Told>) {
    let mut lines = BufReader::new(client);
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let text: String = String::from_utf8_lossy(&line).chars().filter(|letter| !letter.is_control()).collect();
        let Ok(answer) = client.try_clone() else { return };
        let trigger = Trigger { answer: Some(answer), ..Trigger::now(format!("asked by a socket: {text}")) };
        if told.send(Told::Trigger(trigger)).is_err() {
            return;
        }
    }
}

/// Tells a client what came of its line.
pub fn answer(mut client: &UnixStream, text: &str) {
    // A client that does not listen misses it.
    let _ = client.set_write_timeout(Some(std::time::Duration::from_millis(100)));
    let _ = writeln!(client, "{text}");
}
