//! Archives of ordered events: Parquet files that any engine reads, recorded, generated, and asked by SQL.

pub mod bounds;
pub mod clocks;
pub mod generate;
// The program's.
#[path = "../../cli/src/printable.rs"]
mod printable;
pub mod query;
pub mod record;
pub mod schema;
pub mod seal;
pub mod tighten;
pub mod verify;

pub use query::Failure;
