//! A simulated kernel in memory, for tests without privileges, of this crate and of its users.
//!
//! A [`Kernel`] writes into rings exactly what the kernel writes (`kernel/events/ring_buffer.c`):
//!
//! - headers, fields and padding, and records that wrap;
//! - a full ring that drops the newest record and reports it with the next record that fits;
//! - writers that are interrupted on their CPU. The interrupt's records then come first in the ring although they have
//!   later times, or stay invisible until the interrupted writer is done.
//!
//! It can also do what no lawful kernel does: write any bytes anywhere and set any head.
//!
//! ```
//! use perfweave::{Merge, Order, sim};
//!
//! let kernel = sim::Kernel::new(&[0, 4]);
//! let mut merge = Merge::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
//!
//! // On CPU 4 a writer reads the clock, and is interrupted before it gets to write.
//! kernel.begin(4, 100);
//! kernel.emit(4, 130, b"interrupt");
//! kernel.write(4, b"interrupted");
//! kernel.end(4);
//! kernel.emit(0, 120, b"elsewhere");
//!
//! merge.refresh(0);
//! merge.begin_fence();
//! assert!(kernel.grace().is_over(), "no writer is inside a section");
//! merge.end_fence();
//! merge.refresh(0);
//! let times: Vec<_> = merge.batch().map(|event| event.key()).collect();
//! assert_eq!(times, [Some(100), Some(120), Some(130)]);
//! # Ok::<(), perfweave::Error>(())
//! ```
//!
//! Any thread may call any function. The ring of one CPU sees that CPU's events in the order of the calls, so writers
//! of one CPU belong on one thread, as in the kernel.
//!
//! Begin with `kernel.rs`; `cpu.rs` is a model of `ring_buffer.c`, `sections.rs` of grace periods, `ring_buffer.rs` of
//! BPF ring buffers.

mod cpu;
mod kernel;
mod ring_buffer;
mod sections;

pub use kernel::Kernel;
pub use ring_buffer::{Reservation, RingBuffer};
pub use sections::Grace;
