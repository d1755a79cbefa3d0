//! Runs a command as an unprivileged user, with these capabilities and no others.
//!
//! ```text
//! with_capabilities perfmon,bpf COMMAND ARGUMENTS...
//! ```

use perfweave_support::privilege;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(names), Some(command)) = (args.next(), args.next()) else {
        return Err("with_capabilities perfmon,bpf COMMAND ARGUMENTS...".into());
    };
    let names = names.into_string().map_err(|_| "names of capabilities are text")?;
    let capabilities = names.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    privilege::become_nobody_with(&capabilities)?;
    Err(Command::new(command).args(args).exec().into())
}

fn number(name: &str) -> Result<u32, String> {
    match name {
        "bpf" => Ok(privilege::CAP_BPF),
        "perfmon" => Ok(privilege::CAP_PERFMON),
        _ => Err(format!("{name}: not bpf or perfmon")),
    }
}
