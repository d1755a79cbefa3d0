//! `perfweave wakeups` as a person runs it.

mod program;

use program::{perfweave, run, traced};
use serde_json::Value;

/// A parent that writes to its child, which waits for it each time.
const PING_PONG: &str = "import os\n\
    a,b=os.pipe(),os.pipe()\n\
    if os.fork()==0:\n\
    \x20for _ in range(200): os.read(a[0],1); os.write(b[1],b'!')\n\
    \x20os._exit(0)\n\
    for _ in range(200): os.write(a[1],b'!'); os.read(b[0],1)\n\
    os.wait()";

#[test]
fn a_ping_pong_wakes_its_partner() {
    let Some(python) = program::python() else { return };
    let Some(ran) = traced(&["wakeups", "--json", "--by-name", "--", &python, "-c", PING_PONG]) else { return };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let rows: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.last().unwrap()["summary"]["late"], 0, "{ran:?}");
    // The kernel keeps 15 letters of the file's name.
    let name: String = python.rsplit('/').next().unwrap().chars().take(15).collect();
    let own: Vec<_> =
        rows.iter().filter(|row| row["waker"] == name.as_str() && row["woken"] == name.as_str()).collect();
    assert_eq!(own.len(), 1, "{ran:?}");
    // On two CPUs one of them may read before it sleeps. Neither can do so every time: a byte at a time is on its way.
    let count = own[0]["times"]["count"].as_u64().unwrap();
    assert!((1..=401).contains(&count), "{ran:?}");
}

#[test]
fn each_wake_up_has_a_line_and_the_table_counts_them() {
    let Some(ran) = traced(&["wakeups", "--each", "-n", "1000", "--", "sh", "-c", "ls | cat; ls | cat; :"]) else {
        return;
    };
    let lines = ran.out.lines().filter(|line| line.contains(" waited ")).count();
    assert!(lines > 0 && ran.out.ends_with(&format!("\n{lines} wake-ups\n")), "{ran:?}");
    assert!(!ran.out.contains('\x1b'), "a terminal's own bytes in a pipe: {ran:?}");
    assert!(ran.err.contains("nothing is missing"), "{ran:?}");
}

#[test]
fn errors_name_what_is_wrong() {
    for (arguments, code, text) in [
        (&["wakeups", "-n", "x"][..], 2, "invalid value"),
        (&["wakeups", "-p", "1", "--", "true"], 2, "cannot be used with"),
        (&["wakeups", "-p", "99999999"], 1, "there is no process 99999999"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(code) && ran.err.contains(text) && ran.out.is_empty(), "{ran:?}");
    }
}

#[test]
fn a_closed_pipe_ends_it_well() {
    program::closed_pipe("wakeups --each");
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("wakeups -d 1");
    program::in_namespaces("wakeups -d 1");
}
