//! Live records against the kernel's other sources: tracefs, `/proc` and its own text.

use crate::reading;
use perf_event_open_sys::bindings as sys;
use perfweave::{Item, Order, Reader, Record, Rings};
use perfweave_events::{EventOptions, Format, Tracefs};
use perfweave_support::load::{self, Load};
use perfweave_support::{assert_error, echo, foreign, kernel, lacks, probe, threads, tracefs};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use zerocopy::FromBytes;

/// All records written so far; `None` if some were lost, so that a test tries again when the machine is quieter.
fn records(reader: &mut Reader, mut each: impl FnMut(Record<'_>)) -> Option<()> {
    let mut lost = false;
    reading::all(reader, |event| match event.item() {
        Item::Record(record) => each(record),
        Item::Lost(_) => lost = true,
        other => panic!("{other:?}"),
    });
    (!lost).then_some(())
}

fn this_thread() -> i64 {
    nix::unistd::gettid().as_raw().into()
}

/// Sleeps until another thread has run: the kernel switches away and back.
fn switch_away() {
    let (ask, asked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            asked.recv().unwrap();
            tell.send(()).unwrap();
        });
        let sleeper = threads::own();
        // The helper runs only when this thread sleeps.
        scope.spawn(move || {
            threads::until_asleep(sleeper);
            ask.send(()).unwrap();
        });
        told.recv().unwrap();
    });
}

/// The names in a `print fmt` that only the kernel's source has, as far as words tell: no field, no type, no macro.
fn of_the_source(print: &str) -> Vec<String> {
    const KNOWN: [&str; 4] = ["sizeof", "true", "false", "NULL"];
    const TYPES: [&str; 8] = ["unsigned", "signed", "int", "long", "short", "char", "void", "const"];
    // Without what is in quotes; a quote in there has a backslash.
    let print = print.replace("\\\"", "");
    let code: String = print.split('"').skip(2).step_by(2).collect::<Vec<_>>().join(" ");
    let mut names = Vec::new();
    let mut last = "";
    for word in code.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let name = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name != "REC";
        let is_macro = ["__print_", "__get_", "__builtin_expect"].iter().any(|begin| name.starts_with(begin));
        let is_field = last.ends_with('>') || last == "struct ";
        if is_name && !is_macro && !is_field && !KNOWN.contains(&name) && !TYPES.contains(&name) {
            names.push(name.to_owned());
        }
        last = word;
    }
    names
}

/// Every format of this kernel is parsed: with all its fields, each at its offset. Its line is the kernel's, but for
/// two reasons: names that only the kernel's source has, and C's statements. These are few, and listed.
#[test]
fn every_format_of_this_kernel_is_understood() {
    let Some(root) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let list = fs::read_to_string(root.join("available_events"));
    let Some(list) = kernel("list tracepoints", list) else { return };
    let (mut formats, mut otherwise) = (0, Vec::new());
    for name in list.lines() {
        let path = root.join("events").join(name.replace(':', "/")).join("format");
        // Events of ftrace itself have none, and others may disappear.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let format: Format = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        let listed: Vec<_> = text.lines().filter(|line| line.contains("field:")).collect();
        assert_eq!(format.fields().len(), listed.len(), "{name}");
        for (field, line) in format.fields().iter().zip(listed) {
            let place = format!(
                "\toffset:{};\tsize:{};\tsigned:{};",
                field.offset(),
                field.size(),
                u8::from(field.is_signed())
            );
            assert!(line.contains(&place) && line.contains(field.name()), "{name}: {line}: {field:?}");
        }
        formats += 1;
        if format.prints_as_the_kernel() {
            continue;
        }
        let (_, print) = text.split_once("print fmt:").unwrap();
        let reason = if print.contains("({") { "statements".into() } else { of_the_source(print).join(" ") };
        assert!(!reason.is_empty(), "{name}: {print}");
        otherwise.push(format!("{name}: {reason}"));
    }
    println!("{formats} formats. These are not printed as the kernel does: {otherwise:#?}");
    // 87 of 2,323 on Linux 6.18, most for enums that a kernel does not export. One that exports fewer has more.
    assert!(formats > 0 && otherwise.len() <= formats / 10, "{} of {formats}", otherwise.len());
}

