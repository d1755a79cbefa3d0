//! A tool that reads rings one after the other: [`perfweave_support::naive`].
//!
//! ```text
//! naive_tool own|aya BYTES      reads
//! naive_tool opens STEPS        writes: opens files, which other tools trace
//! ```

use perfweave_support::cpus::online;
use perfweave_support::naive::{self, By};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, ..] = online()[..] else { return Err("it takes two CPUs".into()) };
    if args.first().is_some_and(|word| word == "opens") {
        naive::opens([first, second], args.get(1).ok_or("opens STEPS")?.parse()?);
        return Ok(());
    }
    let by = match args.first().map(String::as_str) {
        Some("own") => By::Own,
        #[cfg(feature = "aya")]
        Some("aya") => By::Aya,
        _ => return Err("naive_tool own|aya BYTES, the latter with the feature of that name".into()),
    };
    let bytes = args.get(1).map_or(Ok(1 << 18), |text| text.parse())?;
    Ok(naive::run(by, [first, second], bytes)?)
}
