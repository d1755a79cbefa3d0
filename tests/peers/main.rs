//! What our peers assert of their readers, asserted of ours (`tests/README.md`).

mod aya;
mod cilium;
mod libbpf;
mod nobody;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
mod ring_buffers;
