//! Command lines of the examples.

use std::error::Error;
use std::time::Duration;

/// What was given on the command line.
#[derive(Debug)]
pub struct Args {
    left: pico_args::Arguments,
    help: &'static str,
}

impl Args {
    /// Takes the command line; prints `help` and ends the program if that is asked for.
    pub fn new(help: &'static str) -> Self {
        let mut left = pico_args::Arguments::from_env();
        if left.contains(["-h", "--help"]) {
            println!("{help}");
            std::process::exit(0);
        }
        Self { left, help }
    }

    /// Whether a flag was given.
    pub fn flag(&mut self, name: &'static str) -> bool {
        self.left.contains(name)
    }

    /// The value of an option, if it was given.
    pub fn value<T>(
        &mut self,
        name: &'static str,
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Box<dyn Error>> {
        Ok(self.left.opt_value_from_fn(name, parse)?)
    }

    /// `--seconds N`, or so many.
    pub fn seconds(&mut self, default: f64) -> Result<Duration, Box<dyn Error>> {
        let parse = |text: &str| {
            let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
            Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
        };
        let given = self.value("--seconds", parse)?;
        Ok(given.unwrap_or(Duration::from_secs_f64(default)))
    }

    /// An error, with the help, if there is more on the command line than was asked for.
    pub fn finish(self) -> Result<(), Box<dyn Error>> {
        match self.left.finish().as_slice() {
            [] => Ok(()),
            [unknown, ..] => Err(format!("{unknown:?} is not understood\n{}", self.help).into()),
        }
    }
}
