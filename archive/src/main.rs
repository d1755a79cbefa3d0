//! Archives of ordered events: made, and asked by SQL.

// The program's, as in the library.
#[path = "../../cli/src/printable.rs"]
mod printable;

use clap::Parser;
use nix::sys::stat::{Mode, umask};
use perfweave_archive::{generate, query, record, tighten, verify};
use printable::say;
use std::io::ErrorKind;
use std::process::ExitCode;
use tokio::runtime::Runtime;

/// Archives of ordered events as Parquet files, asked by SQL
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Write events of this machine into an archive
    Record(record::Options),
    /// Ask an archive
    Query(query::Options),
    Verify(verify::Options),
    /// Correct clocks of machines by messages between them: no message is received before it is sent
    Tighten(tighten::Options),
    /// Write an archive with the shapes of a real one, to try queries on
    Generate(generate::Options),
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            say(format_args!("perfweave-archive: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether all holds, where that is asked. What goes wrong, in words.
fn run(command: Command) -> Result<bool, String> {
    let runtime = || Runtime::new().map_err(|error| format!("the runtime cannot begin: {error}"));
    let done = match command {
        Command::Verify(options) => return verify::run(&options).map_err(|error| error.to_string()),
        // It has threads of its own, so that events never wait for a store.
        Command::Record(options) => match record::record(&options) {
            Err(record::Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.map(|outcome| told(&outcome)).map_err(|error| error.to_string()),
        },
        Command::Query(options) => {
            own_files();
            runtime()?.block_on(query::query(&options)).map_err(|error| error.to_string())
        }
        Command::Tighten(options) => match tighten::tighten(&options) {
            Err(tighten::Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(|error| error.to_string()),
        },
        Command::Generate(options) => {
            own_files();
            let made = runtime()?.block_on(generate::generate(&options)).map_err(|error| error.to_string())?;
            eprintln!("{} rows of events in {} files of {} bytes", made.rows, made.files, made.bytes);
            Ok(())
        }
    };
    done.map(|()| true)
}

/// Says how a recording went.
fn told(outcome: &record::Outcome) {
    say(format_args!("{outcome}"));
    if let Some(hash) = outcome.written.hash {
        say(format_args!("hash {hash}"));
    }
}

/// Files that are made from now on are for this user alone, as those of a recording are. Engines take no mode for
/// theirs. `record` does without: its command makes files as it likes.
fn own_files() {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
}
