//! The assertions of other readers' tests, made of perfweave (`tests/README.md`).

mod aya;
mod cilium;
mod libbpf;
mod nobody;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
mod ring_buffers;
