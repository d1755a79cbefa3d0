//! A tool that reads rings one after the other: [`perfweave_support::naive`].
//!
//! ```text
//! naive_tool own|aya BYTES
//! ```

use perfweave_support::cpus::online;
use perfweave_support::naive::{self, By};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let by = match args.first().map(String::as_str) {
        Some("own") => By::Own,
        #[cfg(feature = "aya")]
        Some("aya") => By::Aya,
        _ => return Err("naive_tool own|aya BYTES, the latter with the feature of that name".into()),
    };
    let bytes = args.get(1).map_or(Ok(1 << 18), |text| text.parse())?;
    let [first, second, ..] = online()[..] else { return Err("it takes two CPUs".into()) };
    Ok(naive::run(by, [first, second], bytes)?)
}
