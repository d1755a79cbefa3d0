//! Call chains, counted: the input of flame graphs.

use super::names::{Names, frames};
use super::view::{View, lossy};
use super::{Out, Sink};
use crate::out::frame;
use perf_event_open_sys::bindings;
use perfweave::Event;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// One line for each chain: `thread;outermost;...;innermost count`.
pub struct Folded {
    out: Out,
    names: Names,
    chains: BTreeMap<String, u64>,
}

impl Folded {
    pub fn new(out: Out) -> Self {
        Self { out, names: Names::default(), chains: BTreeMap::new() }
    }
}

impl Sink for Folded {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.names.learn(event);
        let Some(record) = event.record().filter(|record| record.kind() == bindings::PERF_RECORD_SAMPLE) else {
            return Ok(());
        };
        let frames = frames(&record);
        if frames.is_empty() {
            return Ok(());
        }
        let tid = view.tid(&record);
        let pid = record.pid_tid().map(|(pid, _)| pid).or(tid);
        let mut line = frame(&tid.and_then(|tid| view.comm(tid)).map_or("?".into(), lossy));
        for caller in frames.into_iter().rev() {
            line.push(';');
            line.push_str(&frame(&self.names.counted(pid, caller, event.key(), view)));
        }
        *self.chains.entry(line).or_default() += 1;
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: &View) -> io::Result<()> {
        if self.chains.is_empty() {
            eprintln!("perfweave: no event of this recording has a call chain: record with --call-graph");
        }
        self.names.tell();
        for (chain, count) in &self.chains {
            writeln!(self.out, "{chain} {count}")?;
        }
        self.out.flush()
    }
}