/// Fields by name equal the values at hand-written offsets, and this thread's name.
#[test]
fn fields_by_name_are_what_the_kernel_wrote() {
    let offsets = tracefs::Format::of(perfweave_events::format_of("sched:sched_switch"));
    let Some(offsets) = kernel("read a format", offsets) else { return };
    let at = |field| offsets.offset(field).unwrap();
    let (pid_at, comm_at, prio_at, state_at) = (at("next_pid"), at("next_comm"), at("next_prio"), at("prev_state"));
    let options = Rings::options().tracepoint("sched:sched_switch").tracepoint("sched:sched_waking").bytes(4 << 20);
    let Some(rings) = kernel("open a tracepoint", options.open()) else { return };
    let format = Format::of(&rings, 0).unwrap();
    assert_eq!((format.name(), format.id()), ("sched_switch", offsets.id.into()));
    assert_eq!(Format::of(&rings, 1).unwrap().name(), "sched_waking");
    let [kind, common_pid, next, comm, prio, state] =
        ["common_type", "common_pid", "next_pid", "next_comm", "next_prio", "prev_state"]
            .map(|name| format.field(name).unwrap());
    let own = fs::read_to_string("/proc/thread-self/comm").unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut ours = 0;
    threads::until("this thread was switched to", || {
        switch_away();
        records(&mut reader, |record| {
            if record.source() != Some(0) {
                return;
            }
            let payload = record.payload().unwrap();
            assert_eq!(kind.uint(&record), Some(offsets.id.into()));
            assert_eq!(next.uint(&record), payload.u32(pid_at).map(u64::from));
            assert_eq!(prio.int(&record), payload.u32(prio_at).map(|prio| i64::from(prio as i32)));
            assert_eq!(state.uint(&record), payload.u64(state_at));
            assert_eq!(comm.bytes(&record), payload.get(comm_at..comm_at + 16));
            assert!(common_pid.int(&record).is_some_and(|pid| pid >= 0));
            assert_eq!(comm.int(&record), None, "a string is no number");
            assert_eq!(next.text(&record), None, "a number is no string");
            if next.int(&record) == Some(this_thread()) {
                assert_eq!(comm.text(&record).unwrap(), own.trim());
                ours += 1;
            }
        });
        ours > 0
    });

    let error = format.field("next_comn").unwrap_err();
    assert_error!(error, NotFound, "has no field next_comn");
    assert!(
        error
            .to_string()
            .contains("sched_switch has no field next_comn (did you mean next_comm? There are common_type, "),
        "{error}"
    );
}

/// A string after the fields, where `__data_loc` points.
#[test]
fn dynamic_strings_are_read() {
    let Some(_) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let options = Rings::options().tracepoint("sched:sched_process_exec").bytes(1 << 20);
    let Some(rings) = kernel("open a tracepoint", options.open()) else { return };
    let format = Format::of(&rings, 0).unwrap();
    let (file, pid) = (format.field("filename").unwrap(), format.field("pid").unwrap());
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut child = Command::new("/bin/true").spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let child = i64::from(child.id());
    let mut found = Vec::new();
    records(&mut reader, |record| {
        if pid.int(&record) == Some(child) {
            found.push((file.text(&record).unwrap().into_owned(), format.line(&record).unwrap()));
        }
    });
    assert_eq!(found, [("/bin/true".to_owned(), format!("filename=/bin/true pid={child} old_pid={child}"))]);
}

/// A private instance of tracefs, gone when dropped.
struct Instance {
    path: PathBuf,
    /// The path may end with it.
    _tracefs: Tracefs,
}

