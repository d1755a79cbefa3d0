//! The guard: a process that has the tool's map and events, and puts the events back into their slots if the relay is no
//! more. It does nothing else, and takes no memory after its start.

use super::sys::{pause, set_slot};
use crate::descriptors;
use crate::out::say;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP, SIGTTOU};
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The first argument of the guard. The next is the tool's number.
const GUARD: &str = "--guard-slots-of";

/// How long an answer of the guard, or its end, is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

// What the relay says: a word, and a slot.
const MAP: u32 = 0;
const SLOT: u32 = 1;
const READY: u32 = 2;
const DONE: u32 = 3;

/// The guard, as the relay has it. Dropped without [`Guard::done`], it gives back.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    socket: Option<OwnedFd>,
}

impl Guard {
    /// Starts it with a map and the events of its slots. When this returns, it has them.
    pub fn start<'a>(
        tool: u32,
        map: BorrowedFd<'_>,
        slots: impl Iterator<Item = (u32, BorrowedFd<'a>)>,
    ) -> io::Result<Self> {
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        // A group of its own: no Ctrl-C reaches it.
        command.args([GUARD, &tool.to_string()]).stdin(Stdio::from(its)).stdout(Stdio::null()).process_group(0);
        let process = command.spawn()?;
        // It keeps the guard's end of the socket: the end of a guard that is killed now would not be seen.
        drop(command);
        let guard = Self { process, socket: Some(ours) };
        guard.tell(MAP, 0, Some(map))?;
        for (slot, event) in slots {
            guard.tell(SLOT, slot, Some(event))?;
        }
        guard.tell(READY, 0, None)?;
        let answer = guard.socket.as_ref().map_or(Ok(0), |socket| {
            answered(socket)?;
            receive(socket.as_fd()).map(|told| told.word)
        })?;
        if answer == READY { Ok(guard) } else { Err(io::Error::other("the guard has not answered")) }
    }

    fn tell(&self, word: u32, slot: u32, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let bytes = [word.to_ne_bytes(), slot.to_ne_bytes()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut extra = SendAncillaryBuffer::new(&mut space);
        let with = with.map(|fd| [fd]);
        if let Some(fds) = &with {
            extra.push(SendAncillaryMessage::ScmRights(fds));
        }
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut extra, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Whether it is still there.
    pub fn is_alive(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut polled, PollTimeout::ZERO), Ok(0) | Err(nix::errno::Errno::EINTR))
    }

    /// Closes its socket, and waits for its end: not for ever, as for one that somebody has stopped.
    fn end(&mut self) {
        if self.socket.take().is_none() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        while let Ok(None) = self.process.try_wait() {
            if Instant::now() >= until {
                // It cannot give back any more, and nothing is left that it should.
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The tool has its slots back, or has ended.
    pub fn done(mut self) {
        let _ = self.tell(DONE, 0, None);
        self.end();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for an answer.
fn answered(socket: &OwnedFd) -> io::Result<()> {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let until = Instant::now() + PATIENCE;
    loop {
        match poll(&mut polled, PollTimeout::from(100u8)) {
            Ok(1) => return Ok(()),
            Ok(_) | Err(nix::errno::Errno::EINTR) if Instant::now() < until => {}
            _ => return Err(io::Error::other("the guard has not answered")),
        }
    }
}

/// What the guard is told.
struct Told {
    word: u32,
    slot: u32,
    fd: Option<OwnedFd>,
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Told> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut extra, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let fd = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok(Told { word: word(0), slot: word(4), fd })
}

/// What the guard does. `None` in any other process.
pub fn guard_process() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(GUARD)) {
        return None;
    }
    let tool = args.next()?.to_str()?.parse::<u32>().ok()?;
    descriptors::raise();
    // Only SIGKILL ends it. These set a word that nobody reads.
    for signal in [SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP, SIGTTOU] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    // The last to be killed for want of memory. Who may not say so is killed as others are.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let (mut map, mut events, socket) = (None, Vec::new(), io::stdin());
    loop {
        match receive(socket.as_fd()) {
            Ok(Told { word: MAP, fd, .. }) => map = fd,
            Ok(Told { word: SLOT, slot, fd: Some(fd) }) => events.push((slot, fd)),
            Ok(Told { word: READY, .. }) => {
                let answer = [READY.to_ne_bytes(), [0; 4]].concat();
                // If this fails, the relay is no more, and the next call says so.
                let _ = send(socket.as_fd(), &answer, SendFlags::NOSIGNAL);
            }
            Ok(Told { word: DONE, .. }) => return Some(ExitCode::SUCCESS),
            // It cannot be understood, and so not trusted: as if the relay had ended.
            Ok(_) | Err(_) => break,
        }
    }
    let failed = map.map_or(0, |map| give_back(map.as_fd(), events.iter().map(|(slot, fd)| (*slot, fd.as_fd()))));
    let lacking = if failed > 0 { format!(", but for {failed} of them") } else { String::new() };
    say(format_args!(
        "perfweave: the relay has ended before its time: process {tool} has its own events back{lacking}. Events that \
         were held are lost, and their number is not known"
    ));
    Some(ExitCode::FAILURE)
}

/// Lets output into the rings again, and puts the events into their slots. Gives how many could not be put back.
pub fn give_back<'a>(map: BorrowedFd<'_>, slots: impl Iterator<Item = (u32, BorrowedFd<'a>)>) -> usize {
    slots
        .filter(|(slot, event)| {
            // An event that was not paused.
            let _ = pause(event, false);
            set_slot(map, *slot, event).is_err()
        })
        .count()
}
