//! `perfweave check` and `perfweave selftest`.

mod common;

use common::{Run, number};
use perfweave_support::bpf::{Asm, Kind, Program, Reg};
use perfweave_support::{kernel, lock, privilege, tracefs};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn root_may_do_everything_and_the_order_is_proven() {
    if !nix::unistd::geteuid().is_root() {
        return perfweave_support::lacks("root");
    }
    let _kept = lock::keep(lock::PROGRAMS);
    let said = Run::new(&["check"]).succeeds();
    assert!(said.contains("The whole machine can be traced in proven order."), "{said}");
    assert!(said.lines().any(|line| line.starts_with("proven order") && line.contains(" yes ")), "{said}");
    let said = Run::new(&["check", "--json"]).succeeds();
    assert!(said.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{said}");

    let said = Run::new(&["selftest", "--seconds", "0.2", "--json"]).succeeds();
    let (mut rounds, mut floods) = (0, 0);
    for line in said.lines() {
        if line.contains("\"test\":\"order\"") {
            rounds += 1;
            assert_eq!((number(line, "out_of_turn"), number(line, "late")), (0, 0), "{line}");
            assert!(
                number(line, "yielded") > 0 && number(line, "yielded") + number(line, "lost") == number(line, "calls"),
                "{line}"
            );
        } else if line.contains("\"test\":\"loss\"") {
            floods += 1;
            assert_eq!(number(line, "yielded") + number(line, "lost"), number(line, "calls"), "{line}");
        }
    }
    assert_eq!((rounds, floods), (3, 3));
}

/// A kernel that says its version is never called older than it is.
#[test]
fn no_kernel_is_called_older_than_it_is() {
    let output = Run::new(&["check"]).output();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("kernel "), "{said}");
    // perfweave takes 5.8, and all that need less are there.
    assert!(!said.contains("older than 4."), "{said}");
}

/// The program under a name of eight letters that no other process has, and a BPF program that returns 0 in it and 1
/// everywhere else.
fn with_taker() -> Option<(PathBuf, Program)> {
    let name = format!("pw{:06}", std::process::id() % 1_000_000);
    let half = |at: usize| i32::from_ne_bytes(name.as_bytes()[at..at + 4].try_into().unwrap());
    let (first, second) = if cfg!(target_endian = "big") { (half(4), half(0)) } else { (half(0), half(4)) };
    let mut asm = Asm::new();
    // bpf_get_current_comm()
    asm.mov(Reg::R1, Reg::R10).add_i(Reg::R1, -16).mov_i(Reg::R2, 16).call(16).load(Reg::R1, Reg::R10, -16);
    asm.mov(Reg::R2, Reg::R1).mov_low(Reg::R1, Reg::R1).shr_i(Reg::R2, 32);
    asm.when(Reg::R1, first, |asm| asm.when(Reg::R2, second, |asm| asm.mov_i(Reg::R0, 0).exit()));
    asm.mov_i(Reg::R0, 1).exit();
    let taker = kernel("load a BPF program", Program::load_as("takes_events", Kind::Tracepoint, &asm))?;
    let path = std::env::temp_dir().join(name);
    std::fs::copy(env!("CARGO_BIN_EXE_perfweave"), &path).unwrap();
    Some((path, taker))
}

fn attached(taker: &Program, name: &str) -> Option<std::os::fd::OwnedFd> {
    let format = kernel("find a tracepoint", tracefs::Format::of(perfweave_events::format_of(name)))?;
    kernel("attach a BPF program", taker.attach_tracepoint(format.id.into()))
}

