//! What mounts: expedited fences, and where tracefs is. Other tests see none of it.

mod fences;
mod tracefs;
