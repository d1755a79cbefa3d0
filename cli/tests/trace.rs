//! `perfweave trace` as a person runs it.

mod program;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use perfweave::Clock;
use perfweave_support::privilege;
use program::{Ran, comm, perfweave, run, traced};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// The objects of a JSON trace, without the summary.
fn objects(ran: &Ran) -> Vec<Value> {
    let objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, objects) = objects.split_last().unwrap();
    assert_eq!(summary["summary"]["late"], 0, "{summary}");
    objects.to_vec()
}

#[test]
fn a_command_is_traced_from_its_execve_to_its_end() {
    let Some(ran) = traced(&["trace", "--", "true"]) else { return };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(
        lines[0].contains(" execve(\"")
            && lines[0].contains("\", [\"true\"], 0x")
            && lines[0].contains(" vars */) = 0 <"),
        "{}",
        lines[0]
    );
    assert!(lines[lines.len() - 2].contains("exit_group(0) = ?"), "{lines:#?}");
    assert!(lines[lines.len() - 1].ends_with("+++ exited with 0 +++"), "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains(" true/")), "{lines:#?}");
    // It gives 3 where no other descriptor was left open.
    const OPENS: &str = "openat(AT_FDCWD, \"/etc/ld.so.cache\", O_RDONLY|O_CLOEXEC) = ";
    let opened = ran.out.split_once(OPENS).and_then(|(_, rest)| rest.split_once(" <")?.0.parse::<u8>().ok());
    assert!(opened.is_some_and(|number| number > 2), "{}", ran.out);
    assert!(ran.err.contains("all in proven order; nothing is missing"), "{}", ran.err);
}

/// As strace and perf take it: from the first word that is no option on, all words are the command's own.
#[test]
fn a_command_needs_no_dashes_and_keeps_its_own_options() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let file = std::env::temp_dir().join(format!("perfweave-no-dashes-{}", std::process::id()));
    let record = ["record", "-a", "-o", file.to_str().unwrap()];
    let commands: [&[&str]; 7] = [
        &["trace", "-e", "openat"],
        &["trace", "-a", "-c"],
        &["wakeups", "-n", "3"],
        &["offcpu"],
        &["latency", "-e", "read"],
        &["profile", "-F", "99"],
        &record,
    ];
    for options in commands {
        for dashes in [&[][..], &["--"]] {
            let ran = run(perfweave().args(options).args(dashes).args(["echo", "--json", "-d", "--", "-x"]), "");
            assert!(
                ran.code == Some(0) && ran.out.lines().any(|line| line == "--json -d -- -x"),
                "{options:?} {ran:?}"
            );
            let ran = run(perfweave().args(options).args(dashes).args(["sh", "-c", "exit 7"]), "");
            assert_eq!(ran.code, Some(7), "{options:?} {ran:?}");
        }
        // What begins with a dash and is no option is no command.
        let ran = run(perfweave().args(options).args(["--nosuch", "true"]), "");
        assert_eq!(ran.code, Some(2), "{options:?} {ran:?}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn the_command_has_its_own_input_output_and_status() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let ran = run(
        perfweave().args(["trace", "-c", "-e", "read", "--", "sh", "-c", "read word; echo got $word; exit 7"]),
        "it\n",
    );
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.out.starts_with("got it\n"), "{ran:?}");
    assert!(ran.out.lines().any(|line| line.ends_with("  read")), "{ran:?}");
}

/// Times of each clock lie between what the clock says before and after.
#[test]
fn times_are_those_of_the_clock_that_is_asked_for() {
    let clocks =
        [("monotonic", Clock::Monotonic), ("boot", Clock::Boottime), ("real", Clock::Realtime), ("tai", Clock::Tai)];
    for (name, clock) in clocks {
        let before = clock.now().unwrap();
        let Some(ran) = traced(&["trace", "--json", "--time", name, "--", "true"]) else { return };
        let after = clock.now().unwrap();
        let times = objects(&ran).into_iter().filter_map(|object| object["time"].as_u64()).collect::<Vec<_>>();
        let slack = 1_000_000;
        let within = times.iter().all(|time| (before - slack..after + slack).contains(time));
        assert!(!times.is_empty() && within, "{name}: {before} {times:?} {after}");
        let text = traced(&["trace", "--time", name, "--", "true"]).unwrap();
        assert_eq!(text.err.contains("; times within "), name != "monotonic", "{}", text.err);
        let is_date =
            |line: &str| line.split_whitespace().next().is_some_and(|time| time.contains('T') && time.ends_with('Z'));
        assert_eq!(text.out.lines().all(is_date), name == "real", "{}", text.out);
    }
}

/// In a time namespace, as in some containers, times are those of the machine, and no record is damage.
#[test]
fn a_time_namespace_changes_no_time() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    for (name, clock) in [("monotonic", Clock::Monotonic), ("boot", Clock::Boottime), ("real", Clock::Realtime)] {
        for shifts in [["--monotonic=100000", "--boottime=50000"], ["--monotonic=-1", "--boottime=-1"]] {
            let before = clock.now().unwrap();
            let mut command = Command::new("unshare");
            command.args(["--time", "--fork"]).args(shifts).arg(env!("CARGO_BIN_EXE_perfweave"));
            let ran = run(command.args(["trace", "--json", "--time", name, "--", "true"]), "");
            let after = clock.now().unwrap();
            if perfweave_support::needs("time namespaces", !ran.err.starts_with("unshare:")).is_none() {
                return;
            }
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let times: Vec<_> = objects(&ran).into_iter().filter_map(|object| object["time"].as_u64()).collect();
            let slack = 1_000_000;
            let within = times.iter().all(|time| (before - slack..after + slack).contains(time));
            assert!(!times.is_empty() && within, "{name}: {before} {times:?} {after}");
        }
    }
}

#[test]
fn children_of_a_command_are_traced() {
    let Some(ran) = traced(&["trace", "--json", "-e", "execve", "--", "sh", "-c", "/bin/true; (/bin/true); exit 0"])
    else {
        return;
    };
    let executed: Vec<_> = objects(&ran).into_iter().filter(|object| object["call"] == "execve").collect();
    let names: Vec<_> = executed.iter().map(comm).collect();
    assert_eq!(names, ["sh", "true", "true"], "{ran:?}");
}

