//! What a reader must know about tracepoints to read their samples: the format files of tracefs, in one section.
//!
//! The layout is that of `tools/perf/util/trace-event-info.c`, version 0.6, which `trace-event-read.c` reads.

use crate::metadata::TRACING_DATA;
use crate::words::Words;
use crate::{Facts, machine};
use perfweave::{Error, ErrorKind, Rings};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;

/// The magic bytes and the version.
const BEGIN: &[u8] = b"\x17\x08\x44tracing0.6\0";

/// The formats of the tracepoints among the sources of rings. `None` if there are none.
pub(crate) fn data(rings: &Rings) -> Result<Option<Vec<u8>>, Error> {
    let sources = rings.sources().iter().enumerate();
    let mut tracepoints =
        sources.filter_map(|(at, source)| Some((at, source.tracepoint_id()?, source.tracepoint()))).peekable();
    let Some(&(_, first, _)) = tracepoints.peek() else { return Ok(None) };
    let tracefs = perfweave_events::tracefs().map_err(no_format(first))?;
    let events = tracefs.join("events");
    let mut categories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (at, id, name) in tracepoints {
        let format = perfweave_events::format(rings, at).map_err(no_format(id))?;
        let category = match name.and_then(|name| name.split_once(':')) {
            Some((category, _)) => category.to_owned(),
            None => category_of(&events, &format).map_err(|errno| unread(&tracefs, "", errno))?,
        };
        categories.entry(category).or_default().push(format);
    }
    let mut out = BEGIN.to_vec();
    out.push(u8::from(cfg!(target_endian = "big")));
    out.push(size_of::<usize>() as u8);
    out.extend((machine::page_size() as u32).to_ne_bytes());
    for name in ["header_page", "header_event"] {
        out.extend(name.bytes().chain([0]));
        let read = machine::read_at_once(&events.join(name));
        with_length(&mut out, &read.map_err(|errno| unread(&tracefs, name, errno))?);
    }
    // Formats of ftrace's own entries, which no event has.
    out.extend(0u32.to_ne_bytes());
    out.extend((categories.len() as u32).to_ne_bytes());
    for (category, formats) in categories {
        out.extend(category.bytes().chain([0]));
        out.extend((formats.len() as u32).to_ne_bytes());
        formats.iter().for_each(|format| with_length(&mut out, format.as_bytes()));
    }
    // Symbols of the kernel: none.
    out.extend(0u32.to_ne_bytes());
    // Strings that tracepoints point to. Without them there are addresses.
    let strings = events.parent().and_then(|root| fs::read(root.join("printk_formats")).ok());
    let strings = strings.unwrap_or_default();
    out.extend((strings.len() as u32).to_ne_bytes());
    out.extend(strings);
    // Names of processes: none.
    out.extend(0u64.to_ne_bytes());
    Ok(Some(out))
}

