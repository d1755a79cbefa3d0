//! Simulated rings of many shapes, and ways to read them, for the benches `merge` and `instructions`.

mod plan;
mod raw;
mod way;

pub use plan::Shape;
pub use way::{Kind, Way};
