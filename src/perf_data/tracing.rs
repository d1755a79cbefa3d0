//! What perf(1) must know of tracepoints to read their samples: the format files of tracefs, in one piece.
//!
//! The layout is that of `tools/perf/util/trace-event-info.c`, version 0.6, which `trace-event-read.c` reads.

use crate::error::Unwritable;
use crate::sys::machine;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Says what it is, and which version.
const BEGIN: &[u8] = b"\x17\x08\x44tracing0.6\0";

/// The formats of tracepoints, each by number and, if it is known, `category:name`.
pub(super) fn data(tracepoints: &[(u64, Option<&str>)]) -> Result<Vec<u8>, Unwritable> {
    let failed = |id| move |errno| Unwritable::Tracepoint { id, errno };
    let first = tracepoints.first().map_or(0, |(id, _)| *id);
    let tracefs = machine::tracefs().map_err(failed(first))?;
    let events = tracefs.join("events");
    let mut categories: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for &(id, name) in tracepoints {
        let found = match name.and_then(|name| name.split_once(':')) {
            Some((category, name)) => Ok((category.to_owned(), name.to_owned())),
            None => find(&events, id),
        };
        let (category, name) = found.map_err(failed(id))?;
        let format = fs::read(events.join(&category).join(name).join("format")).map_err(failed(id))?;
        categories.entry(category).or_default().push(format);
    }
    let mut out = BEGIN.to_vec();
    out.push(u8::from(cfg!(target_endian = "big")));
    out.push(size_of::<usize>() as u8);
    out.extend((machine::page_size() as u32).to_ne_bytes());
    for name in ["header_page", "header_event"] {
        out.extend(name.bytes().chain([0]));
        with_length(&mut out, &fs::read(events.join(name)).map_err(failed(first))?);
    }
    // Formats of ftrace's own entries, which no event has.
    out.extend(0u32.to_ne_bytes());
    out.extend((categories.len() as u32).to_ne_bytes());
    for (category, formats) in categories {
        out.extend(category.bytes().chain([0]));
        out.extend((formats.len() as u32).to_ne_bytes());
        formats.iter().for_each(|format| with_length(&mut out, format));
    }
    // Symbols of the kernel, strings of trace_printk, names of processes: none.
    out.extend([0; 4 + 4 + 8]);
    Ok(out)
}

fn with_length(out: &mut Vec<u8>, file: &[u8]) {
    out.extend((file.len() as u64).to_ne_bytes());
    out.extend(file);
}

/// The category and the name of a tracepoint that was given by number.
fn find(events: &Path, id: u64) -> io::Result<(String, String)> {
    let id = id.to_string();
    for category in fs::read_dir(events)? {
        let category = category?;
        // Files lie beside directories.
        let Ok(names) = fs::read_dir(category.path()) else { continue };
        for name in names {
            let name = name?;
            if fs::read_to_string(name.path().join("id")).is_ok_and(|text| text.trim() == id) {
                let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
                return Ok((text(category.file_name()), text(name.file_name())));
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no tracepoint has this number"))
}
