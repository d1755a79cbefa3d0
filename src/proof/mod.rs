//! Proofs that no smaller key is in flight.
//!
//! This room takes what a user chose ([`Fence`](crate::Fence)) and gives a reader one thing to begin, to ask for its
//! end, and to wait for (`Prover`). What it begins is a [`Proof`](crate::Proof): a grace period of the kernel, which a
//! thread waits for and which visits to CPUs speed up, or one of a user. It knows no key and no event.
//!
//! Begin with `contract.rs`.

pub(crate) mod contract;
mod cpu_visits;
pub(crate) mod fence;
mod kernel;
pub(crate) mod prover;
pub(crate) mod wait_thread;
