//! Tests of which each needs a process of its own, in a binary of many.

use crate::cpus;
use std::io::Write;
use std::process::Command;

/// Runs the rest of a test in a process of its own, which runs no other test: for a test that counts or changes what a
/// whole process has, or that forks. Returns from the test when that process has passed.
///
/// # Panics
/// If the test fails there.
#[macro_export]
macro_rules! apart {
    () => {
        if $crate::apart::has_passed(std::any::type_name_of_val(&|| ())) {
            return;
        }
    };
}

/// Runs the test that a closure is in. Gives false in the process that does it.
#[doc(hidden)]
pub fn has_passed(closure: &str) -> bool {
    const INSIDE: &str = "PERFWEAVE_TEST_APART";
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    // binary::module::test::{{closure}}
    let test = closure.split_once("::").and_then(|(_, path)| path.strip_suffix("::{{closure}}"));
    let test = test.unwrap_or_else(|| panic!("{closure} is in no test"));
    // For that process too: it must not wait for somebody who waits for this one.
    cpus::keep();
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").env(cpus::SHARED, "1");
    let ran = command.output().expect("it can be executed");
    let (out, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.contains("1 passed"), "{out}{said}");
    // What it skips it says, past what the test harness keeps to itself.
    let _ = std::io::stderr().write_all(&ran.stderr);
    true
}
