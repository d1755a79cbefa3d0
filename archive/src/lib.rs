//! Archives of ordered events: Parquet files that any engine reads, asked by SQL.

pub mod clocks;
pub mod record;
pub mod schema;
