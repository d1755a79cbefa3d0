//! Where formats come from: tracefs, and the kernel's documentation of probes.

use crate::decode::Format;
use crate::error::{Error, ErrorKind, hint, short};
use crate::rings::{Rings, Source};
use crate::sys::{machine, pmu, tracepoint};
use std::fs;
use std::io;
use std::path::Path;

/// The fields that all tracepoints and probes have.
const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

";

/// The fields of a probe, and of a return probe, as `kernel/trace/trace_probe.h` names them.
const PROBE: &str = "\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;

print fmt: \"(%lx)\", REC->__probe_ip
";
const RETURN: &str = "\tfield:unsigned long __probe_func;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long __probe_ret_ip;\toffset:16;\tsize:8;\tsigned:0;

print fmt: \"(%lx <- %lx)\", REC->__probe_func, REC->__probe_ret_ip
";

impl Format {
    /// Reads the format of a tracepoint, `category:name`, from tracefs, wherever that is mounted.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a name that tracefs does not have; [`ErrorKind::Permission`] if tracefs cannot be read, and
    /// [`ErrorKind::System`] if it is not mounted; [`ErrorKind::InvalidInput`] for a name or a file that the crate does not understand.
    pub fn read(name: &str) -> Result<Self, Error> {
        let Some((category, event)) = name.split_once(':').filter(|(c, e)| !c.contains('/') && !e.contains('/')) else {
            return Err(Error::tracepoint(name, io::ErrorKind::InvalidInput.into(), "write it as category:name"));
        };
        let tracefs = machine::tracefs().map_err(|errno| refused(name, errno))?;
        let path = tracefs.join("events").join(category).join(event).join("format");
        match fs::read_to_string(&path) {
            Ok(text) => text.parse(),
            Err(errno) if errno.kind() == io::ErrorKind::NotFound => Err(none(name, &tracefs)),
            Err(errno) => Err(refused(name, at(&path, &errno))),
        }
    }

    /// The format of the tracepoint with a number. Searches all tracepoints, of which there are thousands.
    fn of_number(number: u64) -> Result<Self, Error> {
        let name = format!("of number {number}");
        match tracepoint::of_number(number).map_err(|errno| refused(&name, errno))? {
            Some(name) => Self::read(&name),
            None => Err(none(&name, &machine::tracefs().map_err(|errno| refused(&name, errno))?)),
        }
    }

    /// The format of a probe, which tracefs does not have.
    fn of_probe(name: &str, returns: bool) -> Result<Self, Error> {
        let own = if returns { RETURN } else { PROBE };
        let format: Self = format!("name: probe\nID: 0\nformat:\n{COMMON}{own}").parse()?;
        // A path may have line feeds.
        Ok(format.with_name(name))
    }
}

impl Rings {
    /// The format of a source, by the number that [`Record::source`](crate::Record::source) gives. Call it once for each source, before
    /// reading: it reads tracefs. For a tracepoint that was given by number it searches all tracepoints.
    ///
    /// A recording contains its formats, those of the machine that was recorded.
    ///
    /// Probes have the fields `__probe_ip`, or, for return probes, `__probe_func` and `__probe_ret_ip`, after the fields that are common to
    /// all tracepoints.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a number that is not an index of [`Rings::sources`]; [`ErrorKind::NotFound`] for BPF output, for
    /// events that are neither tracepoints nor probes, and for a recording without the format; and the errors of [`Format::read`].
    pub fn format(&self, source: usize) -> Result<Format, Error> {
        let sources = self.sources();
        let Some(source) = sources.get(source) else {
            let has = format!("the rings have {} (adopted and simulated rings have none)", sources.len());
            return Err(Error::new(ErrorKind::InvalidInput, format!("there is no source {source}: {has}")));
        };
        if let Some(text) = source.recorded_format() {
            return text.parse();
        }
        if self.are_complete() && source.tracepoint_id().is_some() {
            let cure = "the recording does not bring it, and that of this machine (Format::read) may be another";
            return Err(no_format(source.name(), cure));
        }
        match (source.tracepoint(), source.tracepoint_id()) {
            (Some(name), _) => Format::read(name),
            (None, Some(number)) => Format::of_number(number),
            (None, None) => match returns(source) {
                Some(returns) => Format::of_probe(source.name(), returns),
                None => {
                    let cure = "a program's output is laid out as the program has it: see Record::payload_as";
                    Err(no_format(source.name(), cure))
                }
            },
        }
    }
}

/// For a probe, whether it is a return probe.
fn returns(source: &Source) -> Option<bool> {
    let attr = &source.attr;
    let unit =
        ["kprobe", "uprobe"].into_iter().find(|unit| pmu::number(unit).is_ok_and(|number| number == attr.type_))?;
    Some(pmu::flag(unit, "retprobe").is_ok_and(|flag| attr.config & flag != 0))
}

fn at(path: &Path, errno: &io::Error) -> io::Error {
    io::Error::new(errno.kind(), format!("{}: {errno}", path.display()))
}

fn refused(name: &str, errno: io::Error) -> Error {
    let hint = hint::tracefs(&errno);
    Error::tracepoint(name, errno, hint)
}

fn none(name: &str, tracefs: &Path) -> Error {
    Error::no_tracepoint(name, format!("see {}", tracefs.join("available_events").display()))
}

fn no_format(event: &str, cure: &'static str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} has no format", short(event))).hinting(cure).about(event)
}
