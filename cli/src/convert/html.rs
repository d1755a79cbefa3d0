//! One page with everything in it: what it shows, its script and its style. It asks for nothing from a network.

use super::picture::{Painter, Picture, Place};
use super::view::View;
use super::{Out, Sink};
use perfweave::Event;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, Write};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub struct Html {
    out: Out,
    painter: Painter,
}

impl Html {
    pub fn new(out: Out, view: &View) -> Self {
        Self { out, painter: Painter::new(view) }
    }
}

impl Sink for Html {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.painter.event(event, view);
        Ok(())
    }

    fn finish(mut self: Box<Self>, view: &View) -> io::Result<()> {
        let title = view.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let picture = self.painter.finish();
        // Of the first event, which is at 0 on the page.
        let wall = view.wall.map(|wall| wall.apply(picture.start));
        page(&mut self.out, &picture, &title, wall)?;
        self.out.flush()
    }
}

/// Writes a page.
fn page(out: &mut impl Write, picture: &Picture, title: &str, wall: Option<u64>) -> io::Result<()> {
    // The page's own parts come first, so that no text of the recording is taken for one.
    let (head, rest) = PAGE.split_once("/*STYLE*/").unwrap_or((PAGE, ""));
    let (middle, rest) = rest.split_once("/*DATA*/").unwrap_or((rest, ""));
    let (before, tail) = rest.split_once("/*SCRIPT*/").unwrap_or((rest, ""));
    write!(out, "{head}{STYLE}{middle}")?;
    data(out, picture, title, wall)?;
    write!(out, "{before}{SCRIPT}{tail}")
}

/// The data as JSON in which no text ends the element that it lies in.
fn data(out: &mut impl Write, picture: &Picture, title: &str, wall: Option<u64>) -> io::Result<()> {
    let Picture { start, end, cpus, threads, events, .. } = picture;
    let threads: Vec<Value> = threads.iter().map(|(tid, thread)| json!([tid, thread.pid, thread.name])).collect();
    write!(out, "{{\"title\":{},\"start\":\"{start}\",\"end\":{},", escaped(&json!(title)), end - start)?;
    // As texts: numbers of JavaScript are not so large.
    write!(out, "\"wall\":{},", json!(wall.map(|time| time.to_string())))?;
    write!(out, "\"cpus\":{},\"threads\":{},", json!(cpus), escaped(&json!(threads)))?;
    write!(out, "\"events\":{},", escaped(&json!(events)))?;
    runs(out, picture)?;
    // Many texts come again and again.
    let mut texts = Texts::default();
    let since = |time: u64| time.saturating_sub(picture.start);
    write!(out, "\"points\":[")?;
    for (at, point) in picture.points.iter().enumerate() {
        let (text, chain) = (texts.number(&point.text), texts.number(&point.chain.join("\n")));
        let late = match point.place {
            Place::Proven => json!(0),
            Place::Assumed => json!(-1),
            Place::Late(by) => json!(by),
        };
        let point = json!([since(point.time), point.cpu, point.tid, point.event, text, late, chain, point.interrupt]);
        write!(out, "{}{point}", if at > 0 { "," } else { "" })?;
    }
    write!(out, "],\"texts\":{}}}", escaped(&json!(texts.all)))
}

fn runs(out: &mut impl Write, picture: &Picture) -> io::Result<()> {
    let since = |time: u64| time.saturating_sub(picture.start);
    let runs: Vec<_> =
        picture.runs.iter().map(|run| json!([since(run.from), since(run.to), run.cpu, run.tid])).collect();
    let wakes = picture.wakes.iter().map(|wake| {
        let (ran, on) = wake.ran.unzip();
        let point = &picture.points[wake.point];
        let waker = point.interrupt.map_or(json!(point.tid), |interrupt| json!(interrupt));
        json!([since(wake.time), wake.cpu, waker, wake.woken, ran.map(since), on])
    });
    let losses = picture.losses.iter().map(|loss| json!([since(loss.from), since(loss.to), loss.cpu, loss.text]));
    write!(out, "\"runs\":{},\"wakes\":{},", json!(runs), Value::from_iter(wakes))?;
    write!(out, "\"losses\":{},", escaped(&Value::from_iter(losses)))
}

/// `</script>` and `<!--` in a thread's name would end or hide the rest of the page.
fn escaped(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

#[derive(Default)]
struct Texts {
    all: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Texts {
    fn number(&mut self, text: &str) -> usize {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.numbers.insert(text.to_owned(), self.all.len());
        self.all.push(text.to_owned());
        self.all.len() - 1
    }
}

#[cfg(test)]
mod tests;
