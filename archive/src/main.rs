//! Archives of ordered events: made, and asked by SQL.

use clap::Parser;
use perfweave_archive::{record, tighten};
use std::io::ErrorKind;
use std::process::ExitCode;

/// Archives of ordered events as Parquet files, asked by SQL
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Write events of this machine into an archive
    Record(record::Options),
    /// Correct clocks of machines by messages between them: no message is received before it is sent
    Tighten(tighten::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Record(options) => {
            record::record(&options).map(|outcome| eprintln!("{outcome}")).map_err(|error| error.to_string())
        }
        Command::Tighten(options) => match tighten::tighten(&options) {
            // Who reads the corrections has seen enough.
            Err(tighten::Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(|error| error.to_string()),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("perfweave-archive: {message}");
            ExitCode::FAILURE
        }
    }
}
