//! The profiler compared with `perf record -g`: the same process, and the same innermost function. Each has its own
//! timer, so their samples and counts differ. The workload only calls one function, so both must find it in most
//! samples. The caller of the function can be found only by frame pointers, which Rust leaves out by default, so
//! neither finds it.

mod common;
mod support;

use common::Run;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use support::Place;

#[inline(never)]
fn the_hot_function(mut sum: u64) -> u64 {
    // No calls, even without optimisation.
    let mut left = 1_000_000;
    while left > 0 {
        sum ^= left << 7;
        sum = black_box(sum);
        left -= 1;
    }
    sum
}

/// Its threads that do nothing.
const PARKED: usize = 40;

/// The workload, in a separate process: this test with a variable set.
#[test]
fn spin() {
    if std::env::var_os("PERFWEAVE_SPIN").is_some() {
        (0..PARKED).for_each(|_| drop(std::thread::spawn(std::thread::park)));
        println!("spinning");
        let mut sum = 1;
        loop {
            sum = the_hot_function(black_box(sum));
        }
    }
}

struct Spinning(Child);

impl Drop for Spinning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Spinning {
    fn start() -> Self {
        let mut spin = Command::new(std::env::current_exe().unwrap());
        spin.args(["--exact", "spin", "--nocapture"]).env("PERFWEAVE_SPIN", "1").stdout(Stdio::piped());
        let mut spinning = Self(spin.spawn().unwrap());
        let mut said = Vec::new();
        let mut stdout = spinning.0.stdout.take().unwrap();
        while !String::from_utf8_lossy(&said).contains("spinning") {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            said.extend(byte);
        }
        spinning
    }
}

/// In a container, processes have the numbers that they have there. Those from outside have none, and are no idle CPUs.
#[test]
fn in_a_pid_namespace_what_is_outside_is_told_apart() {
    let _outside = Spinning::start();
    let script = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done";
    let words = ["-pfm", "--mount-proc", env!("CARGO_BIN_EXE_perfweave"), "profile", "-a", "-F", "999", "--"];
    let output = Command::new("unshare").args(words).args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let Some(()) = perfweave_support::needs("PID namespaces for this user", !said.starts_with("unshare:")) else {
        return;
    };
    let refused = if said.contains("Permission denied") { Err(&said) } else { Ok(()) };
    let Some(()) = perfweave_support::kernel("sample", refused) else { return };
    assert!(output.status.success(), "{said}");
    let stacks = String::from_utf8(output.stdout).unwrap();
    let processes: Vec<_> = stacks.lines().map(|line| line.split_once(';').unwrap_or((line, "")).0).collect();
    assert!(processes.contains(&"[outside]"), "{stacks}");
    let inside = processes.iter().filter_map(|process| process.rsplit_once(':')).collect::<Vec<_>>();
    assert!(inside.iter().all(|(_, number)| number.parse::<u32>().is_ok_and(|pid| pid < 100)), "{stacks}");
    assert!(inside.iter().any(|(name, _)| *name == "sh") && !inside.iter().any(|(name, _)| *name == "?"), "{stacks}");
    assert!(!stacks.contains("swapper") && !stacks.contains("do_idle"), "{stacks}");
    // The profiler's own addresses name nothing of others.
    assert!(!stacks.lines().any(|line| line.starts_with("[outside]") && line.contains("perfweave")), "{stacks}");
    // A recording of samples alone does not say whose they are. What executes a program is no idle CPU.
    let place = Place::new();
    let file = place.file("perf.data");
    let record = ["record", "-a", "-e", "cpu-clock", "--call-graph", "-o", &file, "--", "sh", "-c", script];
    let output = Command::new("unshare").args(&words[..3]).args(record).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let folded = Run::new(&["convert", "--folded", &file]).succeeds();
    let outside: Vec<_> = folded.lines().filter(|line| line.starts_with("?;") && !line.contains(";do_exit")).collect();
    let is_unknown = |line: &&str| line.starts_with("?;[unknown]") || line.starts_with("?;[kernel]");
    let samples = |line: &&str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let (unknown, known): (Vec<_>, Vec<_>) = outside.into_iter().partition(is_unknown);
    // A process of this namespace that has just been forked has no name either, and frames that are known.
    let [unknown, known] = [unknown, known].map(|lines| lines.iter().map(samples).sum::<u64>());
    assert!(unknown > 10 * known, "{folded}");
    assert!(!folded.lines().any(|line| line.starts_with("swapper;") && line.contains(";[unknown]")), "{folded}");
}

