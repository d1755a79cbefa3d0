//! A table that is drawn again every second while a trace runs, if a person sees it. ratatui would draw it too, with 77 crates more; the whole
//! program has 110.

use crate::out::Out;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);

/// When to draw.
#[derive(Debug)]
pub struct Live {
    next: Option<Instant>,
}

impl Live {
    /// Draws on a terminal that no one else writes to.
    pub fn new(out: &Out, is_alone: bool) -> Self {
        Self { next: (out.is_terminal() && is_alone).then(Instant::now) }
    }

    /// Draws what `table` gives if it is time to, with as many rows as there is room for.
    pub fn draw(&mut self, out: &mut Out, table: impl FnOnce(usize) -> String) -> io::Result<()> {
        let Some(next) = self.next.filter(|next| Instant::now() >= *next) else { return Ok(()) };
        self.next = Some(next.max(Instant::now()) + PERIOD);
        let rows = terminal_size::terminal_size().map_or(24, |(_, height)| height.0);
        let rows = usize::from(rows).saturating_sub(1);
        let mut text = String::new();
        for line in table(rows.saturating_sub(2)).lines().take(rows) {
            // Each line replaces what is there, so that nothing flickers.
            let _ = writeln!(text, "{line}\x1b[K");
        }
        write!(out, "\x1b[H{text}\x1b[J")?;
        out.flush()
    }

    /// Makes room for the last table.
    pub fn end(&self, out: &mut Out) -> io::Result<()> {
        if self.next.is_some() { write!(out, "\x1b[H\x1b[J") } else { Ok(()) }
    }
}
