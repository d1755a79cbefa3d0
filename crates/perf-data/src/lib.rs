//! Recordings of perf(1): `perf.data` files as rings of [`perfweave`], and its streams as `perf.data` files.
//!
//! [`open`] reads what `perf record` wrote, here or on another machine. The rings that it gives go into a
//! [`Reader`](perfweave::Reader) like those of a kernel, so the same program reads
//! live and recorded events. A [`Writer`] takes events as they are yielded. `perf script` and `perf report` read its
//! file in the same order.
//!
//! ```
//! use perfweave::{Ended, Hold, Order, Reader, sim};
//! use perfweave_perf_data as perf_data;
//! use std::time::Duration;
//!
//! # let path = std::env::temp_dir().join(format!("perfweave-doc-{}.data", std::process::id()));
//! // Two CPUs write, and the merged events are written to a file.
//! let kernel = sim::Kernel::new(&[0, 1]);
//! kernel.emit(1, 20, b"second");
//! kernel.emit(0, 10, b"first");
//! let rings = kernel.rings();
//! let mut writer = perf_data::Writer::create(&path, &rings)?;
//! let mut reader = Reader::new(rings, Order::new().hold(Hold::None))?;
//! while let Some(event) = reader.next_timeout(Duration::ZERO)? {
//!     writer.write(&event.event())?;
//! }
//! assert_eq!(writer.finish()?.records, 2);
//!
//! // The recording is merged like the rings.
//! let mut reader = Reader::new(perf_data::open(&path)?, Order::new())?;
//! # std::fs::remove_file(&path).unwrap();
//! let mut read = Vec::new();
//! while let Some(event) = reader.next()? {
//!     read.push((event.key(), event.cpu()));
//! }
//! assert_eq!(reader.ended(), Some(Ended::Recording));
//! assert_eq!(read, [(Some(10), Some(0)), (Some(20), Some(1))]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Order
//!
//! A recording is complete: nothing is in flight. So no [`Hold`](perfweave::Hold) rule waits. Every event with a key is
//! [`Certainty::Proven`](perfweave::Certainty::Proven) under any rule, and nothing is late. An event without a key
//! shares the certainty of the event before it in its ring. If there is none, nothing orders it, and it is
//! [`Certainty::Assumed`](perfweave::Certainty::Assumed). When all events were yielded, the stream has ended: a reader
//! gives `None` ([`Ended::Recording`](perfweave::Ended::Recording)). Times are not compared with this machine's clocks.
//!
//! # Certificates
//!
//! A written recording has a chain of hashes among its records, and says in it what is proven and what is missing
//! ([`Writer`](Writer#the-certificate)). [`verify`] computes all of that anew from the records, compares, and names the
//! bytes and times that nothing vouches for.
//!
//! # Features
//!
//! `zstd` reads recordings of `perf record -z` too. None is on by default.
//!
//! # How it is made
//!
//! This package takes files and gives rings in memory, by [`perfweave::Recording`]. It also takes events and gives
//! files. It knows the format of `perf.data` (`tools/perf/Documentation/perf.data-file-format.txt`) and nothing about
//! order. It uses the core by its public API alone. Begin with `open.rs` and `writer.rs`. Certificates are beside that:
//! `chain.rs` knows bytes, hashes and counts, and the writer gives it what it writes. Nothing uses `verify.rs`.
//!
//! It parses the format itself, and checks bytes before it allocates memory for them. Tests compare it with the crate
//! linux-perf-data. That crate sorts records itself, stops at the first bad record, and allocates memory by counts in
//! the file.

#![forbid(unsafe_code)]
// docs.rs says at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attrs;
mod build_id;
mod called;
mod chain;
mod created;
mod file;
mod lost;
mod machine;
mod members;
mod metadata;
mod names;
mod noted;
mod open;
mod output;
mod pieces;
mod procfs;
mod sections;
mod sorting;
mod tracing;
#[cfg(feature = "zstd")]
mod unpack;
mod verify;
mod words;
mod writer;

pub use build_id::build_ids;
pub use created::create;
pub use members::Members;
pub use names::Names;
pub use open::{aux, open, unfinished};
pub use tracing::kernel_strings;
pub use verify::{Claims, Doubt, DoubtKind, Found, Verdict, verify, verify_numbered};
pub use writer::{Writer, Written};

/// The README's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// What the rings of a recording keep of its file.
#[derive(Debug)]
struct Facts {
    features: metadata::Features,
    /// Why the recording may lack events at its end.
    unfinished: Option<perfweave::Error>,
    /// Bytes of AUX data.
    aux: u64,
}
