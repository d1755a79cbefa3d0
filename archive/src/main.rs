//! Archives of ordered events: made, and asked by SQL.

use clap::Parser;
use perfweave_archive::{Failure, generate, query};
use std::process::ExitCode;

/// Archives of ordered events as Parquet files, asked by SQL
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Ask an archive
    Query(query::Options),
    /// Write an archive with the shapes of a real one, to try queries on
    Generate(generate::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Command::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        // Who reads the answer has seen enough.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("perfweave-archive: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Query(options) => query::query(&options).await,
        Command::Generate(options) => {
            let made = generate::generate(&options).await?;
            eprintln!("{} rows of events in {} files of {} bytes", made.rows, made.files, made.bytes);
            Ok(())
        }
    }
}
