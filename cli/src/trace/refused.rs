//! Options of strace(1) that fingers know and `trace` does not have: each says what to type instead.

use crate::failure::Failure;
use clap::{ArgAction, Args};

/// Options that are accepted without an effect, or refused with what to type instead.
#[derive(Debug, Clone, Args)]
pub struct Refused {
    #[arg(long = "instruction-pointer", hide = true)]
    instruction: bool,
    #[arg(short = 'n', long = "syscall-number", hide = true)]
    number: bool,
    #[arg(short = 'A', long = "output-append-mode", hide = true)]
    append: bool,
    #[arg(short = 'E', long = "env", hide = true)]
    env: Vec<String>,
    #[arg(short = 'I', long = "interruptible", hide = true)]
    interruptible: Option<String>,
    #[arg(short = 'O', long = "summary-syscall-overhead", hide = true)]
    overhead: Option<String>,
    #[arg(short = 'U', long = "summary-columns", hide = true)]
    columns: Option<String>,
    #[arg(short = 'X', long = "const-print-style", hide = true)]
    style: Option<String>,
    #[arg(long, hide = true)]
    fault: Option<String>,
    #[arg(long, hide = true)]
    inject: Option<String>,
    /// Accepted: structs are printed as far as they are copied.
    #[arg(short = 'v', long = "no-abbrev", hide = true)]
    verbose: bool,
    /// Accepted: the times of the summary are those that pass on a clock at the wall.
    #[arg(short = 'w', long = "summary-wall-clock", hide = true)]
    wall: bool,
    /// Accepted: perfweave is never in between a program and its parent.
    #[arg(short = 'D', long = "daemonize", hide = true, action = ArgAction::Count)]
    daemonize: u8,
    /// Accepted: the kernel always filters.
    #[arg(long = "seccomp-bpf", hide = true)]
    seccomp: bool,
}

impl Refused {
    /// An error if one of them was used that means something.
    pub fn check(&self) -> Result<(), Failure> {
        let variable = self.env.first().map_or("", String::as_str);
        let env = format!("perfweave trace env {variable} COMMAND");
        let used = [
            (self.instruction, "--instruction-pointer", "-k says where calls come from"),
            (self.number, "-n", "perfweave trace -e raw_syscalls:sys_enter COMMAND prints numbers"),
            (self.append, "-A", "perfweave trace COMMAND >> FILE"),
            (!self.env.is_empty(), "-E", env.as_str()),
            (self.interruptible.is_some(), "-I", "leave it out: Ctrl-C ends the trace, with its summary"),
            (self.overhead.is_some(), "-O", "leave it out: the times are the kernel's own"),
            (self.columns.is_some(), "-U", "leave it out: the table has all columns; --json | jq chooses"),
            (self.style.is_some(), "-X", "--json has the numbers beside the text"),
            (self.fault.is_some(), "--fault", "strace --fault: perfweave changes no call"),
            (self.inject.is_some(), "--inject", "strace --inject: perfweave changes no call"),
        ];
        match used.into_iter().find(|(is_used, ..)| *is_used) {
            Some((_, option, instead)) => Err(Failure::hinting(format_args!("{option} is strace's alone"), instead)),
            None => Ok(()),
        }
    }
}