/// With `-e`, a thread that made none of the calls has no line, not even at its end.
#[test]
fn the_ends_of_threads_without_a_call_are_not_printed() {
    let file = std::env::temp_dir().join(format!("perfweave-flock-{}", std::process::id()));
    let script = "for i in 1 2 3 4 5; do /bin/true; done; flock \"$0\" /bin/true";
    let command = ["sh", "-c", script, file.to_str().unwrap()];
    for options in [&["-a"][..], &[]] {
        let Some(ran) = traced(&[&["trace", "--json", "-e", "flock"], options, &["--"], &command].concat()) else {
            return;
        };
        let objects = objects(&ran);
        let of = |key: &str| objects.iter().filter(|object| object[key].is_string()).collect::<Vec<_>>();
        let called = of("call").into_iter().map(|object| object["tid"].clone()).collect::<Vec<_>>();
        // Other programs of this machine may lock files as well.
        let ended = of("thread").into_iter().map(|object| object["tid"].clone()).collect::<Vec<_>>();
        assert!(!ended.is_empty() && ended.iter().all(|tid| called.contains(tid)), "{options:?} {ran:?}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Each thread's calls are those that strace sees.
#[test]
fn calls_are_those_that_strace_counts() {
    let Some(()) = perfweave_support::runs(&["strace", "--version"], "Debian's package strace") else { return };
    let command = ["sh", "-c", "ls / > /dev/null; cat /etc/passwd | wc -l > /dev/null; /bin/true"];
    let Some(ran) = traced(&[["trace", "--json", "--"].as_slice(), &command].concat()) else { return };
    let mut ours = BTreeMap::<String, u64>::new();
    for object in objects(&ran) {
        if let Some(call) = object["call"].as_str() {
            *ours.entry(call.to_owned()).or_default() += 1;
        }
    }
    let file = std::env::temp_dir().join(format!("perfweave-strace-{}", std::process::id()));
    let status = Command::new("strace").args(["-f", "-o"]).arg(&file).args(command).status().unwrap();
    assert!(status.success());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut theirs = BTreeMap::<String, u64>::new();
    // A line of a call: `123 openat(...`. Not `<... wait4 resumed>`, `+++ exited`, `--- SIGCHLD`.
    for call in
        text.lines().filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('(').map(|(call, _)| call))
    {
        if call.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_') {
            *theirs.entry(call.to_owned()).or_default() += 1;
        }
    }
    // Under strace the shell waits otherwise, as its children take longer: a signal interrupts more calls.
    for varying in ["wait4", "rt_sigreturn"] {
        ours.remove(varying);
        theirs.remove(varying);
    }
    assert_eq!(ours, theirs);
}

/// Behind a string that goes on.
const CUT: &str = " and more";

/// The strings in a line of strace, without their escapes.
fn unquoted(line: &str) -> Vec<String> {
    let (mut strings, mut bytes) = (Vec::new(), None::<Vec<u8>>);
    let mut rest = line.bytes().peekable();
    while let Some(byte) = rest.next() {
        match (byte, &mut bytes) {
            (b'"', None) => bytes = Some(Vec::new()),
            (b'"', Some(_)) => {
                let more = if rest.peek() == Some(&b'.') { CUT } else { "" };
                let string = String::from_utf8_lossy(&bytes.take().unwrap()).into_owned();
                strings.push(string + more);
            }
            (b'\\', Some(bytes)) => bytes.push(match rest.next().unwrap() {
                b'n' => b'\n',
                b't' => b'\t',
                digit @ b'0'..=b'7' => {
                    let mut value = u32::from(digit - b'0');
                    while let Some(digit) = rest.next_if(|byte| (b'0'..=b'7').contains(byte)) {
                        value = 8 * value + u32::from(digit - b'0');
                    }
                    value as u8
                }
                other => other,
            }),
            (other, Some(bytes)) => bytes.push(other),
            _ => {}
        }
    }
    strings
}

/// Strings and the beginnings of buffers are those that strace prints. What was not in memory is an address.
#[test]
fn strings_are_those_that_strace_prints() {
    let Some(()) = perfweave_support::runs(&["strace", "--version"], "Debian's package strace") else { return };
    let odd = std::env::temp_dir().join(format!("perfweave \"{}\" \\ \n\tö", std::process::id()));
    let (odd, long) = (odd.to_str().unwrap().to_owned(), format!("/{0}/{0}", "x".repeat(150)));
    let script = "cat \"$1\" \"$2\"; { printf 'a\\tb\\001'; printf '%040d' 7; printf dots...; } > /dev/null; exit 0";
    let command = ["sh", "-c", script, "sh", &odd, &long];
    let Some(ran) = traced(&[["trace", "--json", "-e", "openat,write", "--"].as_slice(), &command].concat()) else {
        return;
    };
    let file = std::env::temp_dir().join(format!("perfweave-strings-{}", std::process::id()));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-s", "32", "-e", "trace=openat,write", "-o"]).arg(&file).args(command);
    assert!(strace.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    let theirs = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut theirs: Vec<_> = theirs.lines().flat_map(unquoted).collect();
    let mut ours = Vec::new();
    for object in ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let args = &object["args"];
        for name in ["filename", "buf"] {
            let cut = if object["cut"]["args"][name] == true { CUT } else { "" };
            ours.extend(args[name].as_str().map(|string| string.to_owned() + cut));
        }
    }
    for string in [&odd, &long, "a\tb\u{1}", &format!("{:032}{CUT}", 0), "dots..."] {
        assert!(ours.iter().any(|ours| ours == string), "{string:?} in {}", ran.out);
    }
    for string in ours {
        let at = theirs.iter().position(|theirs| *theirs == string);
        theirs.remove(at.unwrap_or_else(|| panic!("{string:?} is not among {theirs:#?}")));
    }
}

/// A program whose name is no UTF-8: all JSON has its bytes, and text besides.
#[test]
fn names_that_are_no_text_keep_their_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let folder = std::env::temp_dir().join(format!("perfweave-bytes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (odd, recording) = (folder.join(std::ffi::OsStr::from_bytes(b"a\xff\\z")), folder.join("perf.data"));
    std::fs::copy("/bin/true", &odd).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (path, name) = (hex(odd.as_os_str().as_bytes()), hex(b"a\xff\\z"));
    let shell = ["--", "sh", "-c", "\"$0\"; exit 0"];
    let exec = "sched:sched_process_exec";
    let of = |options: &[&str]| run(perfweave().args(options).args(shell).arg(&odd), "");
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    // The key beside which the bytes are, and the event or call that has it.
    let has = |ran: &Ran, what: &str, place: &str, bytes: &str| {
        let objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut its = objects.filter(|object| object["call"] == what || object["event"] == what);
        let found = its.any(|object| {
            let raw = object["raw"].pointer(place).is_some_and(|raw| raw == bytes);
            raw && object.pointer(place).unwrap().as_str().unwrap().contains("a\u{fffd}\\z")
                && object.get("cut").is_none()
        });
        assert!(found, "{what} has no {bytes} at {place}: {ran:?}");
    };
    let calls = of(&["trace", "--json", "-e", "execve,exit_group"]);
    has(&calls, "execve", "/args/filename", &path);
    has(&calls, "exit_group", "/comm", &name);
    let events = of(&["trace", "--json", "-e", exec]);
    has(&events, exec, "/fields/filename", &path);
    let recording = recording.to_str().unwrap();
    of(&["record", "-e", exec, "-e", "sched:sched_process_exit", "-o", recording]);
    let converted = run(perfweave().args(["convert", "--json", recording]), "");
    has(&converted, exec, "/fields/filename", &path);
    has(&converted, "sched:sched_process_exit", "/comm", &name);
    let objects = converted.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut names = objects.filter(|object| object["event"] == "COMM");
    assert!(
        names.any(|object| object["raw"]["text"].as_str().is_some_and(|text| text.contains(&name))),
        "{converted:?}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Threads write what they write how long, as fast as they can: no call has the string of another one.
#[test]
fn each_string_is_that_of_its_call() {
    let Some(python) = program::python() else { return };
    let write = "import os,threading\n\
        null=os.open('/dev/null',os.O_WRONLY)\n\
        def f(k):\n\
        \x20for n in range(k,20000,4): os.write(null,b'%06d'%n+b'x'*(n%20))\n\
        t=[threading.Thread(target=f,args=(k,)) for k in range(4)]\n\
        [x.start() for x in t];[x.join() for x in t]";
    let arguments = ["trace", "--json", "--enter", "-e", "write,pwrite64", "--", &python, "-c", write];
    let Some(ran) = traced(&arguments) else { return };
    strings_are_right(&ran);
    // Where threads have other numbers.
    let unshare = ["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_perfweave")];
    strings_are_right(&run(Command::new("unshare").args(unshare).args(arguments), ""));
}

#[track_caller]
fn strings_are_right(ran: &Ran) {
    let mut right = 0;
    for object in ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let Some(text) = object["args"]["buf"].as_str() else { continue };
        let number: u64 = text[..6].parse().unwrap();
        assert_eq!(object["args"]["count"], 6 + number % 20, "{object}");
        // Beside another tracer, strings come behind the entry, and only the return has them.
        right += u64::from(object["call"].is_string());
    }
    assert!(right > 1000, "{right}: {}", ran.err);
}

/// The program stops for a while, and strings are lost: their calls have addresses, not the strings of earlier calls.
#[test]
fn a_lost_string_is_an_address() {
    let Some(python) = program::python() else { return };
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    let write = "import os,sys\n\
        null=os.open('/dev/null',os.O_WRONLY)\n\
        def f(a,b):\n\
        \x20for n in range(a,b): os.write(null,b'%06d'%n+b'x'*(n%20))\n\
        f(0,100)\n\
        os.write(2,b'ready\\n'); os.read(0,1); f(100,60000); os.write(2,b'done\\n')";
    let arguments = ["trace", "--json", "-e", "write", "--buffer", "32M", "--", &python, "-c", write];
    let (said, says) = std::io::pipe().unwrap();
    let mut child = perfweave();
    child.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(says);
    let mut traces = child.spawn().unwrap();
    drop(child);
    let mut said = BufReader::new(said).lines().map(Result::unwrap);
    let out = traces.stdout.take().unwrap();
    let objects = std::thread::spawn(|| {
        let lines = BufReader::new(out).lines().map(Result::unwrap);
        lines.map(|line| serde_json::from_str::<Value>(&line).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(said.next().unwrap(), "ready");
    let pid = Pid::from_raw(traces.id() as i32);
    signal::kill(pid, Signal::SIGSTOP).unwrap();
    assert!(matches!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(..))));
    traces.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(said.next().unwrap(), "done");
    signal::kill(pid, Signal::SIGCONT).unwrap();
    let (mut strings, mut addresses) = (0, 0);
    for object in objects.join().unwrap() {
        match object["args"]["buf"].as_str().and_then(|text| text.get(..6)?.parse::<u64>().ok()) {
            Some(number) => {
                assert_eq!(object["args"]["count"], 6 + number % 20, "{object}");
                strings += 1;
            }
            None => addresses += u64::from(object["args"]["buf"].is_u64()),
        }
    }
    assert!(traces.wait().unwrap().success());
    let rest: String = said.collect();
    assert!(strings > 100 && addresses > 10_000 && rest.contains("are lost"), "{strings}, {addresses}: {rest}");
}

/// What perf has one number for, threads outside of the PID namespace, is many: no call has the entry or the string of
/// another one.
#[test]
fn threads_of_no_number_are_not_joined() {
    let Some(python) = program::python() else { return };
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    let write = "import os\n\
        null=os.open('/dev/null',os.O_WRONLY)\n\
        while True: os.write(null,b'outside')";
    let mut outside = [(); 2].map(|()| Command::new(&python).args(["-c", write]).spawn().unwrap());
    let inside = ["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_perfweave")];
    let trace = ["trace", "--json", "-e", "write", "--seconds", "1"];
    let ran = run(Command::new("unshare").args(inside).args(trace), "");
    for writer in &mut outside {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    let returns = objects(&ran).into_iter().filter(|object| object["tid"] == 0 && object["result"].is_i64());
    let joined: Vec<_> = returns.map(|object| object["args"].is_object() || object["ns"].is_u64()).collect();
    assert!(joined.len() > 100 && !joined.contains(&true), "{} {}", joined.len(), ran.err);
}

/// In a container, lines have the numbers that ps shows there, and strings as everywhere.
#[test]
fn in_a_pid_namespace_numbers_are_those_that_ps_shows() {
    let command = ["trace", "--json", "-e", "execve,wait4", "--", "sh", "-c", "/bin/true; /bin/true; :"];
    let Some(ran) = program::in_a_container(&command) else { return };
    let objects = objects(&ran);
    let calls: Vec<_> = objects.iter().filter(|object| object["call"].is_string()).collect();
    assert!(calls.iter().all(|call| call["tid"].as_u64().is_some_and(|tid| (1..100).contains(&tid))), "{ran:?}");
    let mut execs = calls.iter().filter(|call| call["call"] == "execve" && call["result"] == 0);
    let shell = execs.next().unwrap();
    let others: Vec<_> = execs.collect();
    assert!(others.len() == 2 && others.iter().all(|call| call["comm"] == "true"), "{ran:?}");
    if ran.err.contains("strings are printed as addresses") {
        return perfweave_support::lacks("BPF programs of this user");
    }
    assert!(others.iter().all(|call| call["args"]["filename"] == "/bin/true"), "{ran:?}");
    // What the shell waits for has the number that its own lines have.
    let waits = calls.iter().filter(|call| call["call"] == "wait4" && call["tid"] == shell["tid"]);
    let ended: Vec<_> = waits.filter_map(|call| call["result"].as_i64().filter(|pid| *pid > 0)).collect();
    assert!(others.iter().all(|call| ended.contains(&call["pid"].as_i64().unwrap())), "{ended:?} {ran:?}");
}

/// A 32-bit call: the kernel names it by the table of 64-bit calls, and its arguments lie in other registers.
#[cfg(target_arch = "x86_64")]
#[test]
fn what_lies_where_no_argument_points_is_not_printed() {
    let Some(python) = program::python() else { return };
    // push rbx; eax = 4, write; ebx = -1; int 0x80; pop rbx; ret. Number 4 of 64-bit calls is stat, whose argument is
    // in rdi.
    let call = "import ctypes,mmap\n\
        code=mmap.mmap(-1,4096,prot=7); code.write(bytes.fromhex('53b804000000bbffffffffcd805bc3'))\n\
        place=ctypes.addressof(ctypes.c_char.from_buffer(code))\n\
        ctypes.CFUNCTYPE(ctypes.c_int,ctypes.c_char_p)(place)(b'unrelated')\n";
    let Some(ran) = traced(&["trace", "-e", "stat", "--", &python, "-c", call]) else { return };
    assert!(!ran.out.contains("unrelated"), "{}", ran.out);
    if !ran.out.contains("stat(0xffffffff,") {
        perfweave_support::lacks("32-bit system calls");
    }
}

/// A pointer to nothing, and strings for those who may load no BPF program.
#[test]
fn what_cannot_be_copied_is_an_address() {
    let Some(python) = program::python() else { return };
    let open = "import ctypes; ctypes.CDLL(None).open(ctypes.c_void_p(1), 0)";
    let Some(ran) = traced(&["trace", "-e", "openat", "--", &python, "-c", open]) else { return };
    let bad = ran.out.lines().find(|line| line.contains("AT_FDCWD, 0x1,")).unwrap_or_else(|| panic!("{}", ran.out));
    assert!(bad.contains("= -1 EFAULT"), "{bad}");
    if !nix::unistd::geteuid().is_root() {
        return perfweave_support::needs("root", false).unwrap_or_default();
    }
    // To search folders: those of tracefs, and that of the program.
    const CAP_DAC_READ_SEARCH: u32 = 2;
    let without = std::thread::spawn(|| {
        // Tracefs has the places of fields. This user may read it, and not mount it.
        perfweave_support::kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let mounted = mount(none, "/sys/kernel/tracing", Some("tracefs"), MsFlags::empty(), none);
        assert!(matches!(mounted, Ok(()) | Err(Errno::EBUSY)), "{mounted:?}");
        privilege::become_nobody_with(&[privilege::CAP_PERFMON, CAP_DAC_READ_SEARCH]).unwrap();
        Some(run(perfweave().args(["trace", "-e", "openat", "--", "cat", "/dev/null"]), ""))
    });
    let Some(ran) = without.join().unwrap() else { return };
    assert!(ran.out.contains("AT_FDCWD, 0x") && !ran.out.contains('"'), "{ran:?}");
    assert!(ran.err.contains("strings are printed as addresses") && ran.err.contains("CAP_BPF"), "{ran:?}");
}

/// Offsets and lengths have 64 bits and a sign, and descriptors 32, in text and in JSON.
#[test]
fn numbers_have_all_the_bits_of_their_arguments() {
    let Some(python) = program::python() else { return };
    let calls = "import os, tempfile\n\
        f = os.open(tempfile.gettempdir(), os.O_RDWR | os.O_TMPFILE, 0o600)\n\
        os.lseek(f, 5 << 30, 0)\n\
        os.pread(f, 1, (7 << 30) + 1)\n\
        os.ftruncate(f, 6 << 30)\n\
        os.lseek(f, -(1 << 30), 1)\n";
    let command = ["-e", "lseek,pread64,ftruncate,openat", "--", &python, "-c", calls];
    let Some(ran) = traced(&[["trace"].as_slice(), &command].concat()) else { return };
    for printed in [
        ", 5368709120, SEEK_SET)",
        ", -1073741824, SEEK_CUR)",
        ") = 4294967296 ",
        ", 1, 7516192769)",
        ", 6442450944)",
        "(AT_FDCWD, ",
    ] {
        assert!(ran.out.contains(printed), "{printed}: {}", ran.out);
    }
    let ran = traced(&[["trace", "--json"].as_slice(), &command].concat()).unwrap();
    let all = objects(&ran);
    let has = |name: &str, value: i64| all.iter().any(|object| object["args"][name] == value);
    let found =
        [("offset", 5 << 30), ("offset", -(1 << 30)), ("pos", (7 << 30) + 1), ("length", 6 << 30), ("dfd", -100)];
    assert!(found.iter().all(|(name, value)| has(name, *value)), "{}", ran.out);
    // The same in an array of numbers without a sign.
    let ran = traced(&["trace", "--json", "-e", "raw_syscalls:sys_enter", "--", &python, "-c", calls]).unwrap();
    let of = |object: &Value| object["fields"]["args"][1] == (1u64 << 30).wrapping_neg();
    assert!(objects(&ran).iter().any(of), "{}", ran.out);
}

/// What one thread writes into a pipe another reads: returns are in the order in which they happened, on whatever CPU.
#[test]
fn a_ping_pong_is_in_order() {
    let Some(python) = program::python() else { return };
    let pingpong = "import os,threading\n\
        a,b=os.pipe(),os.pipe()\n\
        def pong():\n for _ in range(300): os.read(a[0],1); os.write(b[1],b'!')\n\
        thread=threading.Thread(target=pong); thread.start()\n\
        for _ in range(300): os.write(a[1],b'!'); os.read(b[0],1)\n\
        thread.join(); print(a,b)";
    let Some(ran) = traced(&["trace", "--json", "--enter", "-e", "read,write", "--", &python, "-c", pingpong]) else {
        return;
    };
    let (first, rest) = ran.out.lines().partition::<Vec<_>, _>(|line| line.starts_with('('));
    let numbers: Vec<i64> =
        first[0].split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    let pipes = [(numbers[0], numbers[1]), (numbers[2], numbers[3])];
    let (mut written, mut read) = ([0_u64; 2], [0_u64; 2]);
    let mut time = 0;
    for object in rest.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let Some(at) = object["time"].as_u64() else { continue };
        assert!(at >= time, "{object}");
        time = at;
        let (fd, one) = (object["args"]["fd"].as_i64(), object["args"]["count"] == 1);
        for (pipe, (from, to)) in pipes.iter().enumerate().filter(|_| one) {
            // The entry into write comes before the byte is in the pipe, and the return from read after.
            written[pipe] += u64::from(object["enters"] == "write" && fd == Some(*to));
            read[pipe] += u64::from(object["call"] == "read" && object["result"] == 1 && fd == Some(*from));
            assert!(read[pipe] <= written[pipe], "{object}");
        }
    }
    assert_eq!((written, read), ([300; 2], [300; 2]));
}

/// With rings that are too small records are lost, at their places, and no return is joined to the entry of another
/// call: each lseek gives the position that it is asked for.
#[test]
fn a_loss_is_a_line_and_joins_nothing_wrong() {
    let Some(python) = program::python() else { return };
    let seeks =
        "import os\nf=os.open('/dev/zero',0)\nf=os.open('/proc/self/exe',0)\nfor n in range(100000): os.lseek(f,n,0)";
    let arguments = ["trace", "--json", "-b", "4K", "-e", "lseek", "--", &python, "-c", seeks];
    let Some(ran) = traced(&arguments) else { return };
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, objects) = objects.split_last().unwrap();
    let told: u64 =
        objects.iter().filter(|object| object["notice"] == "lost").map(|lost| lost["count"].as_u64().unwrap()).sum();
    let lost = summary["summary"]["lost"].as_u64().unwrap();
    assert!(told <= lost && (told > 0) == objects.iter().any(|object| object["notice"] == "lost"), "{summary}");
    for call in objects.iter().filter(|object| object["result"].is_i64() && object["args"]["whence"] == 0) {
        assert_eq!(call["args"]["offset"], call["result"], "{call}");
    }
}

/// The summary of a trace that lost records names the buffer that would have held them, and with that nothing is lost.
/// While the program stands still, one thread on one CPU makes all the calls, so that both runs have the same load.
#[test]
fn a_loss_comes_with_the_buffer_that_it_takes() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let cpus = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpu = (0..nix::sched::CpuSet::count()).find(|cpu| cpus.is_set(*cpu).unwrap()).unwrap().to_string();
    let script = "kill -STOP $PPID; dd if=/dev/zero of=/dev/null bs=1 count=20000 2>/dev/null; kill -CONT $PPID";
    let command = ["taskset", "-c", &cpu, "sh", "-c", script];
    let traces = |buffer: &str, json: &[&str]| {
        let ran = run(perfweave().args(["trace", "-c", "-e", "read,write", "-b", buffer]).args(json).args(command), "");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    };
    let ran = traces("64K", &[]);
    let (_, advice) = ran
        .err
        .split_once("; guessed from the largest loss and what was held, it takes --buffer ")
        .unwrap_or_else(|| panic!("{ran:?}"));
    let ran = traces(advice.split_whitespace().next().unwrap(), &[]);
    assert!(ran.err.contains("nothing is missing") && !ran.err.contains("--buffer"), "{ran:?}");
    let ran = traces("64K", &["--json"]);
    let summary: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let needed = summary["summary"]["buffer_needed"].as_u64().unwrap_or_else(|| panic!("{summary}"));
    let ran = traces(&needed.to_string(), &["--json"]);
    let summary: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    assert!(summary["summary"]["lost"] == 0 && summary["summary"]["buffer_needed"].is_null(), "{summary}");
}

