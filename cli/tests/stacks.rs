//! `perfweave trace -k`: the stack of each call, by frame pointers and unwound, live and of a recording.

mod program;

use perfweave_support::runs;
use program::{perfweave, run, traced};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Functions whose order is known, the innermost of which calls the kernel itself: no library is in between. With a
/// word it goes on until it is killed.
const DEEP: &str = r#"
    #include <sys/syscall.h>
    #include <unistd.h>
    #define NEXT __asm__ volatile("" ::: "memory")
    __attribute__((noinline)) static long the_innermost(long call, long file) {
        long result;
    #if defined(__x86_64__)
        register long third __asm__("rdx") = 1;
        __asm__ volatile("syscall"
            : "=a"(result) : "0"(call), "D"(file), "S"("x"), "r"(third) : "rcx", "r11", "memory");
    #elif defined(__aarch64__)
        register long number __asm__("x8") = call;
        register long first __asm__("x0") = file;
        register const char *second __asm__("x1") = "x";
        register long third __asm__("x2") = 1;
        __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second), "r"(third) : "memory");
        result = first;
    #endif
        return result;
    }
    __attribute__((noinline)) static long the_middle(long file) {
        long result = the_innermost(SYS_write, file);
        NEXT;
        return result;
    }
    __attribute__((noinline)) static long the_outermost(long file) {
        long result = the_middle(file);
        NEXT;
        return result;
    }
    int main(int count, char **words) {
        do {
            the_outermost(-1);
            if (count > 1) usleep(1000);
        } while (count > 1);
        return 0;
    }
"#;

const CHAIN: [&str; 4] = ["the_innermost", "the_middle", "the_outermost", "main"];

/// Options of compilers for frame pointers, which with the others some functions lack all the same, and for none.
const WITH: [&str; 2] = ["-O0", "-fno-omit-frame-pointer"];
const WITHOUT: [&str; 2] = ["-O1", "-fomit-frame-pointer"];

/// The program, built with or without frame pointers. It is deleted at the end.
struct Deep(PathBuf);

