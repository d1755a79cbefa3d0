//! The performance monitoring units of this kernel and machine, by name and by number: an event's `type`. Numbers from
//! `PERF_TYPE_MAX` on differ from boot to boot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/bus/event_source/devices";

fn read(path: &Path) -> io::Result<String> {
    let named = |errno: io::Error| io::Error::new(errno.kind(), format!("{}: {errno}", path.display()));
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(named)
}

fn not_understood(path: &Path, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
}

/// The number of a unit. `NotFound` if there is none of that name, or no sysfs.
pub(crate) fn number(name: &str) -> io::Result<u32> {
    let path = Path::new(DEVICES).join(name).join("type");
    let text = read(&path)?;
    text.parse().map_err(|_| not_understood(&path, &text))
}

/// Which bit of an event's `config` a unit has for a flag, as its `format` says: `config:0`.
pub(crate) fn flag(unit: &str, flag: &str) -> io::Result<u64> {
    let path = Path::new(DEVICES).join(unit).join("format").join(flag);
    let text = read(&path)?;
    let bit = text.strip_prefix("config:").and_then(|bit| bit.parse::<u32>().ok());
    bit.and_then(|bit| 1u64.checked_shl(bit)).ok_or_else(|| not_understood(&path, &text))
}

/// All units, by number. Those whose number cannot be read are left out.
pub(crate) fn all() -> io::Result<Vec<(u32, String)>> {
    let devices = PathBuf::from(DEVICES);
    let named = |errno: io::Error| io::Error::new(errno.kind(), format!("{DEVICES}: {errno}"));
    let names = fs::read_dir(devices).map_err(named)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut units: Vec<_> = names.filter_map(|name| Some((number(&name).ok()?, name))).collect();
    units.sort_unstable();
    Ok(units)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{all, flag, number};
    use perf_event_open_sys::bindings::PERF_TYPE_SOFTWARE;

    #[test]
    fn units_have_names_and_numbers() {
        assert_eq!(number("software").unwrap(), PERF_TYPE_SOFTWARE);
        let units = all().unwrap();
        assert!(units.is_sorted() && units.contains(&(PERF_TYPE_SOFTWARE, "software".into())), "{units:?}");
        let error = number("no such unit").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().contains("no such unit/type"), "{error}");
        if number("uprobe").is_ok() {
            assert_eq!(flag("uprobe", "retprobe").unwrap(), 1);
            // 32 bits wide.
            assert!(flag("uprobe", "ref_ctr_offset").is_err());
        }
    }
}
