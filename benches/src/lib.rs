//! Simulated rings of many shapes, and the ways to read them that are compared: for `merge` and `instructions`.

mod plan;
mod raw;
mod way;

pub use plan::Shape;
pub use way::{Kind, Way};
