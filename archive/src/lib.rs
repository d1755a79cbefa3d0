//! Archives of ordered events: Parquet files that any engine reads, asked by SQL.

pub mod bounds;
pub mod clocks;
pub mod record;
pub mod schema;
pub mod tighten;