impl Deep {
    fn build(name: &str, options: &[&str]) -> Option<Self> {
        let is_here = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        perfweave_support::needs("x86-64 or 64-bit Arm", is_here)?;
        runs(&["cc", "--version"], "a C compiler")?;
        let place = std::env::temp_dir().join(format!("perfweave-deep-{name}-{}", std::process::id()));
        let words = ["-w", "-xc", "-", "-o"];
        let built = run(Command::new("cc").args(options).args(words).arg(&place), DEEP);
        assert_eq!(built.code, Some(0), "{built:?}");
        Some(Self(place))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The lines of a stack below that of the first call with this text.
fn stack_of(out: &str, call: &str) -> Vec<String> {
    let below = out.lines().skip_while(|line| !line.contains(call)).skip(1);
    below.map_while(|line| line.strip_prefix(" > ")).map(str::to_owned).collect()
}

/// `PATH(NAME+0xOFFSET) [0xOFFSET]`, for each function of the chain and nothing in between.
#[track_caller]
fn is_whole(stack: &[String], path: &str) {
    assert!(stack.len() >= CHAIN.len(), "{stack:#?}");
    for (line, name) in stack.iter().zip(CHAIN) {
        let plus = line.strip_prefix(&format!("{path}({name}+0x")).unwrap_or_else(|| panic!("{name}: {stack:#?}"));
        let (plus, offset) = plus.split_once(") [0x").unwrap();
        let offset = offset.strip_suffix(']').unwrap();
        let [plus, offset] = [plus, offset].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        assert!(plus < 0x100 && offset > plus, "{line}");
    }
}

/// How stacks are found here without being told.
const IS_UNWOUND: bool = cfg!(all(feature = "dwarf", any(target_arch = "x86_64", target_arch = "aarch64")));

#[test]
fn calls_have_their_stacks() {
    let Some(deep) = Deep::build("pointers", &WITH) else { return };
    let Some(ran) = traced(&["trace", "-k", "--call-graph", "fp", "-e", "write", deep.path()]) else { return };
    is_whole(&stack_of(&ran.out, "write(-1, "), deep.path());
    // What hides others is said, once and with what helps.
    let said: Vec<_> = ran.err.lines().filter(|line| line.contains("hides those that called it")).collect();
    assert!(said.len() == 1 && said[0].contains("--call-graph dwarf"), "{}", ran.err);
    let ran = traced(&["trace", "-k", "--json", "--call-graph", "fp", "-e", "write", deep.path()]).unwrap();
    let call = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let call = call.into_iter().find(|object| object["call"] == "write").unwrap();
    for (frame, name) in call["stack"].as_array().unwrap().iter().zip(CHAIN) {
        assert_eq!((frame["function"].as_str(), frame["file"].as_str()), (Some(name), Some(deep.path())), "{call}");
        assert!(frame["offset"].as_u64() > frame["plus"].as_u64(), "{call}");
    }
    assert!(!ran.out.contains(" > "), "{}", ran.out);
    let ran = traced(&["trace", "-e", "write", deep.path()]).unwrap();
    assert!(!ran.out.contains(" > "), "{}", ran.out);
}

/// Also where no function keeps a frame pointer, if this build can, and those of a call that does not return.
#[test]
fn stacks_are_unwound_where_they_can_be() {
    let Some(deep) = Deep::build("none", &WITHOUT) else { return };
    let command = ["trace", "-k", "-e", "write,exit_group,execve", "--buffer", "16M", deep.path()];
    let Some(ran) = traced(&command) else { return };
    let stack = stack_of(&ran.out, "write(-1, ");
    if IS_UNWOUND {
        is_whole(&stack, deep.path());
        assert!(!ran.err.contains("hides those that called it"), "{}", ran.err);
        let names = |line: &&String| line.contains("exit");
        assert!(stack_of(&ran.out, "exit_group(0)").iter().filter(names).count() > 1, "{}", ran.out);
    } else {
        assert!(stack[0].starts_with(&format!("{}(the_innermost+0x", deep.path())), "{stack:#?}");
        assert!(ran.err.contains("hides those that called it"), "{}", ran.err);
    }
    // The program that the command becomes begins somewhere.
    assert!(!stack_of(&ran.out, "execve(").is_empty(), "{}", ran.out);
}

/// Ends it, whatever a test finds.
struct Runs(Child);

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What it had mapped before is read from it.
#[test]
fn a_process_that_runs_has_stacks() {
    let Some(_) = traced(&["trace", "true"]) else { return };
    let Some(deep) = Deep::build("runs", &WITH) else { return };
    let mut runs = Runs(Command::new(deep.path()).arg("on").spawn().unwrap());
    let pid = runs.0.id().to_string();
    let words = ["trace", "-k", "--call-graph", "fp", "-e", "write", "-p", &pid, "-d", "60"];
    let mut traces = perfweave().args(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(traces.stdout.take().unwrap()).lines().map_while(Result::ok);
    let call = lines.by_ref().find(|line| line.contains("write(-1, ")).expect("a call");
    let stack: Vec<_> = lines.by_ref().map_while(|line| Some(line.strip_prefix(" > ")?.to_owned())).collect();
    // The trace ends with its process.
    runs.0.kill().unwrap();
    runs.0.wait().unwrap();
    lines.for_each(drop);
    assert!(traces.wait().unwrap().success(), "{call}");
    is_whole(&stack, deep.path());
}

#[test]
fn a_recording_has_the_stacks_of_its_samples() {
    let Some(deep) = Deep::build("recorded", &WITH) else { return };
    let file = format!("{}.data", deep.path());
    let record = |chains: &[&str]| {
        traced(&[&["record", "-e", "raw_syscalls:*", "-o", &file], chains, &["--", deep.path()]].concat())
    };
    let Some(ran) = record(&["-g"]) else { return };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = traced(&["trace", "-k", "-e", "write", "-i", &file]).unwrap();
    is_whole(&stack_of(&ran.out, "write(-1, "), deep.path());
    assert!(ran.err.contains("record --call-graph dwarf"), "{}", ran.err);
    record(&[]).unwrap();
    let ran = traced(&["trace", "-k", "-e", "write", "-i", &file]).unwrap();
    assert!(stack_of(&ran.out, "write(-1, ").is_empty(), "{}", ran.out);
    assert!(ran.err.contains("the calls have no call chains"), "{}", ran.err);
    if IS_UNWOUND {
        record(&["--call-graph", "dwarf,4096"]).unwrap();
        let ran = traced(&["trace", "-k", "-e", "write", "-i", &file]).unwrap();
        is_whole(&stack_of(&ran.out, "write(-1, "), deep.path());
        assert!(!ran.err.contains("hides"), "{}", ran.err);
    }
    std::fs::remove_file(file).unwrap();
}

/// strace(1) has the same frames at the same places, as far as it is built with stacks; and names of its own where a
/// function is in no table that it reads.
#[test]
fn strace_has_the_same_stack() {
    if !IS_UNWOUND {
        return;
    }
    let Some(()) = runs(&["strace", "-k", "-e", "trace=none", "true"], "a strace with -k") else { return };
    let Some(deep) = Deep::build("strace", &WITHOUT) else { return };
    let Some(ran) = traced(&["trace", "-k", "-e", "write", "--buffer", "16M", deep.path()]) else { return };
    let theirs = run(Command::new("strace").args(["-k", "-e", "trace=write", deep.path()]), "");
    let places = |stack: Vec<String>| -> Vec<String> {
        let place = |line: &String| format!("{}{}", line.split('(').next().unwrap(), line.rsplit(')').next().unwrap());
        stack.iter().map(place).collect()
    };
    let [ours, theirs] = [&ran.out, &theirs.err].map(|out| stack_of(out, "write(-1, "));
    is_whole(&theirs, deep.path());
    assert_eq!(places(ours), places(theirs));
}

/// A program without any rule, whose first function calls the kernel itself, or by another function.
#[cfg(target_arch = "x86_64")]
const BARE: &str = r#"
    __asm__(".globl _start\n_start: mov $1, %eax; mov $-1, %edi; syscall\n"
        "call the_next\nmov $60, %eax; xor %edi, %edi; syscall\n"
        "the_next: mov $32, %eax; mov $-1, %edi; syscall\nret");
"#;

/// The entry point of a file has no caller, also where no rule says so: that of a dynamic loader, and that of a program
/// without rules. What such a program calls has one.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_stack_up_to_the_entry_point_is_whole() {
    const NOT_WHOLE: &str = "end before their outermost function";
    if !IS_UNWOUND {
        return;
    }
    let Some(deep) = Deep::build("loaded", &WITHOUT) else { return };
    let Some(ran) = traced(&["trace", "-k", "-e", "mmap,arch_prctl,write", deep.path()]) else { return };
    let stack = stack_of(&ran.out, "mmap(");
    assert!(stack.len() > 2 && stack.iter().all(|line| line.contains("/ld-")), "{stack:#?}");
    assert!(!ran.err.contains(NOT_WHOLE), "{}", ran.err);
    let place = format!("{}-bare", deep.path());
    let words = ["-w", "-static", "-nostdlib", "-fno-asynchronous-unwind-tables", "-xc", "-", "-o", &place];
    assert_eq!(run(Command::new("cc").args(words), BARE).code, Some(0));
    let [whole, cut] = ["write", "dup"].map(|call| traced(&["trace", "-k", "-e", call, &place]).unwrap());
    std::fs::remove_file(&place).unwrap();
    assert_eq!(stack_of(&whole.out, "write(").len(), 1, "{}", whole.out);
    assert!(!whole.err.contains(NOT_WHOLE), "{}", whole.err);
    assert_eq!(stack_of(&cut.out, "dup(").len(), 1, "{}", cut.out);
    assert!(cut.err.contains(&format!("{NOT_WHOLE}: 1 in functions that nothing says")), "{}", cut.err);
}

/// Of events that are no calls there are none, and where lines are not printed neither are stacks.
#[test]
fn what_has_no_stacks_says_so() {
    for (words, says) in [
        (&["trace", "-k", "-e", "sched:sched_switch", "true"][..], "perfweave profile -e EVENT"),
        (&["trace", "-k", "-c", "true"], "cannot be used with"),
        (&["trace", "--call-graph", "fp", "true"], "--stack-traces"),
        (&["trace", "-k", "--call-graph", "lbr", "true"], "perf record --call-graph lbr"),
        (&["trace", "-k", "--call-graph", "fp,defer", "true"], "none comes later"),
    ] {
        let ran = run(perfweave().args(words), "");
        assert!(ran.code != Some(0) && ran.err.contains(says) && ran.out.is_empty(), "{words:?} {ran:?}");
    }
}
