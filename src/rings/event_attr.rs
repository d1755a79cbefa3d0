//! Attributes of events (`struct perf_event_attr`): how they are made and checked.

use crate::error::{Error, ErrorKind};
use crate::record::kind_text;
use crate::sys::machine;
use crate::sys::wakeup::Wakeup;
use perf_event_open_sys::bindings::{self, perf_event_attr};

/// The dynamic PMUs, whose attributes point to a name.
const PROBES: [&str; 2] = ["uprobe", "kprobe"];

/// The output of BPF programs.
pub(super) fn output() -> perf_event_attr {
    let config = bindings::PERF_COUNT_SW_BPF_OUTPUT.into();
    let mut attr = perf_event_attr { type_: bindings::PERF_TYPE_SOFTWARE, config, ..Default::default() };
    attr.sample_period = 1;
    attr.sample_type = bindings::PERF_SAMPLE_RAW.into();
    attr
}

/// An event that never happens (`PERF_COUNT_SW_DUMMY`).
fn dummy() -> perf_event_attr {
    let config = bindings::PERF_COUNT_SW_DUMMY.into();
    perf_event_attr { type_: bindings::PERF_TYPE_SOFTWARE, config, ..Default::default() }
}

/// An event that never happens, in user space. Nearly every process may open one for itself.
pub(super) fn harmless() -> perf_event_attr {
    let mut attr = dummy();
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr
}

pub(super) fn set_wakeup(attr: &mut perf_event_attr, wakeup: Wakeup) {
    match wakeup {
        Wakeup::Bytes(bytes) => {
            attr.set_watermark(1);
            attr.wakeup_watermark = bytes;
        }
        Wakeup::Events(events) => {
            attr.set_watermark(0);
            attr.wakeup_events = events;
        }
    }
}

/// The attribute of an event that writes records of these kinds, and no samples.
pub(super) fn records(kinds: &[u32]) -> Result<perf_event_attr, Error> {
    let refused = |kind: &str| {
        let message = format!("records {kind} are no records that can be asked for");
        Error::new(ErrorKind::InvalidInput, message)
    };
    let mut attr = dummy();
    for &kind in kinds {
        match kind {
            bindings::PERF_RECORD_MMAP => attr.set_mmap(1),
            bindings::PERF_RECORD_MMAP2 => {
                attr.set_mmap(1);
                attr.set_mmap2(1);
            }
            bindings::PERF_RECORD_COMM => {
                attr.set_comm(1);
                attr.set_comm_exec(1);
            }
            bindings::PERF_RECORD_FORK | bindings::PERF_RECORD_EXIT => attr.set_task(1),
            bindings::PERF_RECORD_SWITCH | bindings::PERF_RECORD_SWITCH_CPU_WIDE => attr.set_context_switch(1),
            bindings::PERF_RECORD_NAMESPACES => attr.set_namespaces(1),
            bindings::PERF_RECORD_CGROUP => attr.set_cgroup(1),
            bindings::PERF_RECORD_KSYMBOL => attr.set_ksymbol(1),
            bindings::PERF_RECORD_BPF_EVENT => attr.set_bpf_event(1),
            bindings::PERF_RECORD_TEXT_POKE => attr.set_text_poke(1),
            other => return Err(refused(&kind_text(other))),
        }
    }
    if has_records(&attr) { Ok(attr) } else { Err(refused("of no kind")) }
}

/// Checks that an attribute points to nothing but a target, and that its event writes something, and on its own CPU.
pub(super) fn check(name: &str, attr: &perf_event_attr, has_target: bool) -> Result<(), Error> {
    if attr.type_ >= bindings::PERF_TYPE_MAX
        && attr.config1 != 0
        && !has_target
        && let Some(unit) = PROBES.into_iter().find(|unit| machine::may_be_unit(unit, attr.type_))
    {
        let message = format!(
            "{name} is one of the PMU {unit}'s, or cannot be told from them, and its attribute points to a name: name \
             the probe's function instead of giving its attribute"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message).about(name));
    }
    if attr.inherit_stat() != 0 {
        return Err(writes_elsewhere(name));
    }
    if is_silent(attr) { Err(silent(name)) } else { Ok(()) }
}

/// An event whose inherited copies write a record when their thread ends, on whatever CPU that is, into the ring of the
/// copy's CPU (`sync_child_event`, kernel/events/core.c). Two CPUs that write into one ring overwrite each other's
/// records. Nor is the time of this record drawn inside a section that a grace period waits for.
fn writes_elsewhere(event: &str) -> Error {
    let message = format!(
        "{event} asks for inherit_stat: a thread that ends would write PERF_RECORD_READ into the ring of another CPU, \
         over records of that CPU's own"
    );
    let hint = "leave inherit_stat 0; PERF_SAMPLE_READ gives the counts with each sample";
    Error::new(ErrorKind::Unsupported, message).hinting(hint).about(event)
}

/// An event would never write a record: it counts without sampling, or counts nothing.
fn silent(event: &str) -> Error {
    let message = format!(
        "{event} would never write anything: give it a sample_period or sample_freq, of anything but \
         PERF_COUNT_SW_DUMMY, or have it record mmap, mmap_data, comm, task, context_switch, namespaces, cgroup, \
         ksymbol, bpf_event or text_poke"
    );
    Error::new(ErrorKind::InvalidInput, message).about(event)
}

/// Whether the kernel writes records of its own for an event, besides samples.
pub(super) fn has_records(attr: &perf_event_attr) -> bool {
    // The flags that the kernel counts (`account_event`, kernel/events/core.c). Others only add to these, such as mmap2
    // to mmap.
    let tells = attr.mmap() | attr.mmap_data() | attr.comm() | attr.task() | attr.context_switch() | attr.namespaces();
    tells | attr.cgroup() | attr.ksymbol() | attr.bpf_event() | attr.text_poke() != 0
}

fn is_software(attr: &perf_event_attr, config: u32) -> bool {
    (attr.type_, attr.config) == (bindings::PERF_TYPE_SOFTWARE, config.into())
}

/// Whether an event is the output of BPF programs.
pub(super) fn is_output(attr: &perf_event_attr) -> bool {
    is_software(attr, bindings::PERF_COUNT_SW_BPF_OUTPUT)
}

/// Whether only BPF programs write through an event. The kernel may write other records by itself.
pub(super) fn is_bpf_output(attr: &perf_event_attr) -> bool {
    is_output(attr) && !has_records(attr)
}

/// Whether an event never writes a record.
fn is_silent(attr: &perf_event_attr) -> bool {
    let samples = attr.sample_period != 0 && !is_software(attr, bindings::PERF_COUNT_SW_DUMMY);
    !has_records(attr) && !samples && !is_output(attr)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_record_is_one_by_itself_and_beside_others() {
        let kinds: [fn(&mut perf_event_attr, u64); 10] = [
            perf_event_attr::set_mmap,
            perf_event_attr::set_mmap_data,
            perf_event_attr::set_comm,
            perf_event_attr::set_task,
            perf_event_attr::set_context_switch,
            perf_event_attr::set_namespaces,
            perf_event_attr::set_cgroup,
            perf_event_attr::set_ksymbol,
            perf_event_attr::set_bpf_event,
            perf_event_attr::set_text_poke,
        ];
        assert!(!has_records(&perf_event_attr::default()));
        for (first, second) in kinds.iter().flat_map(|first| kinds.iter().map(move |second| (first, second))) {
            let mut attr = perf_event_attr::default();
            first(&mut attr, 1);
            second(&mut attr, 1);
            assert!(has_records(&attr), "{attr:?}");
        }
    }
}