impl Instance {
    fn new(name: &str) -> io::Result<Self> {
        let tracefs = perfweave_events::tracefs()?;
        let path = tracefs.join("instances").join(format!("perfweave-{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path, _tracefs: tracefs })
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value).map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        fs::remove_dir(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
    }
}

/// What this thread did, as lines of the kernel and of this crate: strings, flags, symbolic values, arrays,
/// hexadecimal.
#[test]
fn lines_are_the_kernels_own() {
    const EVENTS: [&str; 8] = [
        "sched:sched_switch",
        "sched:sched_wakeup_new",
        "sched:sched_process_fork",
        "task:task_newtask",
        "task:task_rename",
        "signal:signal_generate",
        "raw_syscalls:sys_enter",
        "raw_syscalls:sys_exit",
    ];
    let Some(instance) = kernel("make an instance of tracefs", Instance::new("lines")) else { return };
    instance.set("tracing_on", "0").unwrap();
    instance.set("trace_clock", "mono").unwrap();
    for event in EVENTS {
        let folder = format!("events/{}", event.replace(':', "/"));
        instance.set(&format!("{folder}/filter"), &format!("common_pid == {}", this_thread())).unwrap();
        instance.set(&format!("{folder}/enable"), "1").unwrap();
    }
    let options = EVENTS.into_iter().fold(Rings::options().bytes(8 << 20), |options, event| options.tracepoint(event));
    let Some(rings) = kernel("open tracepoints", options.open()) else { return };
    let formats: Vec<Format> = (0..EVENTS.len()).map(|source| Format::of(&rings, source).unwrap()).collect();
    assert!(formats.iter().all(Format::prints_as_the_kernel));
    let pid = formats[0].field("common_pid").unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    // Other programs may write more than fits.
    threads::until("the kernel's lines and ours are the same", || {
        let (times, theirs) = act(&instance);
        let mut ours = Vec::new();
        records(&mut reader, |record| {
            let format = &formats[record.source().unwrap()];
            if pid.int(&record) == Some(this_thread()) && times.contains(&record.time().unwrap()) {
                ours.push(format!("{}: {}", format.name(), format.line(&record).unwrap()));
            }
        });
        // After the call that turns the instance on, and before the call that turns it off.
        let same = ours.len() > EVENTS.len() && theirs.windows(ours.len()).any(|part| part == ours);
        let all = formats.iter().all(|format| ours.iter().any(|line| line.starts_with(format.name())));
        if !same || !all {
            println!("ours: {ours:#?}\ntheirs: {theirs:#?}");
        }
        same && all
    });
}

/// Causes an event of each kind. Gives the first and last time, and the lines that the kernel printed.
fn act(instance: &Instance) -> (std::ops::Range<u64>, Vec<String>) {
    let now = || perfweave::Clock::Monotonic.now().unwrap();
    instance.set("trace", "").unwrap();
    instance.set("tracing_on", "1").unwrap();
    let begin = now();
    fs::write("/proc/thread-self/comm", "dec ode").unwrap();
    switch_away();
    // Ignored by default.
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGURG).unwrap();
    load::getpgid();
    let end = now();
    instance.set("tracing_on", "0").unwrap();
    let text = fs::read_to_string(instance.path.join("trace")).unwrap();
    // "  name-12345   [001] d..2.  1234.567890: sched_switch: prev_comm=..."
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    (begin..end, lines.map(|line| line.split_once(": ").unwrap().1.to_owned()).collect())
}

fn bits(bits: &[u32]) -> u64 {
    bits.iter().map(|bit| u64::from(*bit)).sum()
}

/// Registers that each architecture has, by their numbers in `asm/perf_regs.h`: the instruction pointer and the stack
/// pointer.
const REGISTERS: [u64; 2] = if cfg!(target_arch = "aarch64") { [32, 31] } else { [8, 7] };

/// Samples of a clock with every field that software events can have, next to an event with fewer fields. Accessors and
/// fields agree, and the fields fill the record to its last byte.
#[test]
fn samples_of_time_say_where_they_were_taken() {
    let [ip, sp] = REGISTERS;
    let mut clock = foreign::software(sys::PERF_COUNT_SW_CPU_CLOCK, 10_000_000);
    let all = [
        sys::PERF_SAMPLE_IP,
        sys::PERF_SAMPLE_TID,
        sys::PERF_SAMPLE_ADDR,
        sys::PERF_SAMPLE_CPU,
        sys::PERF_SAMPLE_PERIOD,
        sys::PERF_SAMPLE_READ,
        sys::PERF_SAMPLE_CALLCHAIN,
        sys::PERF_SAMPLE_REGS_USER,
        sys::PERF_SAMPLE_STACK_USER,
        sys::PERF_SAMPLE_WEIGHT,
        sys::PERF_SAMPLE_DATA_SRC,
        sys::PERF_SAMPLE_TRANSACTION,
        sys::PERF_SAMPLE_REGS_INTR,
        sys::PERF_SAMPLE_PHYS_ADDR,
        sys::PERF_SAMPLE_CGROUP,
        sys::PERF_SAMPLE_DATA_PAGE_SIZE,
        sys::PERF_SAMPLE_CODE_PAGE_SIZE,
    ];
    clock.read_format = u64::from(sys::PERF_FORMAT_ID | sys::PERF_FORMAT_TOTAL_TIME_ENABLED);
    (clock.sample_regs_user, clock.sample_regs_intr) = (1 << ip | 1 << sp, 1 << ip);
    clock.sample_stack_user = 256;
    let plain = foreign::software(sys::PERF_COUNT_SW_CPU_CLOCK, 30_000_000);
    let cpu = load::online()[0];
    let mut open = |asked: &[u32]| {
        clock.sample_type = bits(asked);
        Rings::options().event(&plain).event(&clock).cpus([cpu]).bytes(1 << 20).open()
    };
    // The last three need Linux 5.11 and CONFIG_CGROUP_PERF.
    let (rings, last) = match open(&all) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            lacks("samples with control groups and sizes of pages, so that others were looked at");
            (open(&all[..14]), all[13])
        }
        rings => (rings, all[16]),
    };
    let Some(rings) = kernel("sample time", rings) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    // A program's own code, on the same CPU.
    let load = Load::on(&[cpu], |_| {
        for number in 0..1000 {
            std::hint::black_box(probe::probed(number));
        }
    });
    let process = std::process::id();
    let (mut ours, mut of_sources) = (0, [0; 2]);
    threads::until("this program is sampled in its own code", || {
        records(&mut reader, |record| {
            assert_eq!(record.kind(), sys::PERF_RECORD_SAMPLE);
            of_sources[record.source().unwrap()] += 1;
            agree(&record, cpu);
            let last = record.field(last).unwrap();
            assert_eq!(end_of(&record, last), record.as_bytes().len(), "nothing is left");
            let mode = u32::from(record.misc()) & sys::PERF_RECORD_MISC_CPUMODE_MASK;
            if record.pid_tid().is_some_and(|(pid, _)| pid == process) && mode == sys::PERF_RECORD_MISC_USER {
                check_own_code(&record);
                ours += 1;
            }
        });
        ours >= 10 && of_sources.iter().all(|samples| *samples > 0)
    });
    load.end();
}

