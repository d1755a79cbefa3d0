//! Outputs written by hand: what is wrong is found, and what is right is not faulted.

use super::*;
use crate::tool::Tool;
use std::path::Path;

fn tool(file: &str) -> Tool {
    Tool::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(file)).unwrap()
}

fn history(work: &str, made: &[u32]) -> History {
    History { work: work.into(), steps: made.iter().sum(), made: made.into(), ..History::default() }
}

fn verdict(file: &str, mode: usize, history: &History, text: &str) -> Verdict {
    let tool = tool(file);
    let lines: Vec<&str> = text.lines().collect();
    judge(history, &tool.mode[mode].prints, &tool.said(&lines), &lines, 1000.0)
}

/// How many of each kind, in the order of [`Kind::ALL`].
fn counts(verdict: &Verdict) -> [u64; 6] {
    Kind::ALL.map(|kind| verdict.count(kind))
}

const RIGHT: [u64; 6] = [0; 6];

const PERF_TRACE: &str = "\
     0.000 ( 0.028 ms): work/439 lseek(fd: 900, whence: SET)                                           = 0
     0.504 ( 0.018 ms): work/440 lseek(fd: 901, offset: 1, whence: SET)                                = 1
     0.538 ( 0.023 ms): work/439 lseek(fd: 900, offset: 2, whence: SET)                                = 2
     0.589 ( 0.013 ms): work/440 lseek(fd: 901, offset: 3, whence: SET)                                = 3
";

#[test]
fn a_right_output_has_no_fault() {
    let mut history = history("handover", &[4]);
    assert_eq!(counts(&verdict("perf-trace.toml", 0, &history, PERF_TRACE)), RIGHT);
    history.who = vec![(0, 439), (1, 440), (2, 439), (3, 440)];
    let verdict = verdict("perf-trace.toml", 0, &history, PERF_TRACE);
    assert_eq!((counts(&verdict), verdict.happened, verdict.printed), (RIGHT, 4, 4));
}