/// Processes that end with the test.
#[derive(Default)]
struct Ends(Vec<Child>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|child| drop((child.kill(), child.wait())));
    }
}

/// Takes lines of a trace of the whole machine, and ends it by a signal, and others then.
#[track_caller]
fn is_ended_by_a_signal(lines: usize, mut others: Ends) {
    let mut ends = Ends::default();
    ends.0.push(perfweave().args(["trace", "-a", "--json"]).stdout(Stdio::piped()).spawn().unwrap());
    let child = &mut ends.0[0];
    let (status, pid) = (format!("/proc/{}/status", child.id()), Pid::from_raw(child.id().cast_signed()));
    let mut last = String::new();
    for (at, line) in (1..).zip(BufReader::new(child.stdout.take().unwrap()).lines()) {
        last = line.unwrap();
        if at == lines {
            signal::kill(pid, Signal::SIGINT).unwrap();
            drop(std::mem::take(&mut others));
        }
        if at < lines || at % 1000 == 0 {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
            // One that has ended has none.
            assert!(most.is_none_or(|most| most.parse::<u64>().unwrap() < 1 << 20), "{status}");
        }
    }
    assert!(last.starts_with("{\"summary\":"), "{last}");
    assert!(child.wait().unwrap().success());
}

/// The first Ctrl-C ends the trace with its summary.
#[test]
fn a_signal_ends_it_with_the_summary() {
    if traced(&["trace", "--", "true"]).is_some() {
        is_ended_by_a_signal(1, Ends::default());
    }
}

