//! Standard output: buffered, and written out whenever nothing more is ready. And lines in which no name commands a
//! terminal.

pub use crate::printable::{printable, say};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// A name as a frame of a folded stack, in which semicolons separate frames.
pub fn frame(name: &str) -> String {
    printable(name).replace(';', ":")
}

/// Writes a line, [printable].
pub fn line(out: &mut impl Write, text: Arguments<'_>) -> io::Result<()> {
    writeln!(out, "{}", printable(&text.to_string()))
}

/// Lines on standard output, or in a file.
#[derive(Debug)]
pub struct Out(BufWriter<Waiting>);

/// An output, which is waited for where somebody made it one that does not block (`O_NONBLOCK`).
#[derive(Debug)]
enum Waiting {
    Standard(StdoutLock<'static>),
    File(File),
}

impl Waiting {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Standard(out) => out,
            Self::File(file) => file,
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Standard(out) => out.as_fd(),
            Self::File(file) => file.as_fd(),
        }
    }
}

impl Write for Waiting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.writer().write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => writable(self.descriptor()),
                wrote => return wrote,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.writer().flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => writable(self.descriptor()),
                flushed => return flushed,
            }
        }
    }
}

/// Waits until something can be written. A signal may end it early, and then the next try finds out.
fn writable(out: BorrowedFd<'_>) {
    let _ = poll(&mut [PollFd::new(out, PollFlags::POLLOUT)], PollTimeout::NONE);
}

impl Out {
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, Waiting::Standard(io::stdout().lock())))
    }

    /// Lines in a file.
    pub fn file(file: File) -> Self {
        Self(BufWriter::with_capacity(1 << 16, Waiting::File(file)))
    }

    /// Whether a person sees it at once.
    pub fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::{frame, printable};
    use serde_json::{Value, json};

    #[test]
    fn a_name_is_one_line_and_commands_no_terminal() {
        let name = "\x1b]0;a\x07\nF/1 \u{9b}2J\x7f\u{202e}\u{2028}\u{e0041}\t\r\0";
        let shown = r"\u001b]0;a\u0007\nF/1 \u009b2J\u007f\u202e\u2028\udb40\udc41\t\r\u0000";
        assert_eq!(printable(name), shown);
        assert_eq!(frame("a;b\nc"), r"a:b\nc");
        for same in ["comm=a b \\ \"x\" 'y'", "größer 窓 e\u{301}"] {
            assert_eq!(printable(same), same);
        }
        // What a line of JSON says stays the same.
        let object = json!({ "comm": name }).to_string();
        let line = printable(&object);
        assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["comm"], name);
    }
}