/// Where a field ends in its record, by its address.
fn end_of(record: &Record<'_>, field: perfweave::Bytes<'_>) -> usize {
    let whole = record.as_bytes().as_slices();
    let (head, tail) = field.as_slices();
    let last = if tail.is_empty() { head } else { tail }.as_ptr_range().end;
    let behind =
        |run: &[u8]| run.as_ptr_range().contains(&last.wrapping_sub(1)).then(|| last as usize - run.as_ptr() as usize);
    behind(whole.0).or_else(|| Some(whole.0.len() + behind(whole.1)?)).unwrap()
}

fn agree(record: &Record<'_>, cpu: u32) {
    let word = |bit: u32| record.field(bit).unwrap().u64(0);
    assert_eq!([word(sys::PERF_SAMPLE_IP), word(sys::PERF_SAMPLE_ADDR)], [record.ip(), record.addr()]);
    assert_eq!([word(sys::PERF_SAMPLE_PERIOD), word(sys::PERF_SAMPLE_TIME)], [record.period(), record.time()]);
    assert_eq!(record.field(sys::PERF_SAMPLE_CPU).unwrap().u32(0), Some(cpu));
    let halves = record.field(sys::PERF_SAMPLE_TID).unwrap();
    assert_eq!(halves.u32(0).zip(halves.u32(4)), record.pid_tid());
    let chain: Vec<_> = record.callchain().unwrap().collect();
    let field = record.field(sys::PERF_SAMPLE_CALLCHAIN).unwrap();
    assert_eq!((0..chain.len()).map(|at| field.u64(8 + 8 * at).unwrap()).collect::<Vec<_>>(), chain);
    // The first word of a call chain is a marker; an address belongs to a mapping.
    let markers = [sys::PERF_CONTEXT_KERNEL, sys::PERF_CONTEXT_USER];
    assert!(chain.first().is_none_or(|first| markers.contains(first)), "{chain:x?}");
    // Value, time and id.
    assert_eq!(record.field(sys::PERF_SAMPLE_READ).unwrap().u64(16), record.id());
    assert!(record.field(sys::PERF_SAMPLE_CGROUP).is_none_or(|group| group.u64(0).unwrap() > 0));
    let raw = record.field(sys::PERF_SAMPLE_RAW).map(|raw| raw.len() - 4);
    assert_eq!(raw, record.payload().map(|payload| payload.len()));
}

