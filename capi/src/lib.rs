//! perfweave for C: perf and ring buffers of BPF programs as one stream in proven order, in the shape of libbpf's
//! functions.
//!
//! `include/perfweave.h` is made of this crate by `capi/header`, and is its documentation. Doc comments are therefore
//! written for C.
//!
//! Pointers of the caller are checked for null and alignment where they enter ([`border`]). A call on a buffer that is
//! in a call is refused. No panic crosses the border: each exported function runs in [`border::guarded`], where a panic
//! ends as an error.

mod border;
mod buffer;
mod event;
mod handle;
mod options;
mod own;
mod read;
mod report;
mod rings;
