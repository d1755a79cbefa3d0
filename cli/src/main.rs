//! `perfweave`: what happens on a Linux machine, in proven order over all CPUs.

mod args;
mod built;
mod check;
mod child;
mod convert;
mod cure;
mod deferred;
mod descriptors;
mod exact;
mod failure;
mod family;
mod hang;
mod instructions;
mod interrupt;
mod kernel;
mod key;
mod latency;
mod live;
mod missing;
mod modifiers;
mod names;
mod numbers;
mod offcpu;
mod order;
mod out;
mod output;
mod packed;
mod printable;
mod profile;
mod rcu;
mod read;
mod recent;
mod record;
mod recorded;
mod report;
mod sampled;
mod scheduler;
mod selftest;
mod session;
mod sizing;
mod stamp;
mod times;
mod trace;
mod typed;
#[cfg(feature = "dwarf")]
mod unwind;
mod verify;
mod waits;
mod wakeups;
mod why;

use clap::{CommandFactory, Parser, Subcommand};
use failure::{Failure, Outcome};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

/// Traces a Linux machine in proven order: who woke whom, what came first, and what is missing.
///
/// Events of all CPUs come out in the order in which they happened. A line says if one is late, if it leaves before its
/// place is proven, and if records are lost before it.
#[derive(Debug, Parser)]
#[command(name = "perfweave", version, max_term_width = 100, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
Exit status: 0 if all went well, 1 for an error, 2 for arguments that are not understood. A traced command's own status otherwise.
Tracing takes root, or CAP_PERFMON and a readable tracefs: `perfweave check` says what this user lacks.";

#[derive(Debug, Subcommand)]
enum Command {
    Trace(Box<trace::Args>),
    Wakeups(wakeups::Args),
    Offcpu(offcpu::Args),
    Latency(latency::Args),
    Why(why::Args),
    Profile(profile::Args),
    Record(Box<record::Args>),
    Report(report::Args),
    Convert(convert::Args),
    Verify(verify::Args),
    Read(read::Args),
    Order(order::Args),
    Check(check::Args),
    Selftest(selftest::Args),
    /// Prints what a shell needs to complete the arguments of this program
    Completions {
        shell: clap_complete::Shell,
    },
    /// Writes the man pages of this program and of each command into a folder
    Man {
        folder: std::path::PathBuf,
    },
}

/// Into memory first: the generator panics if it cannot write.
fn completions(shell: clap_complete::Shell) -> Outcome {
    let (mut text, mut out) = (Vec::new(), out::Out::new());
    clap_complete::generate(shell, &mut Cli::command(), "perfweave", &mut text);
    out.write_all(&text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The page of a command, and of each of its own commands. They are for everybody to read.
fn man(command: &clap::Command, folder: &Path) -> Result<(), Failure> {
    command.get_subcommands().filter(|one| !one.is_hide_set()).try_for_each(|one| man(one, folder))?;
    let page = clap_mangen::Man::new(command.clone());
    let (mut text, path) = (Vec::new(), folder.join(page.get_filename()));
    page.render(&mut text)?;
    let written = output::create(&path).and_then(|mut file| {
        file.write_all(&text)?;
        file.set_permissions(Permissions::from_mode(0o644))
    });
    written.map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))
}

fn main() -> ExitCode {
    if let Some(failure) = child::second_process() {
        return failure.report();
    }
    if let Some(status) = order::guard_process() {
        return status;
    }
    descriptors::raise();
    let asked = Cli::try_parse().unwrap_or_else(|error| {
        if let Some(cure) = built::cure(&error) {
            eprintln!("error: {cure}");
            std::process::exit(2);
        }
        error.exit()
    });
    let result = match asked.command {
        Command::Trace(args) => trace::run(*args),
        Command::Wakeups(args) => wakeups::run(args),
        Command::Offcpu(args) => offcpu::run(args),
        Command::Latency(args) => latency::run(args),
        Command::Why(args) => why::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Record(args) => record::run(*args),
        Command::Report(args) => report::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Verify(args) => verify::run(&args),
        Command::Read(args) => read::run(args),
        Command::Order(args) => order::run(&args),
        Command::Check(args) => check::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => {
            let mut all = Cli::command().disable_help_subcommand(true);
            all.build();
            man(&all, &folder).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|failure: Failure| failure.report())
}