/// A sample of this program's own code.
fn check_own_code(record: &Record<'_>) {
    // Behind a word with the kind of the registers: those that were asked for, by rising numbers.
    let [user, interrupt] =
        [sys::PERF_SAMPLE_REGS_USER, sys::PERF_SAMPLE_REGS_INTR].map(|bit| record.field(bit).unwrap());
    let [ip, sp] = REGISTERS;
    let [ip_at, sp_at] = if ip < sp { [8, 16] } else { [16, 8] };
    assert_eq!((user.len(), user.u64(ip_at)), (24, record.ip()), "interrupted where it was sampled");
    assert_eq!((interrupt.len(), interrupt.u64(8)), (16, record.ip()));
    // The stack between two words: how many bytes there are, and how many are valid.
    let stack = record.field(sys::PERF_SAMPLE_STACK_USER).unwrap();
    let used = stack.u64(stack.len() - 8).unwrap();
    assert!(
        stack.len() == 256 + 16 && used.is_multiple_of(8) && used <= 256 && user.u64(sp_at).unwrap() > 0,
        "{stack:?}"
    );
    let chain: Vec<_> =
        record.callchain().unwrap().skip_while(|word| *word != sys::PERF_CONTEXT_USER).take(2).collect();
    assert_eq!(chain, [sys::PERF_CONTEXT_USER, record.ip().unwrap()]);
    let page = record.field(sys::PERF_SAMPLE_CODE_PAGE_SIZE).and_then(|page| page.u64(0));
    assert_eq!(page.filter(|size| *size > 0).map(u64::count_ones).unwrap_or(1), 1);
}

/// Whether a path that is filled up with zeros, and what all records have at their end, ends with a name.
fn ends_with(path: &[u8], name: &[u8]) -> bool {
    path.split(|byte| *byte == 0).next().is_some_and(|path| path.ends_with(name))
}

