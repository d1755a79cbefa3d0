//! Standard output: buffered, and written out whenever nothing more is ready.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

/// Lines on standard output.
#[derive(Debug)]
pub struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
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
