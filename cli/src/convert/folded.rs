//! Call chains, counted: the input of flame graphs.

use super::names::Names;
use super::view::{View, lossy};
use super::{Out, Sink};
use crate::out::frame;
use perf_event_open_sys::bindings;
use perfweave::Event;
use std::collections::HashMap;
use std::io::{self, Write};

/// One line for each chain: `thread;outermost;...;innermost count`.
pub struct Folded {
    out: Out,
    names: Names,
    /// The names of threads and functions, and their numbers.
    words: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
    /// By the numbers of a chain's names, the thread first.
    chains: HashMap<Box<[u32]>, u64>,
}

impl Folded {
    pub fn new(out: Out) -> Self {
        let (names, words, numbers, chains) = Default::default();
        Self { out, names, words, numbers, chains }
    }

    fn number(&mut self, word: String) -> u32 {
        if let Some(number) = self.numbers.get(word.as_str()) {
            return *number;
        }
        let word = word.into_boxed_str();
        self.words.push(word.clone());
        *self.numbers.entry(word).or_insert(self.words.len() as u32 - 1)
    }
}

impl Sink for Folded {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.names.learn(event);
        let Some(record) = event.record().filter(|record| record.kind() == bindings::PERF_RECORD_SAMPLE) else {
            return Ok(());
        };
        let frames = self.names.frames(&record, event.key(), view);
        if frames.is_empty() {
            return Ok(());
        }
        let tid = view.tid(&record);
        let pid = record.pid_tid().map(|(pid, _)| pid).or(tid);
        let mut chain = Vec::with_capacity(1 + frames.len());
        let name = tid.and_then(|tid| view.comm(tid)).map_or("?".into(), lossy);
        chain.push(self.number(frame(&name)));
        for caller in frames.into_iter().rev() {
            for name in self.names.counted(pid, caller, event.key(), view) {
                chain.push(self.number(frame(&name)));
            }
        }
        *self.chains.entry(chain.into()).or_default() += 1;
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: &View) -> io::Result<()> {
        if self.chains.is_empty() {
            eprintln!("perfweave: no event of this recording has a call chain: record with --call-graph");
        }
        self.names.tell();
        // By their lines, whichever came first.
        let mut chains: Vec<_> = self.chains.drain().collect();
        let words = &self.words;
        chains.sort_unstable_by(|(one, _), (other, _)| {
            parts(one, words).flat_map(str::bytes).cmp(parts(other, words).flat_map(str::bytes))
        });
        for (chain, count) in chains {
            parts(&chain, words).try_for_each(|part| self.out.write_all(part.as_bytes()))?;
            writeln!(self.out, " {count}")?;
        }
        self.out.flush()
    }
}

/// The parts of a chain's line.
fn parts<'a>(chain: &'a [u32], words: &'a [Box<str>]) -> impl Iterator<Item = &'a str> {
    let part = |(at, number): (usize, &u32)| [if at > 0 { ";" } else { "" }, &*words[*number as usize]];
    chain.iter().enumerate().flat_map(part)
}
