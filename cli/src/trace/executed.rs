//! The paths of programs that are executed: that of the call may not be in memory when it is entered.

use crate::failure::Failure;
use perfweave::{Record, RingOptions, Rings};
use perfweave_events::{EventOptions, Field, Format};
use std::collections::HashMap;

/// The tracepoint that tells them.
const EXEC: &str = "sched:sched_process_exec";

/// The path of each thread that has not yet returned from its call.
#[derive(Debug)]
pub struct Executed {
    source: usize,
    path: Field,
    paths: HashMap<u32, Vec<u8>>,
}

impl Executed {
    pub fn source(options: RingOptions) -> RingOptions {
        options.tracepoint(EXEC)
    }

    pub fn new(rings: &Rings) -> Result<Self, Failure> {
        let source = rings.sources().iter().position(|source| source.tracepoint() == Some(EXEC));
        let source = source.ok_or_else(|| Failure::new("programs are not traced"))?;
        Ok(Self { source, path: Format::of(rings, source)?.field("filename")?, paths: HashMap::new() })
    }

    /// Records are lost.
    pub fn forget(&mut self) {
        self.paths.clear();
    }

    pub fn take(&mut self, record: &Record<'_>) {
        if record.source() == Some(self.source)
            && let (Some((_, tid)), Some(path)) = (record.pid_tid(), self.path.bytes(record))
        {
            let path = path.to_vec();
            self.paths.insert(tid, path.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
        }
    }

    /// The path that a thread which returns has executed.
    pub fn of(&mut self, tid: u32) -> Option<Vec<u8>> {
        self.paths.remove(&tid)
    }
}