/// The category of the tracepoint with this format, which does not say it.
fn category_of(events: &Path, format: &str) -> io::Result<String> {
    let name = format.lines().find_map(|line| line.strip_prefix("name: ")).unwrap_or_default();
    let has = |category: &DirEntry| {
        // Several categories may have an event of this name. The text has its number, so it is of one event.
        fs::read(category.path().join(name).join("format")).is_ok_and(|other| other == format.as_bytes())
    };
    let category = fs::read_dir(events)?.flatten().find(has);
    category.and_then(|category| category.file_name().into_string().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The format of a tracepoint cannot be read. Without it perf(1) does not read the file.
fn no_format(id: u64) -> impl Fn(Error) -> Error {
    move |error| error.during(&format!("no format of tracepoint {id}"))
}

/// Something in the folder `events` of tracefs cannot be read.
fn unread(tracefs: &Path, name: &str, errno: io::Error) -> Error {
    // Without a mount it is behind a descriptor of this process, and nothing can be remounted.
    let hint = match tracefs.starts_with("/proc") {
        false => format!("tracefs must be readable: mount -o remount,gid=GROUP,mode=750 {}", tracefs.display()),
        true => "tracefs is not mounted, and its files are root's: run as root, or with CAP_DAC_READ_SEARCH".into(),
    };
    let message = format!("cannot read events/{name} of tracefs");
    Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
}

/// The format of a tracepoint in such a section.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) category: String,
    pub(crate) text: String,
}

impl Format {
    /// The name of the tracepoint in its category.
    pub(crate) fn name(&self) -> &str {
        self.text.lines().find_map(|line| line.strip_prefix("name: ")).unwrap_or_default().trim()
    }
}

/// The formats of tracepoints in such a section, by number. Formats after a malformed one are missing.
pub(crate) fn formats(data: &[u8]) -> HashMap<u64, Format> {
    let mut formats = HashMap::new();
    let _ = all_formats(&mut Words(data), &mut formats);
    formats
}

/// The strings of the kernel that tracepoints point to, as a recording has them: lines `0xffffffff8281b7e5 :
/// "rcu_preempt"`, as in `printk_formats` of tracefs. They are for
/// [`Format::line_with`](https://docs.rs/perfweave-events). Empty for rings that are not a recording's, and for
/// recordings without tracepoints.
pub fn kernel_strings(rings: &Rings) -> String {
    let mut sections = rings.facts::<Facts>().into_iter().flat_map(|facts| &facts.features);
    let found = sections.find(|(feature, _)| *feature == TRACING_DATA).and_then(|(_, data)| strings(data));
    found.map_or_else(String::new, |found| String::from_utf8_lossy(found).into_owned())
}

fn strings(data: &[u8]) -> Option<&[u8]> {
    let mut words = Words(data);
    all_formats(&mut words, &mut HashMap::new())?;
    let symbols = words.u32()?;
    words.bytes(symbols as usize)?;
    let len = words.u32()?;
    words.bytes(len as usize)
}

fn all_formats(words: &mut Words<'_>, formats: &mut HashMap<u64, Format>) -> Option<()> {
    expect(words, BEGIN)?;
    // Byte order, and the lengths of a long and of a page.
    words.bytes(1 + 1 + 4)?;
    for name in [b"header_page\0".as_slice(), b"header_event\0"] {
        expect(words, name)?;
        file(words)?;
    }
    // A forged count ends with the bytes, of which each turn takes some.
    for _ in 0..words.u32()? {
        file(words)?;
    }
    for _ in 0..words.u32()? {
        let category = words.0.iter().position(|byte| *byte == 0)?;
        let category = String::from_utf8_lossy(words.bytes(category)?).into_owned();
        words.bytes(1)?;
        for _ in 0..words.u32()? {
            let text = String::from_utf8_lossy(file(words)?).into_owned();
            let id = text.lines().find_map(|line| line.strip_prefix("ID: ")?.trim().parse().ok());
            formats.extend(id.map(|id| (id, Format { category: category.clone(), text })));
        }
    }
    Some(())
}

fn expect(words: &mut Words<'_>, bytes: &[u8]) -> Option<()> {
    (words.bytes(bytes.len())? == bytes).then_some(())
}

/// A file after its length.
fn file<'a>(words: &mut Words<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(words.u64()?).ok()?;
    words.bytes(len)
}

fn with_length(out: &mut Vec<u8>, file: &[u8]) {
    out.extend((file.len() as u64).to_ne_bytes());
    out.extend(file);
}

#[cfg(test)]
mod tests {
    use super::unread;
    use std::io;
    use std::path::Path;

    /// What is not mounted cannot be remounted.
    #[test]
    fn what_helps_depends_on_where_tracefs_is() {
        let hint = |tracefs: &str| {
            let error = unread(Path::new(tracefs), "header_page", io::ErrorKind::PermissionDenied.into());
            error.hint().unwrap().to_owned()
        };
        assert!(hint("/mnt/tracing").ends_with("mount -o remount,gid=GROUP,mode=750 /mnt/tracing"));
        let detached = hint("/proc/thread-self/fd/7");
        assert!(!detached.contains("mount -") && detached.contains("CAP_DAC_READ_SEARCH"), "{detached}");
    }
}