/// What calls point to comes faster than it is read here: it is read once for many calls, and nothing grows.
#[test]
fn a_machine_with_more_calls_than_can_be_told_is_traced() {
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    let flood = || Command::new("dd").args(["if=/dev/zero", "of=/dev/null", "bs=1", "status=none"]).spawn().unwrap();
    is_ended_by_a_signal(1000, Ends((0..2).map(|_| flood()).collect()));
}

#[test]
fn tracepoints_are_decoded_and_filtered() {
    let arguments = [
        "trace",
        "--json",
        "-e",
        "sched:sched_process_exec,sched:sched_process_exit",
        "--",
        "sh",
        "-c",
        "/bin/true; :",
    ];
    let Some(ran) = traced(&arguments) else { return };
    let names: Vec<_> =
        objects(&ran).iter().map(|object| (object["event"].as_str().unwrap().to_owned(), comm(object))).collect();
    let [exec, exit] = ["sched:sched_process_exec", "sched:sched_process_exit"].map(str::to_owned);
    let expected = [(exec.clone(), "sh"), (exec, "true"), (exit.clone(), "true"), (exit, "sh")];
    assert_eq!(names, expected.map(|(event, comm)| (event, comm.to_owned())));

    let arguments = [
        "trace",
        "-e",
        "sched:sched_process_exec",
        "--filter",
        "filename ~ \"*true\"",
        "--",
        "sh",
        "-c",
        "/bin/true; :",
    ];
    let ran = traced(&arguments).unwrap();
    assert_eq!(ran.out.lines().count(), 1, "{ran:?}");
    assert!(ran.out.contains("sched:sched_process_exec: filename=/bin/true"), "{ran:?}");
}

