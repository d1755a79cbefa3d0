//! A table that is drawn again every second while a trace runs, if a person sees it. ratatui would draw it too, with 77
//! crates more; the whole program has 110.

use crate::out::{Out, printable};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

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
        let (width, rows) = terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0, height.0));
        let rows = usize::from(rows).saturating_sub(1);
        let mut text = String::new();
        for line in fitting(&table(rows.saturating_sub(2)), usize::from(width), rows) {
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

/// The first lines, as many as the terminal has room for. It puts the rest of a line that is too wide into the next.
fn fitting(text: &str, width: usize, rows: usize) -> impl Iterator<Item = &str> {
    text.lines().scan(rows, move |left, line| {
        *left = left.checked_sub(line.width().div_ceil(width.max(1)).max(1))?;
        Some(line)
    })
}

/// How many places a line of the terminal has.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size().map(|(width, _)| width.0.into())
}

/// The width of a column of names: 28 places, but fewer on a narrow terminal, where other columns need the room.
pub fn names_width(terminal: Option<usize>, others: usize, columns: usize) -> usize {
    terminal.map_or(NAME, |width| (width.saturating_sub(others) / columns).clamp(LEAST, NAME))
}

const NAME: usize = 28;
const LEAST: usize = 8;

/// A name in a column of so many places of a terminal, [printable]. Of a longer one, some letters before its number are
/// left out.
pub fn fit(name: &str, width: usize) -> String {
    let (name, room) = cut(name, width);
    name + &" ".repeat(room)
}

/// [`fit`] at the column's right.
pub fn fit_right(name: &str, width: usize) -> String {
    let (name, room) = cut(name, width);
    " ".repeat(room) + &name
}

/// A name that fits, and how many places are left.
fn cut(name: &str, width: usize) -> (String, usize) {
    let name = &*printable(name);
    // Letters of East Asia take two places, and some take none.
    if let Some(room) = width.checked_sub(name.width()) {
        return (name.to_owned(), room);
    }
    let (comm, number) = name.rfind('/').map_or((name, ""), |at| name.split_at(at));
    let mut room = width.saturating_sub(number.width() + 1);
    let fits = |letter: &char| room.checked_sub(letter.width().unwrap_or(0)).inspect(|left| room = *left).is_some();
    let name = comm.chars().take_while(fits).chain(['…']).chain(number.chars()).collect();
    (name, room)
}

#[cfg(test)]
mod tests {
    use super::{fit, fit_right, fitting, names_width};

    #[test]
    fn names_give_way_to_numbers() {
        assert_eq!([80, 60, 20, 200].map(|width| names_width(Some(width), 44, 2)), [18, 8, 8, 28]);
        assert_eq!(names_width(None, 44, 2), 28);
        let names = ["sh/7", "kworker/u8:2-ev/1234", "rcu_preempt/15"].map(|name| fit(name, 12));
        assert_eq!(names, ["sh/7        ", "kworke…/1234", "rcu_pree…/15"]);
        assert_eq!(fit_right("sh/7", 6), "  sh/7");
        assert_eq!(fit("a name without number", 8), "a name …");
    }

    #[test]
    fn wide_letters_take_two_places() {
        let names = ["計算/7", "e\u{301}/7", "プロセス/15", "あいう"].map(|name| fit(name, 8));
        assert_eq!(names, ["計算/7  ", "e\u{301}/7     ", "プロ…/15", "あいう  "]);
        assert_eq!(fit("プロセス/1", 8), "プロ…/1 ");
        assert_eq!(fit_right("プロセス/1", 8), " プロ…/1");
    }

    #[test]
    fn lines_that_wrap_take_their_room() {
        let text = "1234567890\n12345\n\n1";
        let lines = |width, rows| fitting(text, width, rows).count();
        assert_eq!(
            [lines(10, 4), lines(10, 3), lines(5, 4), lines(5, 3), lines(4, 4), lines(0, 9)],
            [4, 3, 3, 2, 1, 0]
        );
    }
}
