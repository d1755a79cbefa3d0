//! BPF programs of others at the tracepoints of rings.

use crate::reading;
use perfweave::{Order, Reader, Rings};
use perfweave_events::EventOptions;
use perfweave_support::bpf::{Asm, Kind, Program, Reg};
use perfweave_support::{apart, assert_error, kernel, privilege, tracefs};

/// A system call that no other test makes.
const CALL: &str = "syscalls:sys_enter_getresgid";

fn call() {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: three numbers to be written.
    assert_eq!(unsafe { libc::getresgid(&mut real, &mut effective, &mut saved) }, 0);
}

/// A program that returns 0 in this process and 1 in others.
fn taker() -> Option<Program> {
    let mut asm = Asm::new();
    // bpf_get_current_pid_tgid()
    asm.call(14).shr_i(Reg::R0, 32).when(Reg::R0, std::process::id() as i32, |asm| asm.mov_i(Reg::R0, 0).exit());
    asm.mov_i(Reg::R0, 1).exit();
    kernel("load a BPF program", Program::load_as("takes_events", Kind::Tracepoint, &asm))
}

/// The kernel writes no event for which such a program returns 0, and counts none. The rings name the program, as long
/// as it is there.
#[test]
fn a_program_that_takes_events_is_named() {
    // The rings have the children of tests beside it, too.
    apart!();
    let Some(format) = kernel("find a tracepoint", tracefs::Format::of(perfweave_events::format_of(CALL))) else {
        return;
    };
    let Some(program) = taker() else { return };
    let named = Rings::options().tracepoint(CALL).tracepoint("sched:sched_process_exec").pid(std::process::id());
    let Some(rings) = kernel("trace", named.open()) else { return };
    let numbered = Rings::options().tracepoint_id(format.id.into()).event_name("cpu-clock").open().unwrap();
    assert_eq!(rings.foreign_programs().unwrap().len(), 0);
    let attached = program.attach_tracepoint(format.id.into()).unwrap();
    for (rings, event) in [(&rings, format!("tracepoint {CALL}")), (&numbered, format!("tracepoint {}", format.id))] {
        let found = rings.foreign_programs().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_error!(found[0], Degraded, "\"takes_events\"", &event, "returns 0", "bpftool prog show id ");
        assert_eq!(found[0].event(), Some(&*event));
    }
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let calls = |reader: &mut Reader| {
        call();
        let mut seen = 0;
        reading::all(reader, |_| seen += 1);
        (seen, reader.status().total().lost)
    };
    assert_eq!(calls(&mut reader), (0, 0), "taken, and counted by nobody");
    drop(attached);
    assert_eq!(calls(&mut reader), (1, 0));
    assert_eq!(numbered.foreign_programs().unwrap().len(), 0);
}

/// Where there are no tracepoints nobody is asked. Without privileges the kernel does not say.
#[test]
fn who_may_not_ask_is_told_so() {
    apart!();
    let Some(rings) = kernel("trace", Rings::options().tracepoint(CALL).open()) else { return };
    let clock = Rings::options().event_name("cpu-clock").open().unwrap();
    privilege::drop_all().unwrap();
    assert_eq!(clock.foreign_programs().unwrap().len(), 0);
    let error = rings.foreign_programs().unwrap_err();
    assert_error!(error, Permission, "cannot ask for BPF programs at", "CAP_PERFMON");
    assert_eq!(error.event(), Some(&*format!("tracepoint {CALL}")));
}