/// A format may have the address of a function: its name is that of the kernel that runs.
#[test]
fn functions_of_the_kernel_have_names() {
    let Some(ran) = traced(&["trace", "-e", "timer:hrtimer_start", "--", "sleep", "0.01"]) else { return };
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
    if symbols.lines().all(|line| line.starts_with("0000")) {
        return perfweave_support::lacks("addresses in /proc/kallsyms");
    }
    assert!(ran.out.contains(" function=hrtimer_wakeup "), "{ran:?}");
}

/// What the next test traces: this program, limited to this test.
#[test]
fn a_program_with_a_static_probe() {
    perfweave_support::probe::go();
}

#[test]
fn static_probes_of_programs_are_traced_by_name() {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let event = format!("usdt:{program}:perfweave:go");
    let Some(ran) = traced(&["trace", "-e", &event, "--", program, "--exact", "a_program_with_a_static_probe"]) else {
        return;
    };
    // The program starts a thread for the test, which is its own too. The probe has two places, one behind the other.
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines = ran.out.lines().filter(|line| line.contains(&format!("usdt {program}:perfweave:go: ("))).count();
    assert_eq!(lines, 2, "{ran:?}");
    let ran = run(perfweave().args(["trace", "-e", &event.replace(":go", ":goo"), "--", "true"]), "");
    assert!(ran.code == Some(1) && ran.err.contains("did you mean perfweave:go?"), "{ran:?}");
}

