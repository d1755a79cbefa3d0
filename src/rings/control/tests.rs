//! What a reader leaves for handles.

use super::*;

/// A closure that panics while a handle reads does not freeze the counts.
#[test]
fn what_a_reader_reports_outlives_a_panic() {
    let control = Control::new();
    let asked = Arc::clone(&control);
    assert!(std::thread::spawn(move || asked.read_status(|_| panic!("as it reads"))).join().is_err());
    control.update_status(|status| status.refreshes = 7);
    assert_eq!(control.read_status(|status| status.refreshes).unwrap(), 7);
}
