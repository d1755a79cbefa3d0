//! Probes on live kernel rings: the crate keeps the names to which their attributes point, and errors name what cannot
//! be probed.

use crate::reading;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use perf_event_open_sys::bindings;
use perfweave::{ErrorKind, Hold, Key, Order, Reader, RingOptions, Rings};
use perfweave_events::EventOptions;
use perfweave_support::probe::probed;
use perfweave_support::{assert_error, foreign, kernel, lacks, load, probe};
use perfweave_symbols::{function, usdt};
use std::ffi::CString;
use std::path::Path;

/// The number of a PMU, if this kernel has it.
fn unit(name: &str) -> std::io::Result<u32> {
    let text = std::fs::read_to_string(Path::new("/sys/bus/event_source/devices").join(name).join("type"))?;
    Ok(text.trim().parse().expect("a number"))
}

/// A record of a probe: its CPU, source, thread, and the words after the common fields.
#[derive(Debug, PartialEq, Eq)]
struct Hit {
    cpu: u32,
    source: usize,
    thread: u32,
    address: u64,
    returned_to: Option<u64>,
}

/// All records written so far.
fn hits(reader: &mut Reader) -> Vec<Hit> {
    let mut hits = Vec::new();
    reading::all(reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        let payload = record.payload().unwrap();
        hits.push(Hit {
            cpu: record.cpu(),
            source: record.source().unwrap_or(0),
            thread: payload.u32(4).unwrap(),
            address: payload.u64(8).unwrap(),
            returned_to: payload.u64(16),
        });
    });
    hits
}

fn this_thread() -> u32 {
    nix::unistd::gettid().as_raw() as u32
}

/// Calls and returns of a function of this program, on each CPU, in order. The name was gone before the probe was set.
#[test]
fn a_function_of_a_program_is_probed_on_every_cpu() {
    let Some(_) = kernel("find the PMU of uprobes", unit("uprobe")) else { return };
    let (address, file, offset) = probe::place().unwrap();
    let options = {
        let file = file.clone();
        Rings::options().uprobe(&file, offset).uretprobe(file, offset)
    };
    let Some(rings) = kernel("set a probe", options.open()) else { return };
    let cpus: Vec<u32> = rings.cpus().collect();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let (mut expected, mut threads) = (Vec::new(), Vec::new());
    for round in 0..20 {
        let cpu = cpus[round * round / 3 % cpus.len()];
        let thread = load::pinned(cpu, || {
            assert_eq!(probed(round as u64), 3 * round as u64);
            this_thread()
        });
        threads.push(thread);
        expected.extend([0, 1].map(|source| (cpu, source, thread, address)));
    }
    // Other tests of this binary call it too.
    let mut hits = hits(&mut reader);
    hits.retain(|hit| threads.contains(&hit.thread));
    let found: Vec<_> = hits.iter().map(|hit| (hit.cpu, hit.source, hit.thread, hit.address)).collect();
    assert_eq!(found, expected);
    // Only returns have a word after the address. Their caller is the same each time.
    let callers: Vec<_> = hits.iter().filter(|hit| hit.source == 1).map(|hit| hit.returned_to.unwrap()).collect();
    assert!(callers.iter().all(|caller| *caller == callers[0] && *caller != address), "{callers:x?}");
    drop(reader);
    probed(1);
}

