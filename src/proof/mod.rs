//! Proofs that no smaller key is in flight.
//!
//! This room takes what a user chose ([`Fence`](crate::Fence)) and gives a reader one thing to begin, to ask for its
//! end, and to wait for (`Prover`). What it begins is a [`Proof`](crate::Proof): one of this room, or of a user. It
//! knows no key and no event.
//!
//! | kind | file | what ends it |
//! | --- | --- | --- |
//! | grace periods | kernel.rs and wait_thread.rs, sped up by cpu_visits.rs | a thread that waits for the kernel |
//! | writers' epochs | watch.rs, over the words of epochs.rs | each program that was inside has left |
//! | reservations | barrier.rs | each CPU has ordered its stores |
//!
//! Begin with `contract.rs`.

pub(crate) mod barrier;
pub(crate) mod contract;
mod cpu_visits;
pub(crate) mod epochs;
pub(crate) mod fence;
mod kernel;
pub(crate) mod prover;
pub(crate) mod wait_thread;
mod watch;
