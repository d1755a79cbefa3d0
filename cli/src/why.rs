//! Where the time went, and through whom.

mod path;