#[test]
fn perf_finds_the_same_function() {
    let Some(()) = perfweave_support::perf() else { return };
    let spinning = Spinning::start();
    let pid = spinning.0.id().to_string();
    let data = std::env::temp_dir().join(format!("perfweave-profile-{pid}"));
    let data = data.to_str().unwrap();

    // Again if it got too little CPU time for samples.
    let (mut ours, mut theirs) = (String::new(), String::new());
    for _ in 0..10 {
        if !ours.is_empty() && theirs.lines().count() > 10 {
            break;
        }
        let mut perf = Command::new("perf");
        perf.args(["record", "-N", "-g", "-e", "cpu-clock", "-F", "99", "-p", &pid, "-o", data, "--", "sleep", "2"]);
        let perf = perf.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_perfweave")).args(["profile", "--pid", &pid, "--seconds", "2"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let perf = perf.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&perf.stderr);
        let complaints = perfweave_support::perf::complaints(&said);
        assert!(perf.status.success() && complaints.is_empty(), "{said}");
        ours = String::from_utf8(output.stdout).unwrap();
        let script = ["script", "--no-inline", "-F", "pid,ip,sym", "-i", data];
        theirs = perfweave_support::perf::printed(Command::new("perf").args(script)).unwrap();
        std::fs::remove_file(data).unwrap();
    }

    // The profiler's line: the program and its number, functions, a count.
    let times = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let all: u64 = ours.lines().map(times).sum();
    let top: u64 = ours.lines().filter(|line| hot(line)).map(times).sum();
    assert!(ours.lines().all(|line| line.split(';').next().unwrap().ends_with(&format!(":{pid}"))), "{ours}");
    // perf's: a paragraph for each sample. Its number is padded with spaces; frames follow a tab, innermost first.
    let stacks: Vec<Vec<&str>> =
        theirs.split("\n\n").map(|sample| sample.lines().filter(|line| line.starts_with('\t')).collect()).collect();
    let stacks: Vec<_> = stacks.into_iter().filter(|stack| !stack.is_empty()).collect();
    let on_top = |stack: &&Vec<&str>| stack[0].contains("the_hot_function");
    let their_top = stacks.iter().filter(on_top).count();
    println!("profile: {top} of {all} samples; perf: {their_top} of {} samples", stacks.len());
    assert!(top * 2 > all, "{ours}");
    assert!(their_top * 2 > stacks.len(), "{theirs}");
}

