//! Tests of memory: the allocator of this process counts.

mod bounds;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
mod steady;

#[global_allocator]
static ALLOCATOR: perfweave_support::counting::Counting = perfweave_support::counting::Counting;