#[test]
fn errors_name_what_is_wrong() {
    for (arguments, code, text) in [
        (&["trace", "--nosuch"][..], 2, "--nosuch"),
        (&["trace", "-p", "1", "--", "true"], 2, "cannot be used with"),
        (&["trace", "-p", "x"], 2, "invalid value"),
        (&["trace", "-e", "openat,sched:sched_switch", "--", "true"], 1, "sched:sched_switch is an event"),
        (&["trace", "-e", "openat", "--filter", "fd == 1", "--", "true"], 1, "--filter is for tracepoints"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(code) && ran.err.contains(text) && ran.out.is_empty(), "{ran:?}");
    }
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    for (arguments, text) in [
        (&["trace", "-e", "sched:sched_swich", "--", "true"][..], "sched_switch"),
        (&["trace", "-e", "flockk", "true"], "a software event has perf's name"),
        (&["trace", "-b", "3G", "true"], "a ring cannot have"),
        (&["trace", "-e", "sched:sched_switch", "--filter", "x == 1", "--", "true"], "x"),
        (&["trace", "-p", "99999999"], "there is no process 99999999"),
        (&["trace", "--", "/nonexistent/command"], "No such file"),
        (&["trace", "openat"], "`perfweave trace -e openat`"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(1) && ran.err.contains(text), "{ran:?}");
    }
}

/// What people have typed at strace for years works as there.
#[test]
fn options_of_strace_are_known() {
    let Some(ran) = traced(&["trace", "-f", "-T", "-q", "-v", "-e", "trace=%file", "-e", "!access", "true"]) else {
        return;
    };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (call, has) in [(" openat(", true), (" execve(", true), (" access(", false), (" mmap(", false)] {
        assert_eq!(ran.out.contains(call), has, "{call} {ran:?}");
    }
    let ran = traced(&["trace", "-e", "!%file,%memory", "true"]).unwrap();
    for (call, has) in [(" openat(", false), (" mmap(", false), (" close(", true), (" exit_group(", true)] {
        assert_eq!(ran.out.contains(call), has, "{call} {ran:?}");
    }
    // The table alone, and after the lines.
    let ran = traced(&["trace", "-c", "-S", "name", "true"]).unwrap();
    let names: Vec<_> = ran.out.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
    let (total, names) = names.split_last().unwrap();
    assert!(*total == "total" && names.is_sorted() && names.contains(&"openat"), "{ran:?}");
    let ran = traced(&["trace", "-C", "-S", "calls", "-e", "openat,close", "true"]).unwrap();
    assert!(ran.out.contains(" openat(") && ran.out.lines().last().unwrap().ends_with("  total"), "{ran:?}");
    // The result decides.
    for (option, fails) in [("-z", false), ("-Z", true), ("-estatus=successful", false), ("-estatus=!successful", true)]
    {
        let command = ["trace", option, "-e", "access,openat", "cat", "/nonexistent"];
        let ran = traced(&command).unwrap();
        let calls: Vec<_> = ran.out.lines().filter(|line| line.contains('(')).collect();
        assert!(!calls.is_empty() && calls.iter().all(|line| line.contains(" = -1 E") == fails), "{option} {ran:?}");
    }
    let ran = traced(&["trace", "-P", "/etc/passwd", "cat", "/etc/passwd", "/etc/group"]).unwrap();
    let calls: Vec<_> = ran.out.lines().filter(|line| line.contains("openat(")).collect();
    assert!(calls.len() == 1 && calls[0].contains("\"/etc/passwd\""), "{ran:?}");
    // What waits for its child takes long; no other call of this shell does.
    let ran = traced(&["trace", "--duration", "100", "-e", "!execve", "sh", "-c", "sleep 0.2; exit 0"]).unwrap();
    let calls: Vec<_> = ran.out.lines().filter(|line| line.contains('(')).collect();
    assert!(calls.iter().any(|line| line.contains("wait4(")), "{ran:?}");
    assert!(!ran.out.contains(" brk("), "{ran:?}");
}

