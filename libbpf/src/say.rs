//! What is said on standard error: what is ordered and what is not. Each once.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Mutex;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Says a line, unless it was said before. A tool whose standard error is closed goes on.
pub(crate) fn once(text: String) {
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let line = format!("perfweave: {text}\n");
    if said.get_or_insert_default().insert(text) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

macro_rules! say {
    ($($words:tt)*) => { $crate::say::once(format!($($words)*)) };
}
pub(crate) use say;