/// The same by the function's name: of this program, and of the library that has the system calls.
#[test]
fn functions_are_probed_by_name() {
    let Some(_) = kernel("find the PMU of uprobes", unit("uprobe")) else { return };
    let (address, file, _) = probe::place().unwrap();
    let offset = function(&file, probe::SYMBOL).unwrap();
    let name = format!("uretprobe {}:{}", file.display(), probe::SYMBOL);
    let options = Rings::options().uprobe(&file, offset).uretprobe(&file, offset).named(&name);
    let Some(rings) = kernel("set a probe", options.open()) else { return };
    assert_eq!(rings.sources()[1].name(), name);
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    (0..7).for_each(|n| assert_eq!(probed(n), 3 * n));
    let mut ours = hits(&mut reader);
    ours.retain(|hit| hit.thread == this_thread());
    assert_eq!(
        ours.iter().map(|hit| (hit.source, hit.address)).collect::<Vec<_>>(),
        [(0, address), (1, address)].repeat(7)
    );

    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library =
        maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    let Some(library) = library else { return lacks("a C library that is shared") };
    let options = Rings::options().uprobe(library, function(library, "getppid").unwrap());
    let Some(rings) = kernel("set a probe", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    (0..5).for_each(|_| assert!(nix::unistd::getppid().as_raw() >= 0));
    let ours = hits(&mut reader).iter().filter(|hit| hit.thread == this_thread()).count();
    assert_eq!(ours, 5);
}

/// Static probes of this program: each place once, and one that programs pass by while nobody traces it.
#[test]
fn static_probes_are_probed_by_name_at_all_their_places() {
    let Some(_) = kernel("find the PMU of uprobes", unit("uprobe")) else { return };
    let (_, file, _) = probe::place().unwrap();
    assert!(!probe::guarded(), "nobody traces it yet");
    let name = |probe: &str| format!("usdt {}:perfweave:{probe}", file.display());
    let options = ["go", "guarded"].into_iter().fold(Rings::options(), |options, probe| {
        usdt(&file, "perfweave", probe).unwrap().iter().fold(options, |options, place| {
            options.uprobe(&file, place.offset).semaphore(place.semaphore).named(&name(probe))
        })
    });
    let Some(rings) = kernel("set a probe", options.open()) else { return };
    let names: Vec<_> = rings.sources().iter().map(|source| source.name().to_owned()).collect();
    assert_eq!(names, [name("go"), name("go"), name("guarded")]);
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for _ in 0..5 {
        probe::go();
        assert!(probe::guarded(), "the kernel counts who traces it");
    }
    let mut ours = hits(&mut reader);
    ours.retain(|hit| hit.thread == this_thread());
    assert_eq!(ours.iter().map(|hit| hit.source).collect::<Vec<_>>(), [0, 1, 2].repeat(5));
    // Of the two instructions of one byte each, the second comes next.
    assert!(ours.chunks(3).all(|hits| hits[1].address > hits[0].address && hits[0].address == ours[0].address));
    drop(reader);
    // A child that another test starts has a copy of each descriptor until its execve(2).
    perfweave_support::threads::until("nobody traces it any more", || !probe::guarded());
}

/// A process that inherited a probe could start nothing any more. So it is refused, and one thread is probed, which
/// starts others as ever.
#[test]
fn what_a_process_would_inherit_is_refused() {
    let Some(_) = kernel("find the PMU of uprobes", unit("uprobe")) else { return };
    let (_, file, offset) = probe::place().unwrap();
    let options = || Rings::options().uprobe(&file, offset);
    for options in [options().pid(std::process::id()), options().pid_tree(std::process::id())] {
        let error = options.open().unwrap_err();
        assert!(error.to_string().contains("fork(2)") && error.hint().unwrap().contains("thread"), "{error}");
        assert_error!(error, Unsupported, "uprobe");
    }
    let Some(rings) = kernel("set a probe", options().tid(this_thread()).open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    probed(1);
    std::thread::spawn(|| probed(1)).join().unwrap();
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert_eq!(hits(&mut reader).iter().map(|hit| hit.thread).collect::<Vec<_>>(), [this_thread()]);
}

/// The error for a missing static probe suggests the nearest one, or says that there is none.
#[test]
fn a_static_probe_that_is_not_there_is_said_so() {
    let (_, file, _) = probe::place().unwrap();
    let said = |path: &Path, name: &str| {
        let error = usdt(path, "perfweave", name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let said = error.to_string();
        assert!(said.starts_with(&format!("{}: it has no static probe perfweave:{name} (", path.display())), "{said}");
        said
    };
    let nearest = said(&file, "guardet");
    assert!(nearest.contains("did you mean perfweave:guarded?"), "{nearest}");
    let far = said(&file, "no_such_probe_at_all_in_any_program_whatsoever");
    assert!(far.contains("readelf -n") || far.contains("did you mean"), "{far}");
}

/// The error for a missing symbol suggests the nearest one; the error for a bad file names it.
#[test]
fn a_symbol_that_is_not_there_is_said_so() {
    let (_, file, _) = probe::place().unwrap();
    let said = |path: &Path, symbol: &str| {
        let error = function(path, symbol).unwrap_err();
        let (kind, said) = (error.kind(), error.to_string());
        assert!(matches!(kind, ErrorKind::NotFound | ErrorKind::InvalidInput), "{kind:?}: {said}");
        said
    };
    let nearest = said(&file, "perfweave_suport_probed");
    assert!(nearest.contains("did you mean perfweave_support_probed?"), "{nearest}");
    let far = said(&file, "no_such_function_at_all_in_any_program_whatsoever");
    assert!(far.contains("nm(1)") || far.contains("did you mean"), "{far}");
    assert!(said(Path::new("/proc/self/maps"), "main").contains("/proc/self/maps"));
    assert!(said(Path::new("/no/such/file"), "main").contains("/no/such/file"));
}

/// The same for a function of the kernel. If the kernel has no such probes, the error says so.
#[test]
fn a_function_of_the_kernel_is_probed_or_said_not_to_be() {
    let options = || Rings::options().kprobe("vfs_read").kretprobe("vfs_read").pages(64);
    if let Err(errno) = unit("kprobe") {
        assert_eq!(errno.kind(), std::io::ErrorKind::NotFound);
        let error = options().open().unwrap_err();
        let said = error.to_string();
        assert_error!(error, Unsupported, "cannot set a kprobe");
        for named in ["kprobe vfs_read", "devices/kprobe/type", "CONFIG_KPROBE_EVENTS"] {
            assert!(said.contains(named), "{said}: no {named}");
        }
        return lacks("kprobes, so that none was set");
    }
    let Some(rings) = kernel("set a probe", options().open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut byte = [0];
    let file = std::fs::File::open("/dev/zero").unwrap();
    (0..20).for_each(|_| assert_eq!(std::io::Read::read(&mut &file, &mut byte).unwrap(), 1));
    let mut ours = hits(&mut reader);
    ours.retain(|hit| hit.thread == this_thread());
    assert!(ours.len() >= 40, "{ours:?}");
    let first = ours[0].address;
    assert!(first > 1 << 63 && ours.iter().all(|hit| hit.address == first), "{ours:x?}");
    assert!(ours.iter().map(|hit| hit.source).take(40).eq([0, 1].repeat(20)), "{ours:x?}");

    let error = Rings::options().kprobe("no_such_function").open().unwrap_err();
    assert_error!(error, NotFound, "cannot open ", "no function no_such_function");
}

/// The attribute of a probe points to its name, and does not say how long that lives.
#[test]
fn an_attribute_with_a_pointer_is_refused() {
    let (_, file, offset) = probe::place().unwrap();
    let name = CString::new(file.into_os_string().into_encoded_bytes()).unwrap();
    let mut any = false;
    for unit_name in ["uprobe", "kprobe"] {
        let Ok(type_) = unit(unit_name) else { continue };
        let mut attr = bindings::perf_event_attr { type_, ..Default::default() };
        attr.sample_period = 1;
        attr.config1 = name.as_ptr() as u64;
        attr.config2 = offset;
        let error = Rings::options().event(&attr).open().unwrap_err();
        assert_error!(error, InvalidInput, format!("is one of the PMU {unit_name}'s"));
        assert!(error.to_string().contains("name the probe's function"), "{error}");
        any = true;
    }
    // Without sysfs the meaning of the kernel's type numbers is unknown.
    let unknown = std::thread::spawn(move || {
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(none, "/sys/bus", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        let mut attr = foreign::software(0, 1);
        attr.type_ = 77;
        attr.config1 = name.as_ptr() as u64;
        Some(Rings::options().event(&attr).open().unwrap_err())
    });
    if let Some(error) = unknown.join().unwrap() {
        assert!(
            error.kind() == ErrorKind::InvalidInput
                && error.to_string().contains("its attribute points to a name")
                && error.to_string().contains("cannot be told"),
            "{error}"
        );
    }
    let any = if any { Ok(()) } else { Err("this kernel has no PMU of probes") };
    kernel("look at a probe's attribute", any);
}

fn said(options: RingOptions) -> String {
    let error = options.open().unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("cannot open "), "{said}");
    said
}

/// The error for an event that does not exist depends on its kind.
#[test]
fn what_cannot_be_measured_is_named() {
    let clock = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 1 << 30);
    let Some(_) = kernel("open an event", Rings::options().event(&clock).pages(1).open()) else { return };
    let mut unknown = foreign::software(0, 1);
    unknown.type_ = 0x7000_0000;
    let said_of_type = said(Rings::options().event(&unknown));
    assert!(said_of_type.contains("cannot open event 1879048192:0") && said_of_type.contains("no such event"));
    let said_of_number = said(Rings::options().tracepoint_id(1 << 40));
    assert!(said_of_number.contains("no tracepoint of number 1099511627776"), "{said_of_number}");
    assert!(!said_of_number.contains("virtual machines"), "{said_of_number}");
    let said_of_number = said(Rings::options().event(&foreign::software(4321, 1)));
    assert!(!said_of_number.contains("virtual machines"), "{said_of_number}");
    if unit("msr").is_ok() {
        let said = said(Rings::options().event_name("msr/config=0/"));
        assert!(said.contains("the PMU msr") && said.contains("cannot sample"), "{said}");
    }

    let Some(_) = kernel("find the PMU of uprobes", unit("uprobe")) else { return };
    let (_, file, _) = probe::place().unwrap();
    for (path, offset) in [(Path::new("/no/such/file"), 0), (Path::new("/tmp"), 0), (&file, 1 << 40)] {
        let said = said(Rings::options().uprobe(path, offset));
        let named =
            format!("{} must be a file, and an instruction must begin at the offset {offset:#x}", path.display());
        assert!(said.contains(&named), "{said}");
    }
    // An offset at which no instruction begins: in an operand whose bytes the kernel refuses to probe. Then a file that
    // cannot be mapped.
    #[cfg(target_arch = "x86_64")]
    {
        let (file, offset) = probe::operand().unwrap();
        for inside in [2, 6] {
            let said = said(Rings::options().uprobe(&file, offset + inside));
            let named = format!("no instruction begins at the offset {:#x} of {}", offset + inside, file.display());
            assert!(said.contains(&named), "{said}: no {named}");
        }
    }
    let said_of_log = said(Rings::options().uprobe("/proc/version", 0));
    assert!(said_of_log.contains("no instructions can be read from /proc/version"), "{said_of_log}");
    // No path and no function can contain a zero byte.
    let error = Rings::options().uprobe("zero\0", 0).open().unwrap_err();
    assert_error!(error, InvalidInput, "cannot set a uprobe", "nul byte");
}

/// One probe, opened and closed many times with the same name, is hit each time.
#[test]
fn probes_come_and_go() {
    let Some(_) = kernel("find the PMU of uprobes", unit("uprobe")) else { return };
    let (address, file, offset) = probe::place().unwrap();
    for number in 0..10 {
        let rings = Rings::options().uprobe(&file, offset).pages(1).open();
        let Some(rings) = kernel("set a probe", rings) else { return };
        let mut reader = Reader::new(rings, Order::new().key(Key::Time).hold(Hold::None)).unwrap();
        probed(number);
        let hits = hits(&mut reader);
        let ours: Vec<_> = hits.iter().filter(|hit| hit.thread == this_thread()).map(|hit| hit.address).collect();
        assert_eq!(ours, [address]);
    }
}
