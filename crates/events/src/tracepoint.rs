//! Tracepoints in the folder `events` of tracefs: `category/name`.
//!
//! Some files there give their whole content to the first read, and nothing to the next: `header_page`, `header_event`,
//! `filter` and `id` (`kernel/trace/trace_events.c`: `if (*ppos) return 0`). The standard library's first read is of 32
//! bytes. A number fits into these. For the other files there is [`read_at_once`]. Numbers in `/proc/sys` behave like
//! `id`.

use crate::tracefs::Tracefs;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// The folders in a folder, by name.
pub(crate) fn folders(path: &Path) -> io::Result<Vec<String>> {
    let named = |errno: io::Error| io::Error::new(errno.kind(), format!("{}: {errno}", Tracefs::named(path)));
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(named)? {
        let entry = entry.map_err(named)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// More than such a file has: the kernel writes it into one page or two.
const LONGEST: usize = 1 << 16;

/// The content of a file, from one read.
pub(crate) fn read_at_once(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LONGEST];
    let len = fs::File::open(path)?.read(&mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// The name of the tracepoint with a number, `category:name`. Searches all of them, of which there are thousands.
pub(crate) fn of_number(number: u64) -> io::Result<Option<String>> {
    let tracefs = Tracefs::find()?;
    let events = tracefs.join("events");
    for category in folders(&events)? {
        let category_path = events.join(&category);
        for event in folders(&category_path).unwrap_or_default() {
            let id = fs::read_to_string(category_path.join(&event).join("id"));
            if id.is_ok_and(|id| id.trim().parse() == Ok(number)) {
                return Ok(Some(format!("{category}:{event}")));
            }
        }
    }
    Ok(None)
}
