//! The texts of formats: from tracefs, from a recording, and for probes from the kernel's documentation.

use crate::error::short;
use crate::names::{file, none, refused, tracefs_for};
use crate::tracefs::Tracefs;
use crate::{pmu, tracepoint};
use perfweave::{Error, ErrorKind, Rings, Source};

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

/// The text of a probe's format, which tracefs does not have.
fn of_probe(returns: bool) -> String {
    let own = if returns { RETURN } else { PROBE };
    format!("name: probe\nID: 0\nformat:\n{COMMON}{own}")
}

/// The text of the tracepoint with a number. Searches all tracepoints, of which there are thousands.
fn of_number(number: u64) -> Result<String, Error> {
    let name = format!("of number {number}");
    match tracepoint::of_number(number).map_err(|errno| refused(&name, errno))? {
        Some(name) => format_of(&name),
        None => Err(none(&Tracefs::find().map_err(|errno| refused(&name, errno))?, &name)),
    }
}

/// The text of a source's format, as the file `format` of tracefs has it, by the number that
/// [`Record::source`](perfweave::Record::source) gives. It names the fields of a payload; [`Format::of`](crate::Format::of)
/// parses it. It reads tracefs, so call it before reading. For a tracepoint that was given by number it searches all
/// tracepoints.
///
/// A recording contains its formats, those of the machine that was recorded.
///
/// Probes have the fields `__probe_ip`, or, for return probes, `__probe_func` and `__probe_ret_ip`, after the fields
/// that are common to all tracepoints.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a number that is not an index of [`Rings::sources`]; [`ErrorKind::NotFound`] for BPF
/// output, for events that are neither tracepoints nor probes, and for a recording without the format; and the errors
/// of [`format_of`].
pub fn format(rings: &Rings, source: usize) -> Result<String, Error> {
    let sources = rings.sources();
    let Some(source) = sources.get(source) else {
        let has = format!("the rings have {} (adopted and simulated rings have none)", sources.len());
        return Err(Error::new(ErrorKind::InvalidInput, format!("there is no source {source}: {has}")));
    };
    match source.format() {
        Some(text) => Ok(text.to_owned()),
        None if rings.are_from_elsewhere() && source.tracepoint_id().is_some() => {
            let cure = "the recording does not bring it, and that of this machine may be another";
            Err(no_format(source.name(), cure))
        }
        None => of(source),
    }
}

/// The text of the format of a tracepoint of this machine, `category:name`, from tracefs, wherever that is mounted.
///
/// # Errors
/// [`ErrorKind::NotFound`] for a name that tracefs does not have; [`ErrorKind::Permission`] if tracefs cannot be read,
/// and [`ErrorKind::System`] if it is not mounted; [`ErrorKind::InvalidInput`] for a name without category.
pub fn format_of(name: &str) -> Result<String, Error> {
    file(&tracefs_for(name)?, name, "format")
}

/// The same of a source of this machine.
fn of(source: &Source) -> Result<String, Error> {
    match (source.tracepoint(), source.tracepoint_id()) {
        (Some(name), _) => format_of(name),
        (None, Some(number)) => of_number(number),
        (None, None) => returns(source).map(of_probe).ok_or_else(|| {
            let cure = "a program's output is laid out as the program has it";
            no_format(source.name(), cure)
        }),
    }
}

/// For a probe, whether it is a return probe.
fn returns(source: &Source) -> Option<bool> {
    let attr = source.attr();
    let unit =
        ["kprobe", "uprobe"].into_iter().find(|unit| pmu::number(unit).is_ok_and(|number| number == attr.type_))?;
    Some(pmu::flag(unit, "retprobe").is_ok_and(|flag| attr.config & flag != 0))
}

fn no_format(event: &str, cure: &'static str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} has no format", short(event))).hinting(cure).about(event)
}

#[cfg(test)]
mod tests {
    use super::of_probe;
    use crate::Format;

    #[test]
    fn formats_of_probes_are_formats() {
        for (returns, own) in [(false, "__probe_ip"), (true, "__probe_ret_ip")] {
            let format: Format = of_probe(returns).parse().unwrap();
            assert_eq!(format.field("common_pid").unwrap().offset(), 4);
            assert!(format.field(own).is_ok() && format.prints_as_the_kernel());
        }
    }
}