/// The time of day is that of the place where the machine is, as date(1) has it.
#[test]
fn times_are_printed_as_strace_does() {
    let command = ["-e", "openat", "true"];
    let first = |ran: &Ran| ran.out.split_whitespace().next().unwrap().to_owned();
    for zone in ["UTC", "Asia/Kathmandu"] {
        let run = |options: &[&str]| run(perfweave().env("TZ", zone).args(options).args(command), "");
        if traced(&["trace", "true"]).is_none() {
            return;
        }
        let date = |seconds: &str| {
            let mut date = Command::new("date");
            let said = date.env("TZ", zone).args(["-d", &format!("@{seconds}"), "+%H:%M:%S"]).output().unwrap();
            String::from_utf8(said.stdout).unwrap().trim_end().to_owned()
        };
        let before = Clock::Realtime.now().unwrap() / 1_000_000_000;
        let times = ["-t", "-tt", "-ttt"].map(|option| first(&run(&["trace", option])));
        let after = Clock::Realtime.now().unwrap() / 1_000_000_000;
        let may_be: Vec<_> = (before..=after).map(|second| date(&second.to_string())).collect();
        assert!(may_be.contains(&times[0]), "{times:?} {may_be:?}");
        let (second, rest) = times[1].split_once('.').unwrap();
        assert!(may_be.iter().any(|time| time == second) && rest.len() == 6, "{times:?} {may_be:?}");
        let (second, rest) = times[2].split_once('.').unwrap();
        assert!((before..=after).contains(&second.parse().unwrap()) && rest.len() == 6, "{times:?}");
    }
    // Since the line before: the sum is no more than the whole trace.
    let ran = traced(&["trace", "-r", "--", "true"]).unwrap();
    let times: Vec<f64> =
        ran.out.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    let plain = traced(&["trace", "--", "true"]).unwrap();
    assert!(times[0] == 0.0 && times.iter().sum::<f64>() > 0.0, "{ran:?} {plain:?}");
    let both = traced(&["trace", "-t", "-r", "true"]).unwrap();
    assert!(both.out.lines().next().unwrap().contains(" (+     0.000000) ["), "{both:?}");
}