/// A command is sampled from its beginning to its end, and its exit status is the program's.
#[cfg(feature = "svg")]
#[test]
fn a_command_is_sampled_and_drawn() {
    let path = std::env::temp_dir().join(format!("perfweave-profile-{}.svg", std::process::id()));
    let file = path.to_str().unwrap();
    let script = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done; exit 3";
    let output = Run::new(&["profile", "-F", "999", "--svg", file, "--", "sh", "-c", script]).output();
    let said = String::from_utf8_lossy(&output.stderr);
    if perfweave_support::kernel("sample", if said.contains("Permission denied") { Err(&said) } else { Ok(()) })
        .is_none()
    {
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{said}");
    let svg = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(svg.starts_with("<?xml") && svg.contains("sh:") && svg.trim_end().ends_with("</svg>"), "{said}");
    let said = Run::new(&["profile", "--svg", "/nowhere/x.svg", "--seconds", "0.3"]).fails(1);
    assert!(said.contains("/nowhere/x.svg"), "{said}");
    for unknown in [&["profile", "--nosuch"] as &[_], &["profile", "-F", "x"]] {
        Run::new(unknown).fails(2);
    }
}

/// Uses the CPU in a function; with an argument, in a copy of it that lies in no file. With a folder, it writes a map
/// of that copy there, in which a later line covers an earlier one and has the name that comes next, or another. It takes
/// it away from /tmp at its end.
const LOOP: &str = "
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <time.h>
    #include <unistd.h>
    __attribute__((noinline)) static void work(void) { volatile long sum = 0; for (int i = 0; i < 100000; i++) { sum \
                    += i; sum ^= 5; } }
    int main(int count, char **words) {
        char *copy = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *code = copy + 0x140;
        memcpy(code, (void *)work, 256);
        __builtin___clear_cache(code, code + 256);
        char path[4096];
        if (count > 2) {
            snprintf(path, sizeof path, \"%s/perf-%d.map\", words[2], getpid());
            FILE *map = fopen(path, \"w\");
            char *name = count > 3 ? words[3] : \"hot\";
            fprintf(map, \"%lx 100 thrown_away\\n%lx 300 %s\\n\", (long)code, (long)copy, name);
            fclose(map);
        }
        while (clock() < CLOCKS_PER_SEC / 2) if (count > 1) ((void (*)(void))code)(); else work();
        if (count > 2 && !strcmp(words[2], \"/tmp\")) unlink(path);
        return 0;
    }";

/// That program in a place of its own. `None` without a compiler.
#[track_caller]
fn built(options: &[&str]) -> Option<(Place, String)> {
    let () = perfweave_support::runs(&["cc", "--version"], "a C compiler")?;
    let place = Place::new();
    let (program, source) = (place.file("the-loop"), place.file("loop.c"));
    std::fs::write(&source, LOOP).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O0", "-fno-omit-frame-pointer", "-fno-stack-protector", "-o", &program, &source]).args(options);
    let built = cc.output();
    assert!(built.as_ref().unwrap().status.success(), "{built:?}");
    Some((place, program))
}

/// What a run of `profile` prints. `None` where this user may not sample.
#[track_caller]
fn sampled(run: Run) -> Option<String> {
    let output = run.output();
    let said = String::from_utf8_lossy(&output.stderr);
    perfweave_support::kernel("sample", if said.contains("Permission denied") { Err(&said) } else { Ok(()) })?;
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Frames without a function have the name of their file, one for all addresses of it, although the process has ended
/// when they are read.
#[test]
fn frames_without_a_function_have_their_file() {
    let Some((place, program)) = built(&["-s"]) else { return };
    let (file, program) = (place.file("perf.data"), program.as_str());
    let file = file.as_str();
    let profile = Run::new(&["profile", "-F", "999", "--", program]);
    let Some(profile) = sampled(profile) else { return };
    let record = Run::new(&["record", "-e", "cpu-clock", "--call-graph", "-o", file, "--", program]);
    record.succeeds();
    let folded = Run::new(&["convert", "--folded", file]).succeeds();
    for (text, name) in [(&profile, "the-loop:"), (&folded, "the-loop;")] {
        let of_file: Vec<_> = text.lines().filter(|line| line.contains("[the-loop]")).collect();
        assert!(!of_file.is_empty() && of_file.iter().all(|line| line.starts_with(name)), "{text}");
        assert!(!text.contains("the-loop+0x") && !text.starts_with('?'), "{text}");
    }
}

/// The flag that helps is said of a program that keeps no frame pointers, and not of the same program with them.
#[cfg(feature = "dwarf")]
#[test]
fn what_unwinds_is_said_where_stacks_are_lost() {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return;
    }
    for (options, is_said) in [(&["-fomit-frame-pointer", "-O1"][..], true), (&[], false)] {
        let Some((place, program)) = built(options) else { return };
        let (file, hint) = (place.file("perf.data"), "after one frame, without frame pointers");
        let live = Run::new(&["profile", "-F", "999", "--", &program]).output();
        let said = String::from_utf8_lossy(&live.stderr).into_owned();
        let refused = if said.contains("Permission denied") { Err(&said) } else { Ok(()) };
        let Some(()) = perfweave_support::kernel("sample", refused) else { return };
        assert_eq!(said.contains(hint), is_said, "{said} {}", String::from_utf8_lossy(&live.stdout));
        Run::new(&["record", "-F", "999", "-g", "-e", "cpu-clock", "-o", &file, "--", &program]).succeeds();
        let recorded = Run::new(&["profile", "-i", &file]).output();
        let said = String::from_utf8_lossy(&recorded.stderr);
        assert_eq!(said.contains(hint), is_said, "{said} {}", String::from_utf8_lossy(&recorded.stdout));
    }
}

/// Symbols that lie in a file beside a stripped program, to which that has a link. Those of another build name nothing.
#[test]
fn functions_have_the_names_of_the_file_with_a_programs_symbols() {
    let Some(()) = perfweave_support::runs(&["objcopy", "--version"], "Debian's package binutils") else { return };
    let Some((place, program)) = built(&["-Wl,--build-id"]) else { return };
    let (file, symbols, folder) = (place.file("perf.data"), place.file("the-loop.debug"), place.file(".debug"));
    let objcopy =
        |words: &[&str]| assert!(Command::new("objcopy").args(words).status().unwrap().success(), "{words:?}");
    objcopy(&["--only-keep-debug", &program, &symbols]);
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={symbols}"), &program]);
    std::fs::create_dir(&folder).unwrap();
    let hidden = place.file(".debug/the-loop.debug");
    let Some((_other_place, other)) = built(&["-Wl,--build-id", "-DOTHER", "-O1"]) else { return };
    for (place, has_names) in [("beside", true), ("in .debug", true), ("of another build", false)] {
        match place {
            "in .debug" => std::fs::rename(&symbols, &hidden).unwrap(),
            "of another build" => assert!(std::fs::copy(&other, &hidden).unwrap() > 0),
            _ => {}
        }
        let Some(profile) = sampled(Run::new(&["profile", "-F", "999", "--", &program])) else { return };
        Run::new(&["record", "-e", "cpu-clock", "-g", "-o", &file, "--", &program]).succeeds();
        let folded = Run::new(&["convert", "--folded", &file]).succeeds();
        for text in [&profile, &folded] {
            assert_eq!(text.lines().any(|line| line.contains(";main;work")), has_names, "{place}: {text}");
            // What the linker makes for calls has no name in any file.
            assert!(has_names || text.contains(";[the-loop]"), "{place}: {text}");
        }
    }
}

/// Any user can run a file that says it has endless functions. A file with too many is not looked into.
#[test]
fn a_program_with_endless_symbols_has_no_functions() {
    let Some((place, program)) = built(&[]) else { return };
    let file = place.file("perf.data");
    for has_functions in [true, false] {
        if !has_functions {
            let Some(()) = perfweave_support::kernel("a sparse file", with_endless_symbols(&program)) else { return };
        }
        let Some(profile) = sampled(Run::new(&["profile", "-F", "999", "--", &program])) else { return };
        Run::new(&["record", "-e", "cpu-clock", "--call-graph", "-o", &file, "--", &program]).succeeds();
        let converted = Run::new(&["convert", "--folded", &file]).output();
        let (folded, said) = (String::from_utf8_lossy(&converted.stdout), String::from_utf8_lossy(&converted.stderr));
        for text in [&*profile, &*folded] {
            assert_eq!(text.contains(";main;work"), has_functions, "{text}");
            assert_eq!(text.contains(";[the-loop];[the-loop]"), !has_functions, "{text}");
        }
        assert_eq!(said.contains("too many symbols"), !has_functions, "{said}");
    }
}

/// Makes a file of 512 MiB of a program, almost all of which is its table of symbols.
fn with_endless_symbols(program: &str) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    const LEN: u64 = 512 << 20;
    let bytes = std::fs::read(program)?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let (table, count) = (word(0x28) as usize, word(0x38) >> 32 & 0xffff);
    let mut sections = (0..count as usize).map(|section| table + 64 * section);
    // SHT_SYMTAB; sh_offset and sh_size.
    let symtab = sections.find(|at| bytes[at + 4] == 2).expect("a table of symbols");
    let file = std::fs::File::options().write(true).open(program)?;
    file.set_len(LEN)?;
    file.write_all_at(&((LEN - word(symtab + 0x18)) / 24 * 24).to_ne_bytes(), symtab as u64 + 0x20)
}

/// What lies at `/tmp/perf-PID.map` is read only if it is a regular file of the process's own user. Nothing there stops
/// the profiler.
#[test]
fn a_map_of_compiled_functions_is_read_with_care() {
    let Some((place, program)) = built(&["-s"]) else { return };
    let map = "echo '0 7fffffffffff the_compiled_function' >";
    for (setup, is_read) in [
        (format!("{map} $map"), true),
        ("mkfifo $map".into(), false),
        ("truncate -s 1T $map".into(), false),
        ("ln -s /dev/zero $map".into(), false),
        (format!("{map} {0}; ln -s {0} $map", place.file("elsewhere")), false),
        (format!("{map} $map.other; chown 65534 $map.other; mv $map.other $map"), false),
    ] {
        let Some(()) = perfweave_support::needs("root", nix::unistd::geteuid().is_root()) else { return };
        let name = place.file("name");
        let script = format!("map=/tmp/perf-$$.map; echo $map > {name}; {setup}; exec {program} copied");
        // A profiler that waits for ever fails here.
        let mut run = Command::new("timeout");
        run.args([
            "-s",
            "KILL",
            "120",
            env!("CARGO_BIN_EXE_perfweave"),
            "profile",
            "-F",
            "999",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        let output = run.output().unwrap();
        std::fs::remove_file(std::fs::read_to_string(&name).unwrap().trim_end()).unwrap();
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let refused = if said.contains("Permission denied") { Err(&said) } else { Ok(()) };
        let Some(()) = perfweave_support::kernel("sample", refused) else { return };
        assert!(output.status.success(), "{setup}: {:?} {said}", output.status);
        assert_eq!(text.contains(";the_compiled_function"), is_read, "{setup}: {text}");
        assert_eq!(text.contains(";[the-loop];[anon]"), !is_read, "{setup}: {text}");
    }
}

/// Code that was compiled has its name although the process has ended and has taken its map away; in a recording, if
/// the map is kept with it. Of lines that overlap the later one wins.
#[test]
fn compiled_functions_have_the_names_that_were_written_last() {
    let Some((place, program)) = built(&[]) else { return };
    let Some(profile) = sampled(Run::new(&["profile", "-F", "999", "--", &program, "copied", "/tmp"])) else { return };
    let file = place.file("perf.data");
    let (kept, other) = (place.0.to_str().unwrap(), Place::new());
    let record = ["record", "-e", "cpu-clock", "--call-graph", "-o", &file, "--", &program, "copied"];
    Run::new(&record).args([kept]).succeeds();
    let moved = other.file("perf.data");
    std::fs::copy(&file, &moved).unwrap();
    let [with, without] = [&file, &moved].map(|file| Run::new(&["convert", "--folded", file]).succeeds());
    for text in [&profile, &with] {
        assert!(text.contains(";main;hot") && !text.contains("thrown_away") && !text.contains("[anon]"), "{text}");
    }
    assert!(!without.contains(";hot") && without.contains("[anon]"), "{without}");
    let firefox = Run::new(&["convert", "--firefox", &file]).succeeds();
    assert!(firefox.contains("\"hot\"") && !firefox.contains("thrown_away"));
}

/// The trampolines of Python (`python3 -X perf`, 3.12) are compiled code, whose map has a function and its file. perf has
/// the same name.
#[test]
fn functions_of_python_have_the_names_of_its_trampolines() {
    const NAME: &str = "py::Task.work:/srv/my app/main.py";
    let Some((place, program)) = built(&[]) else { return };
    let profile = Run::new(&["profile", "-F", "999", "--", &program, "copied", "/tmp", NAME]);
    let Some(profile) = sampled(profile) else { return };
    let (file, kept) = (place.file("perf.data"), place.0.to_str().unwrap());
    let record = ["record", "-e", "cpu-clock", "-g", "-o", &file, "--", &program, "copied", kept, NAME];
    Run::new(&record).succeeds();
    let recorded = Run::new(&["profile", "-i", &file]).succeeds();
    for text in [&profile, &recorded] {
        assert!(text.contains(&format!(";main;{NAME}")) && !text.contains("[anon]"), "{text}");
    }
    let Some(()) = perfweave_support::perf() else { return };
    let maps = std::fs::read_dir(&place.0).unwrap().map(|file| file.unwrap().path());
    let map = maps.into_iter().find(|path| path.extension().is_some_and(|end| end == "map")).unwrap();
    // Where perf looks for it. Of lines that overlap it takes the first.
    let there = std::path::Path::new("/tmp").join(map.file_name().unwrap());
    let lines = std::fs::read_to_string(&map).unwrap();
    std::fs::write(&there, lines.lines().filter(|line| line.ends_with(NAME)).collect::<String>() + "\n").unwrap();
    let script = Command::new("perf").args(["script", "-i", &file, "-F", "ip,sym"]).output();
    std::fs::remove_file(&there).unwrap();
    let told = String::from_utf8(script.unwrap().stdout).unwrap();
    assert!(told.lines().any(|line| line.trim_end().ends_with(NAME)), "{told}");
}

/// The kernel does not let processes inherit probes. Samples of others are left out.
#[test]
fn probes_are_events_to_sample_by() {
    let Some((_place, program)) = built(&[]) else { return };
    let event = format!("uprobe:{program}:work");
    let Some(profile) = sampled(Run::new(&["profile", "-e", &event, "--", &program])) else { return };
    assert!(!profile.is_empty() && profile.lines().all(|line| line.starts_with("the-loop:")), "{profile}");
    assert!(profile.contains(";main;work ") || profile.contains(";work "), "{profile}");
    let said = Run::new(&["profile", "-e", &format!("uprobe:{program}:wrok"), "--", &program]).fails(1);
    assert!(said.contains("no function wrok") && said.contains("work"), "{said}");
}

/// The soft limit on descriptors is for programs that call select(2). This one raises it, but not that of a command.
#[test]
fn the_limit_on_descriptors_is_raised_for_this_program_alone() {
    let under = |limit: u32, args: &[&str]| {
        let script = format!("ulimit -S -n {limit} && exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_perfweave")]).args(args).stdin(Stdio::null());
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = if said.contains("Permission denied") { Err(&said) } else { Ok(()) };
        perfweave_support::kernel("sample", refused)?;
        assert!(output.status.success(), "{said}");
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let Some(printed) = under(77, &["profile", "--json", "--", "sh", "-c", "ulimit -S -n; ulimit -H -n"]) else {
        return;
    };
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let hard = if hard == u64::MAX { "unlimited".into() } else { hard.to_string() };
    assert!(printed.starts_with(&format!("77\n{hard}\n")), "{printed}");
    let checked = Run::new(&["check", "--json"]).output();
    assert!(String::from_utf8_lossy(&checked.stdout).contains("descriptors, limit"), "{checked:?}");
    // Each event takes one for each thread and CPU.
    let spinning = Spinning::start();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", spinning.0.id())).unwrap().count();
    assert!(tasks > PARKED);
    under(PARKED as u32, &["profile", "-p", &spinning.0.id().to_string(), "-d", "0.01"]);
}

/// What is printed after the end may take for ever, as into a pipe that nobody reads. A second Ctrl-C ends it.
#[test]
fn a_second_interrupt_ends_what_comes_after_the_end() {
    use std::io::Write;
    let (_reader, mut writer) = std::io::pipe().unwrap();
    let full = writer.try_clone().unwrap();
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let mut profile = Command::new(env!("CARGO_BIN_EXE_perfweave"));
    profile.args(["profile", "--json"]).stdout(full).stderr(Stdio::null());
    let mut profile = Spinning(profile.spawn().unwrap());
    let pid = nix::unistd::Pid::from_raw(profile.0.id().cast_signed());
    // Interrupts that come before the first is heard are one.
    let status = loop {
        if let Some(status) = profile.0.try_wait().unwrap() {
            break status;
        }
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        std::thread::yield_now();
    };
    // By the signal itself, if it comes before the program listens.
    assert!(matches!((status.code(), status.signal()), (Some(130 | 1), _) | (_, Some(2))), "{status:?}");
}

/// Whether that function is innermost in a folded stack.
fn hot(line: &str) -> bool {
    line.rsplit(';').next().is_some_and(|frame| frame.contains("the_hot_function"))
}
