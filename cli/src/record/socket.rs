//! A socket that other programs write lines into: each asks for a file, and is answered with its name.

use super::trigger::{Ear, Trigger};
use crate::failure::Failure;
use crate::out::line;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The most bytes of a line.
const LINE: u64 = 1 << 10;

/// The path of a socket, which is removed at the end.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Socket {
    /// Listens in a thread.
    pub fn listen(path: &Path, ear: Ear) -> Result<Self, Failure> {
        let listener = bound(path).map_err(|error| {
            Failure::hinting(
                format_args!("cannot listen at {}: {error}", path.display()),
                "the path must be free, in a folder where this user may write",
            )
        })?;
        let socket = Self(path.to_owned());
        thread::Builder::new().name("socket".into()).spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else {
                    // There are too many open files, say, and there are no fewer at once.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                let ear = ear.clone();
                // Nobody waits for a client that is slow. A thread that cannot be started is a client that is not
                // heard.
                let _ = thread::Builder::new().name("client".into()).spawn(move || hear(client, &ear));
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
fn bound(path: &Path) -> io::Result<UnixListener> {
    let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Before it has a name, so that nobody else connects meanwhile. The name gets the mode of the socket
    // (unix_bind_bsd, net/unix/af_unix.c).
    fchmod(&listener, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let address = UnixAddr::new(path)?;
    let named = match bind(listener.as_raw_fd(), &address) {
        // Anything else that cannot be connected to is not ours to remove.
        Err(nix::errno::Errno::EADDRINUSE) if fs::symlink_metadata(path)?.file_type().is_socket() => {
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?;
                    bind(listener.as_raw_fd(), &address)
                }
                _ => Err(nix::errno::Errno::EADDRINUSE),
            }
        }
        named => named,
    };
    named?;
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener.into())
}

/// A trigger for each line, until the client or the recorder ends.
fn hear(client: UnixStream, ear: &Ear) {
    let client = Arc::new(client);
    let mut lines = BufReader::new(&*client);
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        if line.last() != Some(&b'\n') && lines.skip_until(b'\n').is_err() {
            return;
        }
        let text: String = String::from_utf8_lossy(&line).chars().filter(|letter| !letter.is_control()).collect();
        let trigger =
            Trigger { answer: Some(Arc::clone(&client)), ..Trigger::now(format!("asked by a socket: {text}")) };
        if !ear.tell(trigger) {
            return;
        }
    }
}

/// Tells a client what came of its line.
pub fn answer(mut client: &UnixStream, text: &str) {
    // A client that does not listen misses it.
    let _ = client.set_write_timeout(Some(Duration::from_millis(100)));
    let _ = line(&mut client, format_args!("{text}"));
}