/// Two lines are exchanged. Their times are right: it is only their places that are wrong.
#[test]
fn an_effect_before_its_cause_is_found() {
    let lines: Vec<&str> = PERF_TRACE.lines().collect();
    let text = [lines[0], lines[2], lines[1], lines[3]].join("\n");
    let verdict = verdict("perf-trace.toml", 0, &history("handover", &[4]), &text);
    assert_eq!(counts(&verdict), [1, 0, 0, 0, 0, 0]);
    let witness = &verdict.witnesses[0];
    assert_eq!(witness.lines.iter().map(|line| line.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(witness.why, "step 1 happened before step 2, which could not begin without it, and is printed after it");
}

/// One line that is far too early counts as one, and not as all that it overtook. The same holds for times.
#[test]
fn one_line_in_a_wrong_place_counts_once() {
    let lines: Vec<&str> = PERF_TRACE.lines().collect();
    let found =
        verdict("perf-trace.toml", 0, &history("handover", &[4]), &[lines[3], lines[0], lines[1], lines[2]].join("\n"));
    assert_eq!(counts(&found), [1, 0, 0, 0, 0, 0]);
    // Seen: the first time is less than the one that perf subtracts.
    let text = PERF_TRACE.replacen("0.000", "18446744073709.551", 1);
    let found = verdict("perf-trace.toml", 0, &history("handover", &[4]), &text);
    assert_eq!(counts(&found), [0, 1, 0, 0, 0, 0]);
    assert!(found.witnesses[0].lines[0].1.starts_with("18446744073709.551"), "{found:?}");
}

#[test]
fn the_fewest_lines_are_misplaced() {
    let pairs = |values: &[u8]| misplaced(values, &mut |_| true);
    assert_eq!(pairs(&[]), []);
    assert_eq!(pairs(&[1, 2, 2, 3]), []);
    assert_eq!(pairs(&[9, 1, 2, 3]), [(0, 1)]);
    assert_eq!(pairs(&[1, 2, 3, 0]), [(2, 3)]);
    assert_eq!(pairs(&[4, 5, 6, 1, 2, 3, 7]).len(), 3);
    // All short rows of small numbers, against what is left out one by one.
    for code in 0..4_u32.pow(6) {
        let values: Vec<u32> = (0..6).map(|at| code / 4_u32.pow(at) % 4).collect();
        let most = (0_u32..64).filter(|kept| (0..6).filter(|at| kept >> at & 1 == 1).map(|at| values[at]).is_sorted());
        let most = most.map(u32::count_ones).max().unwrap();
        let pairs = misplaced(&values, &mut |_| true);
        assert_eq!(pairs.len() as u32, 6 - most, "{values:?}");
        assert!(
            pairs.iter().all(|&(first, second)| first < second && values[first] > values[second]),
            "{values:?}: {pairs:?}"
        );
    }
}

/// Lines stand where they should, and a time is wrong.
#[test]
fn a_time_before_that_of_the_cause_is_found() {
    let text = PERF_TRACE.replace("0.538", "0.503");
    let verdict = verdict("perf-trace.toml", 0, &history("handover", &[4]), &text);
    assert_eq!(counts(&verdict), [0, 1, 0, 0, 0, 0]);
    // Equal times say nothing.
    let text = PERF_TRACE.replace("0.538", "0.504");
    assert_eq!(counts(&super::tests::verdict("perf-trace.toml", 0, &history("handover", &[4]), &text)), RIGHT);
}

#[test]
fn what_is_missing_in_silence_is_counted() {
    let history = history("handover", &[6]);
    let silent = verdict("perf-trace.toml", 0, &history, PERF_TRACE);
    assert_eq!((counts(&silent), silent.missing()), ([0, 0, 2, 0, 0, 0], 2));
    let said = verdict("perf-trace.toml", 0, &history, &format!("{PERF_TRACE}LOST 2 events!\n"));
    assert_eq!((counts(&said), said.missing(), said.lost), (RIGHT, 2, 2));
    let too_few = verdict("perf-trace.toml", 0, &history, &format!("{PERF_TRACE}LOST 1 events!\n"));
    assert_eq!(counts(&too_few), [0, 0, 1, 0, 0, 0]);
}

/// A call that another line interrupts has a line for its entry, and one where it goes on. Here the second call has no
/// second line.
#[test]
fn a_call_of_which_only_the_entry_is_printed_has_that_as_witness() {
    let text = "\
   747.941 (         ): work/9588 lseek(fd: 901, whence: SET)                         ...
   747.941 ( 0.012 ms): work/9588  ... [continued]: lseek())                                            = 0
   747.943 (         ): work/9589 lseek(fd: 902, offset: 1, whence: SET)                         ...
   747.998 ( 0.012 ms): work/9589 lseek(fd: 902, offset: 2, whence: SET)                            = 2
";
    let verdict = verdict("perf-trace.toml", 0, &history("handover", &[3]), text);
    assert_eq!(counts(&verdict), [0, 0, 1, 0, 0, 0]);
    assert_eq!(verdict.witnesses[0].lines[0].0, 3);
    assert!(verdict.witnesses[0].why.ends_with("the first is Call 1, of which only the entry is there"), "{verdict:?}");
}

/// perf counts chunks, not events. Who says that something is lost is not silent.
#[test]
fn a_loss_without_a_number_is_said() {
    let text =
        "work 71 [000]  1872.878733: syscalls:sys_enter_lseek: fd: 0x00000384, offset: 0x00000000, whence: 0x00000000
work 71 [000]  1872.878737:  syscalls:sys_exit_lseek: 0x0
";
    let found = |told: &str| verdict("perf-record.toml", 0, &history("handover", &[9]), &format!("{text}{told}"));
    assert_eq!(counts(&found("")), [0, 0, 16, 0, 0, 0]);
    for told in ["Processed 8 events and lost 3 chunks!", "Processed 20009 samples and lost 57.27%!"] {
        assert_eq!((counts(&found(told)), found(told).missing()), (RIGHT, 16), "{told}");
    }
}

#[test]
fn what_is_doubled_or_invented_is_found() {
    let history = history("handover", &[4]);
    let doubled = format!("{PERF_TRACE}{}\n", PERF_TRACE.lines().nth(1).unwrap());
    assert_eq!(counts(&verdict("perf-trace.toml", 0, &history, &doubled)), [0, 0, 0, 1, 0, 0]);
    let invented = format!("{PERF_TRACE}     0.700 ( 0.013 ms): work/440 lseek(fd: 901, offset: 4, whence: SET) = 4\n");
    assert_eq!(counts(&verdict("perf-trace.toml", 0, &history, &invented)), [0, 0, 0, 0, 1, 0]);
    // Marks are no steps.
    let marked = format!(
        "{PERF_TRACE}     0.700 ( 0.013 ms): work/440 lseek(fd: 901, offset: 987654144, whence: SET) = 987654144\n"
    );
    assert_eq!(counts(&verdict("perf-trace.toml", 0, &history, &marked)), RIGHT);
}

#[test]
fn a_step_of_the_wrong_thread_is_impossible() {
    let mut history = history("handover", &[4]);
    history.who = vec![(0, 439), (1, 440), (2, 441), (3, 440)];
    assert_eq!(counts(&verdict("perf-trace.toml", 0, &history, PERF_TRACE)), [0, 0, 0, 0, 0, 1]);
}

/// A call that is interrupted by another's line has a second line, where it returned.
#[test]
fn strace_resumes_calls() {
    let text = "\
5500 lseek(900, 0, SEEK_SET)           = 0
5501 lseek(901, 1, SEEK_SET <unfinished ...>
5502 execve(\"/bin/true\", [\"true\"], 0x7ffea2e4f0b0 /* 35 vars */) = 0
5501 <... lseek resumed>)              = 1
5500 lseek(900, 2, SEEK_SET)           = 2
";
    let verdict = verdict("strace.toml", 0, &history("handover", &[3]), text);
    assert_eq!((counts(&verdict), verdict.printed), (RIGHT, 3));
}

/// Entry and return in lines of their own: the return comes before the next entry.
#[test]
fn a_return_after_the_next_entry_is_found() {
    let line = |number: u32, enter: bool| match enter {
        true => format!(
            "work 71 [000] 1.00000{number}: syscalls:sys_enter_lseek: fd: 0x00000384, offset: 0x{number:08x}, whence: 0x00000000\n"
        ),
        false => format!("work 71 [000] 1.00000{number}:  syscalls:sys_exit_lseek: 0x{number:x}\n"),
    };
    let text = |order: &[(u32, bool)]| order.iter().map(|&(number, enter)| line(number, enter)).collect::<String>();
    let right = [(0, true), (0, false), (1, true), (1, false)];
    assert_eq!(counts(&verdict("perf-record.toml", 0, &history("handover", &[2]), &text(&right))), RIGHT);
    let wrong = [(0, true), (1, true), (0, false), (1, false)];
    let found = verdict("perf-record.toml", 0, &history("handover", &[2]), &text(&wrong));
    assert_eq!(counts(&found), [1, 0, 0, 0, 0, 0]);
    assert!(
        found.witnesses[0].why.starts_with("the return of step 0 happened before the entry into step 1,"),
        "{found:?}"
    );
}

/// A CPU that comes online is not traced at once. Who says so is not silent.
#[test]
fn a_cpu_that_is_not_traced_for_a_time_is_said() {
    let text = "0.057 CPU 0: ticket=0 ns=7 number=0 cpu=0 unused=0\n0 CPU 1 is traced again after 0.465 s\n";
    let found = verdict("perfweave-read.toml", 0, &history("handover", &[2]), text);
    assert_eq!((counts(&found), found.missing()), (RIGHT, 1));
}

/// Each in a line of its own again: a return before its own entry.
#[test]
fn a_return_before_its_entry_is_found() {
    let text = "work 71 [000] 1.000001:  syscalls:sys_exit_lseek: 0x0
work 71 [000] 1.000001: syscalls:sys_enter_lseek: fd: 0x00000384, offset: 0x00000000, whence: 0x00000000\n";
    assert_eq!(counts(&verdict("perf-record.toml", 0, &history("handover", &[1]), text)), [1, 0, 0, 0, 0, 0]);
}

/// Threads of a flood have no order among each other, stages of a chain have one for each message.
#[test]
fn only_causes_are_judged() {
    let enter = |number: u32| format!("{number} 1 enter {number}\n");
    let flood = history("flood", &[2, 2]);
    // `steps` is what each thread was asked for.
    let flood = History { steps: 2, ..flood };
    let text: String = [2, 0, 3, 1].map(enter).concat();
    let mut found = verdict("bpftrace.toml", 0, &flood, &text);
    assert_eq!(counts(&found), RIGHT);
    let text: String = [3, 0, 2, 1].map(enter).concat();
    found = verdict("bpftrace.toml", 0, &flood, &text);
    assert_eq!(counts(&found), [1, 0, 0, 0, 0, 0]);

    // Message 1 is at the first stage while message 0 is at the last.
    let pipes = History { steps: 2, ..history("pipes", &[2, 2, 2, 2]) };
    let unstamped = |number: u32| format!("1 1 enter {number}\n");
    let text: String = [0, 4, 1, 5, 2, 3, 6, 7].map(unstamped).concat();
    assert_eq!(counts(&verdict("bpftrace.toml", 0, &pipes, &text)), RIGHT);
    let text: String = [0, 4, 5, 1, 2, 3, 6, 7].map(unstamped).concat();
    assert_eq!(counts(&verdict("bpftrace.toml", 0, &pipes, &text)), [1, 0, 0, 0, 0, 0]);
}

/// A child's program begins after its parent's, and ends before it. Siblings have no order.
#[test]
fn a_tree_has_its_order() {
    let tree = history("tree", &[6]);
    let ends = |order: &[u32]| order.iter().map(|node| format!("n{node}  58  57  58  0.00  0\n")).collect::<String>();
    assert_eq!(counts(&verdict("exitsnoop.toml", 0, &tree, &ends(&[1, 2, 0]))), RIGHT);
    assert_eq!(counts(&verdict("exitsnoop.toml", 0, &tree, &ends(&[2, 1, 0]))), RIGHT);
    assert_eq!(counts(&verdict("exitsnoop.toml", 0, &tree, &ends(&[1, 0, 2]))), [1, 0, 0, 0, 0, 0]);
    let both = "1 exec n0\n2 exec n1\n3 end n1\n4 exec n2\n6 end n2\n7 end n0\n";
    assert_eq!(counts(&verdict("bpftrace.toml", 3, &tree, both)), RIGHT);
    // An exit before its own exec.
    let wrong = "1 exec n0\n3 end n1\n2 exec n1\n4 exec n2\n6 end n2\n7 end n0\n";
    assert_eq!(counts(&verdict("bpftrace.toml", 3, &tree, wrong)), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn who_runs_before_it_is_woken_is_impossible() {
    let wakes = history("wakes", &[8]);
    let found = |text: &str| counts(&verdict("bpftrace.toml", 2, &wakes, text));
    // Woken while asleep; while it goes to sleep; not at all, because it was late for its sleep; after it was
    // interrupted.
    assert_eq!(found("out w1 1\nin x\n1 waking w1\nout x 1\nin w1\n"), RIGHT);
    assert_eq!(found("1 waking w1\nout w1 1\nin x\nout x 1\nin w1\n"), RIGHT);
    assert_eq!(found("out w1 0\nin x\nout x 1\nin w1\nout w2 1\nin x\n5 waking w2\n"), RIGHT);
    assert_eq!(found("out w1 0\nin x\nout x 1\nin w1\n5 waking w1\n"), RIGHT);
    // A second sleep under the same name is not looked at.
    assert_eq!(
        found("out w1 1\nin x\n1 waking w1\nout x 1\nin w1\nout w1 1\nin x\nout x 1\nin w1\n2 waking w1\n"),
        RIGHT
    );
    assert_eq!(found("out w1 1\nin x\nout x 1\nin w1\n1 waking w1\n"), [0, 0, 0, 0, 0, 1]);
    // Wakings are in the order of their numbers.
    assert_eq!(found("1 waking w1\n2 waking w2\n3 waking w3\n"), RIGHT);
    assert_eq!(found("1 waking w1\n3 waking w3\n2 waking w2\n"), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_negative_wait_is_impossible() {
    let found = |wait: &str| {
        let text = format!("    1877.707349 [0001]  w3[15595/15585]  {wait}      0.064      0.036 \n");
        counts(&verdict("perf-sched.toml", 1, &history("wakes", &[8]), &text))
    };
    assert_eq!(found("0.010"), RIGHT);
    assert_eq!(found("-0.010"), [0, 0, 0, 0, 0, 1]);
    assert_eq!(found("18446744073709.551"), [0, 0, 0, 0, 0, 1]);
}

#[test]
fn tickets_are_in_the_order_in_which_they_were_drawn() {
    let mut adversary = history("flood", &[3]);
    adversary.tickets = (10, 13);
    let ticket = |ticket: u32| format!("ticket {ticket} ns 5 number 0 cpu 0\n");
    let found = |order: &[u32]| {
        counts(&verdict("reader-libbpf.toml", 2, &adversary, &order.iter().copied().map(ticket).collect::<String>()))
    };
    assert_eq!(found(&[10, 11, 12]), RIGHT);
    assert_eq!(found(&[10, 12, 11]), [1, 0, 0, 0, 0, 0]);
    assert_eq!(found(&[10, 12]), [0, 0, 1, 0, 0, 0]);
    assert_eq!(found(&[10, 12, 11, 13]), [1, 0, 0, 0, 1, 0]);
}
