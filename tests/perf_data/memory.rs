//! How much memory the calling thread takes.

use perfweave_support::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The peak of bytes that something allocates, without those from before.
pub(crate) fn most<T>(what: impl FnOnce() -> T) -> (u64, T) {
    let before = perfweave_support::counting::now();
    let (most, value) = perfweave_support::counting::most(what);
    ((most - before) as u64, value)
}

#[test]
fn the_counter_counts() {
    assert_eq!(most(|| drop(vec![1u8; 1000])).0, 1000);
    assert_eq!(most(|| (drop(vec![1u8; 100]), drop(vec![1u8; 200]))).0, 200);
}

/// The bytes that a recording takes and the available bytes, from the error for too little memory.
#[track_caller]
pub(crate) fn lacking(error: &perfweave::Error) -> [u64; 2] {
    perfweave_support::assert_error!(error, Limit, "bytes of memory, of which");
    ["its contents take ", "of which "].map(|text| perfweave_support::number_behind(&error.to_string(), text))
}
