//! What a reader leaves for handles.

use super::*;

/// A thread that panics while it has the lock does not freeze the counts.
#[test]
fn what_a_reader_reports_outlives_a_panic() {
    let control = Control::new();
    let other = Arc::clone(&control);
    let panics = move || other.update_status(|_| panic!("as it writes"));
    assert!(std::thread::spawn(panics).join().is_err());
    control.update_status(|status| status.refreshes = 7);
    assert_eq!(Handle(control).status().unwrap().refreshes, 7);
}
