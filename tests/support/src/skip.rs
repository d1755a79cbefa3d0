//! Reports skips: libtest counts a test that skips as passed, and hides its output.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Which tests were skipped, wholly or in part, and why.
static SKIPPED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

fn skipped() -> MutexGuard<'static, BTreeSet<(String, String)>> {
    SKIPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a test skips, or fails it if nothing may be skipped.
#[track_caller]
pub(crate) fn skip(why: &str) {
    if std::env::var_os("PERFWEAVE_REQUIRE_KERNEL").is_some_and(|set| set == "1") {
        panic!("{why}, and PERFWEAVE_REQUIRE_KERNEL=1");
    }
    note(why);
}

/// Notes that a test skips for want of something that this machine may have later, or fails it where that is required.
/// `.ci/run` looks for these words, and runs the test again with what it wants.
#[track_caller]
pub(crate) fn want(what: &str, required: bool) {
    assert!(!required, "{what}: it is not there, and PERFWEAVE_REQUIRE_TOOLS is set");
    note(&format!("for want of {what}"));
}

/// Notes that a test skips something, to be listed.
#[track_caller]
pub(crate) fn note(why: &str) {
    static LISTED: Once = Once::new();
    LISTED.call_once(|| {
        // SAFETY: a function that lives as long as the process.
        unsafe { libc::atexit(list) };
    });
    // libtest gives a test's thread its name, unless it runs one test after the other on the main thread.
    let thread = std::thread::current();
    let at = Location::caller();
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => format!("{}:{}", at.file(), at.line()),
    };
    eprintln!("SKIPPED: {test}: {why}");
    skipped().insert((test, why.to_owned()));
}

/// Lists what was skipped, behind libtest's own result. Not through `eprintln!`, which libtest may capture.
extern "C" fn list() {
    let skipped = skipped();
    let tests: BTreeSet<_> = skipped.iter().map(|(test, _)| test).collect();
    let (count, s) = (tests.len(), if tests.len() == 1 { "" } else { "s" });
    let mut said = format!("SKIPPED, wholly or in part, although counted as passed: {count} test{s}\n");
    for (test, why) in skipped.iter() {
        let _ = writeln!(said, "    {test}: {why}");
    }
    // Nothing can be done if this fails.
    let _ = io::stderr().write_all(said.as_bytes());
}
