//! Recordings of perf(1): a merge of its recording has perf's order, and perf shows a written recording in the order of
//! writing.

mod bounds;
mod collections;
mod failing;
mod hostile;
mod limits;
mod memory;
mod names;
mod packed;
mod peer;
mod perf;
mod reading;
mod unfinished;
mod verify;
mod writing;
