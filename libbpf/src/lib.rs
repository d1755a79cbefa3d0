//! libbpf's and libbcc's perf and ring buffers in proven order, under their own names: for tools that are not changed.
//! A tool is linked with `-lperfweave_libbpf -lbpf`, or started with `LD_PRELOAD=libperfweave_libbpf.so`.
//!
//! A call of the tool that reads returns what was there when it was made, in proven order ([`group`]): it waits for one
//! fence, 10 to 20 ms. What the tool waits for stays as it was: its perf events become readable with each record.
//! `PERFWEAVE_ORDER=lazy` lets the reader wait instead; `off` passes everything through ([`settings`]).
//!
//! A pointer that is not ours is libbpf's or libbcc's, and goes there ([`real`]). What cannot be ordered goes there
//! too, and [`say`] says so once on standard error.
//!
//! No panic leaves the library ([`border`]). Exceptions of a callback pass: no call of a callback is inside of a
//! `catch_unwind`, which would end the process.

mod border;
mod calls;
mod gate;
mod group;
mod interpose;
mod libbcc;
mod ours;
mod perf_buffer;
mod real;
mod ring_buffer;
mod say;
mod settings;
mod settler;
mod signals;
mod slot;
mod sys;
mod unordered;
mod watch;
