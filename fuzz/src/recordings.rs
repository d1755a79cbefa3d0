//! Reads any bytes as a recording of perf(1), to its end: events in order, or an error of its own.

use nix::sys::memfd::{MFdFlags, memfd_create};
use perfweave::{Class, Error, Order, Reader, perf_data};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

/// One input: the file.
pub(crate) fn run(input: &[u8]) {
    let mut file = File::from(memfd_create(c"recording", MFdFlags::MFD_CLOEXEC).expect("a file"));
    file.write_all(input).expect("memory");
    let rings = match perf_data::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Ok(rings) => rings,
        Err(Error::Unreadable { why, .. }) => {
            assert!(!why.to_string().is_empty());
            return;
        }
        Err(other) => panic!("{other:?}"),
    };
    if rings.is_empty() {
        return;
    }
    let mut reader = match Reader::new(rings, Order::new()) {
        Ok(reader) => reader,
        // `perf record --no-timestamp`
        Err(Error::NoTime { .. }) => return,
        Err(other) => panic!("{other:?}"),
    };
    // A record is 8 bytes at least.
    let (most, mut events, mut last) = (input.len() / 8 + 1, 0, 0);
    loop {
        match reader.next() {
            Ok(event) => {
                // What has no key and lies behind none in its ring is ordered by nothing.
                let expected = if event.key().is_some() { Class::Proven } else { event.class() };
                assert_eq!((event.class(), event.late_by()), (expected, 0), "{event:?}");
                assert!(event.class() != Class::Late, "{event:?}");
                assert!(event.key().is_none_or(|key| key >= last), "{event:?} behind {last}");
                last = event.key().unwrap_or(last);
                events += 1;
                assert!(events <= most, "{events} events of {} bytes", input.len());
            }
            Err(Error::Closed) => break,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(reader.held(), 0);
}