/// Several processes and what they start, and none of the others.
#[test]
fn several_processes_are_traced() {
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    let script = "while read word; do /bin/true; echo did; done; exit 0";
    let mut shells = [(); 3].map(|()| {
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    });
    let ids = shells.each_ref().map(|shell| shell.id().to_string());
    let mut traces = perfweave();
    let pids = format!("{},{}", ids[0], ids[1]);
    traces.args(["trace", "--json", "-e", "read,execve", "-p", &pids, "--pid", &ids[1]]).stdout(Stdio::piped());
    let mut traces = traces.spawn().unwrap();
    let mut lines = BufReader::new(traces.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut inputs = shells.each_mut().map(|shell| shell.stdin.take().unwrap());
    let mut outputs = shells.each_mut().map(|shell| BufReader::new(shell.stdout.take().unwrap()).lines());
    // Until a line shows that the trace has begun. Each word has an answer, so nobody writes without an end.
    let (sent, first) = std::sync::mpsc::channel();
    let reads = std::thread::spawn(move || {
        let first = lines.next();
        sent.send(()).unwrap();
        first.into_iter().chain(lines).collect::<Vec<_>>()
    });
    let mut go = || {
        for (input, output) in inputs.iter_mut().zip(&mut outputs) {
            input.write_all(b"go\n").unwrap();
            assert_eq!(output.next().unwrap().unwrap(), "did");
        }
    };
    for _ in 0..10_000 {
        go();
        if first.try_recv().is_ok() {
            break;
        }
    }
    go();
    drop(inputs);
    for shell in &mut shells {
        assert!(shell.wait().unwrap().success());
    }
    let lines = reads.join().unwrap();
    // It ends with the last of its processes.
    assert!(traces.wait().unwrap().success());
    let objects: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str, value: &str| {
        let of = objects.iter().filter(|object| object[key] == value).map(|object| object["pid"].as_u64().unwrap());
        of.collect::<std::collections::BTreeSet<_>>()
    };
    let reading: Vec<_> = of("call", "read").into_iter().map(|pid| pid.to_string()).collect();
    assert!(reading.contains(&ids[0]) && reading.contains(&ids[1]) && !reading.contains(&ids[2]), "{objects:?}");
    // The children of two shells, one after the other.
    let children = of("call", "execve").len();
    assert!(children >= 2, "{objects:?}");
}

/// A command runs as another user, with the groups of that user.
#[test]
fn a_command_runs_as_another_user() {
    if !nix::unistd::geteuid().is_root() {
        return perfweave_support::needs("root", false).unwrap_or_default();
    }
    let Some(ran) = traced(&["trace", "-c", "-u", "nobody", "id"]) else { return };
    let theirs = Command::new("id").arg("nobody").output().unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    assert!(ran.code == Some(0) && ran.out.starts_with(&theirs), "{theirs} {ran:?}");
    let ran = run(perfweave().args(["trace", "-u", "nosuchuser", "true"]), "");
    assert!(ran.code == Some(1) && ran.err.contains("there is no user nosuchuser"), "{ran:?}");
}

/// Lines and the table go into the file, and the command has the standard output for itself.
#[test]
fn lines_are_written_into_a_file() {
    let file = std::env::temp_dir().join(format!("perfweave-output-{}", std::process::id()));
    let name = file.to_str().unwrap();
    let Some(ran) = traced(&["trace", "-C", "-o", name, "echo", "hello"]) else { return };
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(ran.out == "hello\n" && ran.err.contains("nothing is missing"), "{ran:?}");
    assert!(text.contains(" execve(") && text.lines().last().unwrap().ends_with("  total"), "{text}");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(&file).unwrap();
}

/// Who dies how: by a status, by a signal, in the place of another thread. As strace says it.
#[test]
fn ends_have_their_status_and_signals_their_line() {
    let script = "/bin/true; /bin/false; (kill -TERM $(exec sh -c 'echo $PPID')); sh -c 'kill -SEGV $$'; exit 7";
    let Some(ran) = traced(&["trace", "--json", "sh", "-c", script]) else { return };
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let all = objects(&ran);
    let ends: Vec<_> = all.iter().filter(|object| object["thread"] == "ends").collect();
    let said = |object: &Value| match (&object["status"], &object["killed_by"]) {
        (Value::Null, by) => by.as_str().unwrap_or("?").to_owned(),
        (status, _) => status.to_string(),
    };
    let mut how: Vec<_> = ends.iter().map(|end| said(end)).collect();
    assert_eq!(how.pop().as_deref(), Some("7"), "{ran:?}");
    how.sort_unstable();
    assert_eq!(how, ["0", "0", "1", "SIGSEGV", "SIGTERM"], "{ran:?}");
    // A signal comes before the end that it makes, in the same thread. Of SIGTERM without a handler the kernel makes
    // SIGKILL before it is delivered.
    let (at, end) = all.iter().enumerate().find(|(_, object)| object["killed_by"] == "SIGSEGV").unwrap();
    let own = all[..at].iter().rev().find(|before| before["tid"] == end["tid"]).unwrap();
    assert!(own["signal"] == "SIGSEGV" && own["info"]["si_pid"] == end["tid"], "{own}");
    // And the shell hears of it.
    let hears = all.iter().find(|object| object["signal"] == "SIGCHLD" && object["info"]["si_pid"] == end["tid"]);
    assert!(hears.is_some_and(|child| child["info"]["si_status"] == Signal::SIGSEGV as i32), "{hears:?}");
    let Some(text) = traced(&["trace", "sh", "-c", script]) else { return };
    for line in [
        "+++ exited with 7 +++",
        "+++ killed by SIGSEGV +++",
        "+++ killed by SIGTERM +++",
        "--- SIGSEGV {si_signo=SIGSEGV, si_code=SI_USER, si_pid=",
    ] {
        assert!(text.out.contains(line), "{line}: {}", text.out);
    }
    let only = traced(&["trace", "-e", "trace=none", "-e", "signal=segv", "sh", "-c", script]).unwrap();
    assert!(only.out.contains("--- SIGSEGV") && !only.out.contains("--- SIGTERM"), "{only:?}");
    assert!(!only.out.contains('('), "{only:?}");
    let quiet = traced(&["trace", "-qq", "-e", "exit_group", "sh", "-c", script]).unwrap();
    assert!(quiet.out.contains("exit_group(") && !quiet.out.contains("+++"), "{quiet:?}");
}

/// The thread that executes a program ends the others, which no signal of anybody killed.
#[test]
fn threads_that_give_way_to_a_program_say_so() {
    let Some(python) = program::python() else { return };
    let exec = "import os,threading,time\n\
        threading.Thread(target=time.sleep,args=(99,),daemon=True).start()\n\
        os.execv('/bin/sh',['sh','-c','exit 5'])";
    let Some(ran) = traced(&["trace", "--json", "--", &python, "-c", exec]) else { return };
    let ends: Vec<_> = objects(&ran).into_iter().filter(|object| object["thread"] == "ends").collect();
    assert_eq!((ends.len(), ran.code), (2, Some(5)), "{ends:?}");
    assert_eq!(ends[0]["superseded_by"], ends[1]["tid"], "{ends:?}");
    assert_eq!(ends[1]["status"], 5, "{ends:?}");
}

/// What strace has and perfweave has not says what to type instead.
#[test]
fn options_that_are_refused_say_what_to_type() {
    for (options, hint) in [
        (&["--instruction-pointer", "true"][..], "-k says where"),
        (&["-ff", "true"], "leave -ff out"),
        (&["-a", "40", "true"], "-a is all processes"),
        (&["-t", "1234"], "--tid 1234"),
        (&["-E", "A=1", "true"], "perfweave trace env A=1 COMMAND"),
        (&["-e", "inject=read:error=EIO", "true"], "strace -e inject"),
        (&["-e", "/^open", "true"], "name the calls"),
        (&["-e", "%nosuch", "true"], "classes are %file"),
        (&["-s", "make"], "the table alone is -c"),
        (&["-p", "x"], "no number of a process"),
    ] {
        let ran = run(perfweave().arg("trace").args(options), "");
        assert!(ran.code != Some(0) && ran.err.contains(hint) && ran.out.is_empty(), "{options:?} {ran:?}");
    }
}

#[test]
fn a_closed_pipe_ends_it_well() {
    program::closed_pipe("trace -a --json");
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("trace -- true");
    program::in_namespaces("trace -- true");
}

/// A library in front of the C library's, by which somebody sets the wall clock back as soon as there is a file.
const SETS_BACK: &str = r#"
    #define _GNU_SOURCE
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    int clock_gettime(clockid_t id, struct timespec *time) {
        int failed = syscall(SYS_clock_gettime, id, time);
        if (!failed && id == CLOCK_REALTIME && !access(getenv("SET_BACK"), F_OK)) time->tv_sec -= 5;
        return failed;
    }
"#;

#[test]
fn a_wall_clock_that_was_set_meanwhile_is_told() {
    let Some(()) = perfweave_support::runs(&["cc", "--version"], "a C compiler") else { return };
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let folder = std::env::temp_dir().join(format!("perfweave-set-back-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [library, file] = ["clock.so", "set"].map(|name| folder.join(name));
    let built = run(Command::new("cc").args(["-shared", "-fPIC", "-xc", "-", "-o"]).arg(&library), SETS_BACK);
    assert_eq!(built.code, Some(0), "{built:?}");
    let traced = |args: &[&str], command: &[&str]| {
        let mut traced = perfweave();
        traced
            .env("LD_PRELOAD", &library)
            .env("SET_BACK", &file)
            .args([&["trace", "--time"], args, &["--"], command].concat());
        let ran = run(&mut traced, "");
        let _ = std::fs::remove_file(&file);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    };
    let set = ["touch", file.to_str().unwrap()];
    let (still, moved) = (traced(&["real"], &["true"]).err, traced(&["real"], &set).err);
    assert!(still.contains("; times within ") && !still.contains("set back"), "{still}");
    assert!(moved.contains("of what the clock said at the start: it was set back by 5.00 s meanwhile"), "{moved}");
    assert!(!traced(&["tai"], &set).err.contains("set back"));
    let ran = traced(&["real", "--json"], &set);
    let summary: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let by = summary["summary"]["clock_set_by_ns"].as_i64().unwrap();
    assert!((by + 5_000_000_000).abs() < 5_000_000, "{summary}");
    std::fs::remove_dir_all(folder).unwrap();
}
