//! A function to set probes on, and where it is.

use std::io;
use std::path::PathBuf;

/// The name of [`probed`] in the symbols of its file.
pub const SYMBOL: &str = "perfweave_support_probed";

/// Does nothing that could be left out.
// SAFETY: no other function has that name.
#[unsafe(export_name = "perfweave_support_probed")]
#[inline(never)]
pub extern "C" fn probed(number: u64) -> u64 {
    std::hint::black_box(number).wrapping_mul(3)
}

/// Where [`probed`] is: its address, the file, and how far behind that file's begin it is.
pub fn place() -> io::Result<(u64, PathBuf, u64)> {
    let address = probed as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let place = maps.lines().find_map(|line| {
        // 55d0c0a00000-55d0c0a2d000 r-xp 0002c000 fe:00 1234    /path
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (from, to, offset) = (hex(from)?, hex(to)?, hex(fields.nth(1)?)?);
        (from..to).contains(&address).then(|| offset + (address - from))
    });
    let offset = place.ok_or_else(|| io::Error::other("this program is not where it is"))?;
    Ok((address, std::env::current_exe()?, offset))
}
