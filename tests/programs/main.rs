//! The examples as programs, and compared with perf(1).

mod examples;
mod perf_agrees;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
