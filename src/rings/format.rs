//! The texts of formats: from tracefs, from a recording, and for probes from the kernel's documentation.

use crate::error::{Error, ErrorKind, short};
use crate::rings::Source;
use crate::rings::event_names::{file, none, refused, tracefs_for};
use crate::sys::tracefs::Tracefs;
use crate::sys::{pmu, tracepoint};

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
        Some(name) => of_name(&name),
        None => Err(none(&Tracefs::find().map_err(|errno| refused(&name, errno))?, &name)),
    }
}

/// Where a field of 4 bytes lies in the payload, by the text of its format.
pub(crate) fn place_of(format: &str, field: &str) -> Option<usize> {
    let parts = |line: &str| {
        // `field:pid_t prev_pid;	offset:24;	size:4;	signed:1;`
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let name = parts.next()?.rsplit(' ').next()?;
        let (offset, size) = (parts.next()?.strip_prefix("offset:")?, parts.next()?.strip_prefix("size:")?);
        (name == field && size == "4").then(|| offset.parse().ok())?
    };
    format.lines().find_map(parts)
}

/// [`Rings::format`](crate::Rings::format), of a source of this machine.
pub(super) fn of(source: &Source) -> Result<String, Error> {
    match (source.tracepoint(), source.tracepoint_id()) {
        (Some(name), _) => of_name(name),
        (None, Some(number)) => of_number(number),
        (None, None) => returns(source).map(of_probe).ok_or_else(|| {
            let cure = "a program's output is laid out as the program has it";
            no_format(source.name(), cure)
        }),
    }
}

/// [`Rings::format_of`](crate::Rings::format_of).
pub(super) fn of_name(name: &str) -> Result<String, Error> {
    file(&tracefs_for(name)?, name, "format")
}

/// For a probe, whether it is a return probe.
fn returns(source: &Source) -> Option<bool> {
    let attr = &source.attr;
    let unit =
        ["kprobe", "uprobe"].into_iter().find(|unit| pmu::number(unit).is_ok_and(|number| number == attr.type_))?;
    Some(pmu::flag(unit, "retprobe").is_ok_and(|flag| attr.config & flag != 0))
}

pub(super) fn no_format(event: &str, cure: &'static str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} has no format", short(event))).hinting(cure).about(event)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fields_of_four_bytes_are_found_by_their_whole_name() {
        let own = "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
                   \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\tfield:u64 pid;\toffset:64;\tsize:8;\tsigned:0;\n\
                   \nprint fmt: \"field:pid_t child_pid;\toffset:4;\tsize:4;\", REC->pid\n";
        let text = format!("name: sched_switch\nID: 1\nformat:\n{COMMON}{own}");
        let fields = ["common_pid", "prev_pid", "next_pid", "pid", "common_type", "prev_comm", "child_pid", "none"];
        let places = [Some(4), Some(24), Some(56), None, None, None, None, None];
        assert_eq!(fields.map(|field| place_of(&text, field)), places);
        for (returns, fields) in [(false, "__probe_ip"), (true, "__probe_ret_ip")] {
            assert!(of_probe(returns).contains(fields) && place_of(&of_probe(returns), "common_pid") == Some(4));
        }
    }
}
