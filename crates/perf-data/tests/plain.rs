//! What is read without feature `zstd`.

#![cfg(not(feature = "zstd"))]

use perfweave::{ErrorKind, Hold, Merge, Order, sim};
use std::fs;

/// A record that perf has compressed is an error that says how it can be read, and no damage.
#[test]
fn a_compressed_recording_is_refused() {
    let path = std::env::temp_dir().join(format!("perfweave-perf-data-plain-{}", std::process::id()));
    let kernel = sim::Kernel::new(&[0]);
    kernel.emit(0, 1, b"a record");
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let mut writer = perfweave_perf_data::Writer::create(&path, merge.rings()).unwrap();
    merge.refresh(0);
    writer.write(&merge.next().unwrap().event()).unwrap();
    writer.finish().unwrap();
    assert_eq!(perfweave_perf_data::open(&path).unwrap().cpus().len(), 1);

    let mut bytes = fs::read(&path).unwrap();
    // Where the header says that the records begin. COMPRESSED is 81.
    let records = u64::from_ne_bytes(bytes[40..48].try_into().unwrap()) as usize;
    bytes[records] = 81;
    fs::write(&path, bytes).unwrap();
    let error = perfweave_perf_data::open(&path).unwrap_err();
    fs::remove_file(&path).unwrap();
    assert_eq!(error.kind(), ErrorKind::Recording);
    assert!(error.hint().unwrap().contains("feature zstd of perfweave-perf-data, or record without -z"), "{error}");
}