/// A BPF program of somebody else takes events. That says nothing of the guarantee, and the program is named.
#[test]
fn a_program_that_takes_events_is_named() {
    let Some(_alone) = kernel("lock", lock::alone(lock::PROGRAMS)) else { return };
    let Some((path, taker)) = with_taker() else { return };
    let said = |args: &[&str]| {
        let output = Command::new(&path).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let Some(at_call) = attached(&taker, "syscalls:sys_enter_getpgid") else { return };
    let (status, text, _) = said(&["selftest", "--seconds", "0.1"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(!text.contains("DOES NOT HOLD"), "{text}");
    assert!(text.contains("\"takes_events\" runs at tracepoint syscalls:sys_enter_getpgid"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.contains("not tested")), "{text}");
    let (_, text, _) = said(&["selftest", "--seconds", "0.1", "--json"]);
    assert!(text.lines().last().is_some_and(|line| line.contains("takes_events")), "{text}");
    // A command that traces says so as well.
    let (_, _, told) = said(&["trace", "-d", "0.1", "-a", "-e", "syscalls:sys_enter_getpgid"]);
    assert!(told.contains("\"takes_events\" runs at"), "{told}");
    drop(at_call);

    let Some(at_wake) = attached(&taker, "sched:sched_wakeup_new") else { return };
    let (status, text, _) = said(&["check"]);
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("BPF programs")).expect("a line");
    assert!(lines[at].contains(" NO ") && lines[at].contains("\"takes_events\""), "{text}");
    assert!(lines[at + 1].contains("bpftool prog show id"), "{text}");
    assert_eq!(status, Some(1), "{text}");
    drop(at_wake);
    let (status, text, _) = said(&["check"]);
    assert!(
        status == Some(0) && text.lines().any(|line| line.starts_with("BPF programs") && line.contains(" yes ")),
        "{text}"
    );
    std::fs::remove_file(path).unwrap();
}

/// Puts a setting of the kernel back as it was.
struct Setting(&'static str, String);

impl Setting {
    fn set(path: &'static str, value: &str) -> Option<Self> {
        let before = kernel("read a setting", std::fs::read_to_string(path))?;
        let setting = Self(path, before);
        kernel("change a setting", std::fs::write(path, value)).map(|()| setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        std::fs::write(self.0, &self.1).unwrap();
    }
}

/// The machine's setting of grace periods is said, and what it means for each fence.
#[test]
fn how_fast_grace_periods_may_be_is_said() {
    let Some(_alone) = kernel("lock", lock::alone(lock::RCU)) else { return };
    let said = || String::from_utf8(Run::new(&["check"]).output().stdout).unwrap();
    // What a line says, and the advice under it.
    let of = |text: &str, name: &str| {
        let mut lines = text.lines().skip_while(|line| !line.starts_with(name)).map(str::to_string);
        let (line, below) = (lines.next().expect("a line"), lines.next().unwrap_or_default());
        (line, below.trim_start().strip_prefix("help: ").map(str::to_string))
    };
    let Some(_normal) = Setting::set("/sys/kernel/rcu_normal", "0") else { return };
    let text = {
        let Some(_expedited) = Setting::set(lock::RCU, "0") else { return };
        said()
    };
    assert!(of(&text, "grace periods").0.contains("expedited for those who ask"), "{text}");
    let advice = of(&text, "fence ").1.unwrap_or_default();
    assert!(
        advice.contains("write 1 into /sys/kernel/rcu_expedited") && advice.contains("--hold expedited expedites"),
        "{text}"
    );
    assert_eq!(of(&text, "fence, expedited").1, None, "{text}");

    let Some(_expedited) = Setting::set(lock::RCU, "1") else { return };
    let text = said();
    assert!(of(&text, "grace periods").0.contains("rcu_expedited is 1"), "{text}");
    assert_eq!(of(&text, "fence ").1, None, "{text}");
    assert!(of(&text, "fence, expedited").1.is_some_and(|advice| advice.contains("--hold fence takes no")), "{text}");

    let Some(normal) = Setting::set("/sys/kernel/rcu_normal", "1") else { return };
    let text = said();
    assert!(of(&text, "grace periods").0.contains("rcu_normal is 1"), "{text}");
    assert!(of(&text, "fence ").1.is_some_and(|advice| advice.contains("/sys/kernel/rcu_normal")), "{text}");
    // Who asks for what there is not is told, and nobody else.
    let warns = |rule: &str| {
        let output = Run::new(&["trace", "-e", "sched:sched_process_exec", "--hold", rule, "--", "true"]).output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said.contains("rcu_normal is 1")
    };
    assert!(warns("expedited") && !warns("fence"));
    drop(normal);
    assert!(!warns("expedited"));
}

/// Every refusal comes with what would help, and the exit status says that something is missing.
#[test]
fn nobody_is_told_what_would_help() {
    let path = std::env::temp_dir().join(format!("perfweave-{}", std::process::id()));
    if !nix::unistd::geteuid().is_root() {
        return perfweave_support::lacks("root");
    }
    // Nobody may not look into the folder of the build.
    std::fs::copy(env!("CARGO_BIN_EXE_perfweave"), &path).unwrap();
    let mut command = Command::new(&path);
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(privilege::become_nobody) };
    let output = command.arg("check").output().unwrap();
    std::fs::remove_file(path).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let is_refused = |line: &str| line.get(23..25) == Some("NO");
    assert!(lines.iter().any(|line| is_refused(line)), "{said}");
    for pair in lines.windows(2).filter(|pair| is_refused(pair[0])) {
        assert!(pair[1].trim_start().starts_with("help: "), "{}", pair[0]);
    }
}
