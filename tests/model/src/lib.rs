//! The reader's state machine as a small model: when it refreshes, begins and ends fences, moves its frontier, follows
//! CPUs and flushes, or gives a flush up. The litmus tests (`docs/litmus`) prove what one look at a ring may conclude;
//! this is the machinery above.
//!
//! [`explore`](mod@explore) visits every state of a small machine, and finds a way to break the order in each broken
//! machine. [`traces`](mod@traces) runs the crate's own reader on simulated rings and asks the model whether it could
//! have done the same.

#![cfg(test)]

mod explore;
mod machine;
mod traces;
