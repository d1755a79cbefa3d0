//! One page with everything in it: what it shows, its script and its style. It asks for nothing from a network.

use super::picture::{By, Painter, Picture, Place, Run, Unknown, Wake};
use super::spill::Spill;
use super::view::View;
use super::{Out, Sink};
use perfweave::Event;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub struct Html {
    out: Out,
    painter: Painter,
}

impl Html {
    pub fn new(out: Out, painter: Painter) -> Self {
        Self { out, painter }
    }
}

impl Sink for Html {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.painter.event(event, view)
    }

    fn finish(mut self: Box<Self>, view: &View) -> io::Result<()> {
        let title = view.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let picture = self.painter.finish()?;
        // Of the first event, which is at 0 on the page.
        let wall = view.wall.map(|wall| wall.apply(picture.start));
        page(&mut self.out, &picture, &title, wall, Told::default())?;
        self.out.flush()
    }
}

/// What `why` says, as its `--json` has it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Told<'a> {
    /// The paths, with times since the picture's start.
    pub ways: &'a [Value],
    /// The waits that go on.
    pub hangs: &'a [Value],
}

/// Writes a page.
pub fn page(out: &mut impl Write, picture: &Picture, title: &str, wall: Option<u64>, told: Told<'_>) -> io::Result<()> {
    // The page's own parts come first, so that no text of the recording is taken for one.
    let (head, rest) = PAGE.split_once("/*STYLE*/").unwrap_or((PAGE, ""));
    let (middle, rest) = rest.split_once("/*DATA*/").unwrap_or((rest, ""));
    let (before, tail) = rest.split_once("/*SCRIPT*/").unwrap_or((rest, ""));
    write!(out, "{head}{STYLE}{middle}")?;
    data(out, picture, title, wall, told)?;
    write!(out, "{before}{SCRIPT}{tail}")
}

/// The data as JSON in which no text ends the element that it lies in.
fn data(out: &mut impl Write, picture: &Picture, title: &str, wall: Option<u64>, told: Told<'_>) -> io::Result<()> {
    let Picture { start, end, cpus, threads, events, .. } = picture;
    let threads: Vec<Value> = threads.iter().map(|(tid, thread)| json!([tid, thread.pid, thread.name])).collect();
    write!(out, "{{\"title\":{},\"start\":\"{start}\",\"end\":{},", escaped(&json!(title)), end - start)?;
    // As texts: numbers of JavaScript are not so large.
    write!(out, "\"wall\":{},", json!(wall.map(|time| time.to_string())))?;
    write!(out, "\"cpus\":{},\"threads\":{},", json!(cpus), escaped(&json!(threads)))?;
    write!(out, "\"events\":{},\"ways\":{},", escaped(&json!(events)), escaped(&json!(told.ways)))?;
    write!(out, "\"hangs\":{}", escaped(&json!(told.hangs)))?;
    // Many texts come again and again.
    let mut texts = Texts::default();
    let since = |time: u64| time.saturating_sub(*start);
    let by = |by: &By| match by {
        By::Thread(tid) => json!(tid),
        By::Interrupt(name) => json!(**name),
    };
    let run = picture.runs.iter().map(|run| {
        let Run { cpu, tid, from, to } = run?;
        Ok(json!([since(from), since(to), cpu, tid]))
    });
    rows(out, "runs", run)?;
    let wait = picture.waits.iter().map(|wait| {
        let wait = wait?;
        let call = wait.call.as_ref().map(|call| texts.number(call)).transpose()?;
        let by = wait.by.as_ref().map(by);
        Ok(json!([since(wait.from), since(wait.to), wait.tid, wait.words(), wait.cpu, call, by]))
    });
    rows(out, "waits", wait)?;
    let unknown = picture.unknown.iter().map(|unknown| {
        let Unknown { cpu, from, to, cause } = unknown?;
        Ok(json!([since(from), since(to), cpu, cause.words()]))
    });
    rows(out, "unknown", unknown)?;
    let wake = picture.wakes.iter().map(|wake| {
        let Wake { time, by: waker, cpu, woken, ran: (ran, on), .. } = wake?;
        Ok(json!([since(time), cpu, by(&waker), woken, since(ran), on]))
    });
    rows(out, "wakes", wake)?;
    let losses = picture.losses.iter();
    rows(out, "losses", losses.map(|loss| Ok(json!([since(loss.from), since(loss.to), loss.cpu, loss.text]))))?;
    let point = picture.points.iter().map(|point| {
        let point = point?;
        let (text, chain) = (texts.number(&point.text)?, texts.number(&point.chain.join("\n"))?);
        let late = match point.place {
            Place::Proven => json!(0),
            Place::Assumed => json!(-1),
            Place::Late(by) => json!(by),
        };
        Ok(json!([since(point.time), point.cpu, point.tid, point.event, text, late, chain, point.interrupt]))
    });
    rows(out, "points", point)?;
    write!(out, ",\"texts\":[")?;
    io::copy(&mut texts.all.read(), out)?;
    write!(out, "]}}")
}

/// A part of the data that has many rows.
fn rows(out: &mut impl Write, name: &str, rows: impl Iterator<Item = io::Result<Value>>) -> io::Result<()> {
    write!(out, ",\"{name}\":[")?;
    for (at, row) in rows.enumerate() {
        write!(out, "{}{}", if at > 0 { "," } else { "" }, escaped(&row?))?;
    }
    write!(out, "]")
}

/// `</script>` and `<!--` in a thread's name would end or hide the rest of the page.
fn escaped(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

/// Texts that rows name by their numbers. They are in a file: in memory are the numbers, each with two hashes of its text.
/// No two texts have the same 128 bits.
#[derive(Default)]
struct Texts {
    all: Spill,
    numbers: HashMap<[u64; 2], u32>,
    hashes: [RandomState; 2],
}

impl Texts {
    fn number(&mut self, text: &str) -> io::Result<u32> {
        let (hash, next) = (self.hashes.each_ref().map(|hash| hash.hash_one(text)), self.numbers.len() as u32);
        let number = *self.numbers.entry(hash).or_insert(next);
        if number == next {
            write!(self.all, "{}{}", if next > 0 { "," } else { "" }, escaped(&json!(text)))?;
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests;
