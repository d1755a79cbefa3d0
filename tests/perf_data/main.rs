//! Recordings of perf(1): what it recorded is merged as it sorts it, and what was merged is shown as it was written.

mod bounds;
mod failing;
mod hostile;
mod limits;
mod memory;
mod peer;
mod perf;
mod reading;
mod writing;
