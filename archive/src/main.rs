//! Archives of ordered events: made, and asked by SQL.

use clap::Parser;
use perfweave_archive::record;
use std::process::ExitCode;

/// Archives of ordered events as Parquet files, asked by SQL
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Write events of this machine into an archive
    Record(record::Options),
}

fn main() -> ExitCode {
    let Command::Record(options) = Command::parse();
    match record::record(&options) {
        Ok(outcome) => {
            eprintln!("{outcome}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("perfweave-archive: {error}");
            ExitCode::FAILURE
        }
    }
}