/// The kernel's records of a child: it is forked, maps its file, gets a name, is switched to and away from, and exits.
#[test]
fn a_childs_life_is_told() {
    let mut attr = foreign::software(sys::PERF_COUNT_SW_DUMMY, 0);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_context_switch(1);
    attr.sample_type = sys::PERF_SAMPLE_TID.into();
    let Some(rings) = kernel("open a dummy event", Rings::options().event(&attr).bytes(4 << 20).open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    // If all tools are one file (busybox), the mapping has that file's name.
    let path = fs::canonicalize("/bin/true").unwrap();
    let (file, name) = (fs::metadata(&path).unwrap(), path.file_name().unwrap().as_encoded_bytes());
    // Other programs may write more than fits.
    threads::until("all of a child's life is told", || {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        assert!(child.wait().unwrap().success());
        let child = child.id();
        let mut life = Vec::new();
        records(&mut reader, |record| {
            let (body, switched) = (record.body(), record.pid_tid() == Some((child, child)));
            let half = |at| body.u32(at).unwrap();
            let misc = |bit: u32| u32::from(record.misc()) & bit != 0;
            let is_its = half(0) == child;
            match record.kind() {
                sys::PERF_RECORD_FORK if is_its => {
                    assert_eq!([half(8), half(4)], [child, std::process::id()]);
                    assert_eq!(i64::from(half(12)), this_thread());
                    life.push("fork");
                }
                sys::PERF_RECORD_COMM if is_its && misc(sys::PERF_RECORD_MISC_COMM_EXEC) => {
                    assert_eq!(body.get(8..13).unwrap(), b"true\0"[..]);
                    life.push("comm");
                }
                // Numbers, addresses, the file's, rights, and its name, filled up with zeros.
                sys::PERF_RECORD_MMAP2 if is_its && ends_with(&body.to_vec()[64..], name) => {
                    assert_eq!(body.u64(40), Some(file.ino()));
                    let length = body.u64(16).unwrap();
                    assert!(length > 0 && length.is_multiple_of(4096), "{record:?}");
                    life.push("map");
                }
                sys::PERF_RECORD_SWITCH_CPU_WIDE if switched => {
                    life.push(if misc(sys::PERF_RECORD_MISC_SWITCH_OUT) { "out" } else { "in" });
                }
                sys::PERF_RECORD_EXIT if is_its => life.push("exit"),
                _ => {}
            }
        });
        let mut told = life.iter();
        // In this order, with any other records in between.
        ["fork", "in", "comm", "map", "exit", "out"].iter().all(|step| told.any(|found| found == step))
    });
}

/// Each source gives the format of its records, or an error with the reason.
#[test]
fn sources_have_formats_or_say_why_not() {
    let Some((map, program)) = echo() else { return };
    let Some(waking) = kernel("read a format", tracefs::Format::of(perfweave_events::format_of("sched:sched_waking")))
    else {
        return;
    };
    let options = Rings::options().bpf_output(&map).tracepoint_id(waking.id.into()).bytes(1 << 20);
    let Some(rings) = kernel("open a tracepoint", options.open()) else { return };
    let error = Format::of(&rings, 0).unwrap_err();
    assert_error!(error, NotFound, "has no format", "laid out as the program has it");
    assert_eq!(Format::of(&rings, 1).unwrap().name(), "sched_waking");
    let error = Format::of(&rings, 2).unwrap_err();
    assert_error!(error, InvalidInput, "there is no source 2: the rings have 2");
    let error = Format::read("sched:no_such_event").unwrap_err();
    assert_error!(error, NotFound, "there is no tracepoint sched:no_such_event", "available_events");
    let error = Format::read("sched_waking").unwrap_err();
    assert_error!(error, InvalidInput, "cannot look up tracepoint sched_waking", "category:name");
    let error = "name: x\nID: 1\nformat:\n\tfield:int;\n".parse::<Format>().unwrap_err();
    assert_error!(error, InvalidInput, "line 4 of the format is not understood", "tracefs");

    /// The output of the program.
    #[derive(FromBytes, Debug, PartialEq)]
    #[repr(C)]
    struct Output {
        low: u32,
        high: u32,
    }
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    assert_eq!(program.run_with(0, &[7 | 9 << 32]).unwrap(), 0);
    let mut outputs = Vec::new();
    records(&mut reader, |record| {
        if record.source() == Some(0) {
            outputs.push(record.payload_as::<Output>().unwrap());
            assert!(record.payload_as::<[Output; 4]>().is_none(), "there are not as many bytes");
        }
    });
    let expected = if cfg!(target_endian = "little") { Output { low: 7, high: 9 } } else { Output { low: 9, high: 7 } };
    assert_eq!(outputs, [expected]);
}

/// Probes have no format in tracefs, and fields that the kernel documents.
#[test]
fn probes_have_the_fields_that_the_kernel_documents() {
    if !fs::exists("/sys/bus/event_source/devices/uprobe").unwrap() {
        return lacks("uprobes, so that none was set");
    }
    let (address, file, offset) = probe::place().unwrap();
    let options = Rings::options().uprobe(&file, offset).uretprobe(file, offset);
    let Some(rings) = kernel("set a probe", options.open()) else { return };
    let formats = [Format::of(&rings, 0).unwrap(), Format::of(&rings, 1).unwrap()];
    let fields =
        ["__probe_ip", "__probe_func"].map(|name| formats.iter().find_map(|format| format.field(name).ok()).unwrap());
    let returned = formats[1].field("__probe_ret_ip").unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    probe::probed(1);
    let mut hits = Vec::new();
    records(&mut reader, |record| {
        let source = record.source().unwrap();
        let pid = formats[source].field("common_pid").unwrap();
        // Other tests of this binary call it too.
        if pid.int(&record) == Some(this_thread()) {
            assert_eq!(fields[source].uint(&record), Some(address));
            hits.push(formats[source].line(&record).unwrap());
            assert!(source == 0 || returned.uint(&record).is_some_and(|address| address > 0));
        }
    });
    assert_eq!(hits.len(), 2);
    assert_eq!(hits[0], format!("({address:x})"));
    assert!(hits[1].starts_with(&format!("({address:x} <- ")), "{hits:?}");
}
