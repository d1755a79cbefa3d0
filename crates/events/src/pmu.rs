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

/// The bit of an event's `config` for a flag of a unit, as its `format` says: `config:0`.
pub(crate) fn flag(unit: &str, flag: &str) -> io::Result<u64> {
    let path = Path::new(DEVICES).join(unit).join("format").join(flag);
    let text = read(&path)?;
    let bit = text.strip_prefix("config:").and_then(|bit| bit.parse::<u32>().ok());
    bit.and_then(|bit| 1u64.checked_shl(bit)).ok_or_else(|| not_understood(&path, &text))
}

/// The values of a PMU event's `config`, `config1` and `config2`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Config(pub(crate) [u64; 3]);

/// The values of terms such as `event=0x3c,umask=1` or `cache-misses` for a unit. `NotFound` for a term that it does
/// not have.
pub(crate) fn config(unit: &str, terms: &str) -> io::Result<Config> {
    let mut config = Config::default();
    config_in(&Path::new(DEVICES).join(unit), terms, &mut config, true)?;
    Ok(config)
}

fn config_in(unit: &Path, terms: &str, config: &mut Config, names: bool) -> io::Result<()> {
    for term in terms.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let (name, value) = term.split_once('=').map_or((term, None), |(name, value)| (name, Some(value)));
        // A file name, which must not lead to another folder.
        if name.contains('/') {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{name}: no event and no field has a slash in its name"),
            ));
        }
        if value.is_none() && names {
            // A term without a value is an event, or else a flag.
            match read(&unit.join("events").join(name)) {
                Ok(terms) => {
                    config_in(unit, &terms, config, false)?;
                    continue;
                }
                Err(errno) if errno.kind() == io::ErrorKind::NotFound => {}
                Err(errno) => return Err(errno),
            }
        }
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{term}: no number"));
        let value = match value.map(|value| (value.strip_prefix("0x"), value)) {
            None => 1,
            Some((Some(hex), _)) => u64::from_str_radix(hex, 16).map_err(|_| wrong())?,
            Some((None, value)) => value.parse().map_err(|_| wrong())?,
        };
        let format = match name {
            "config" | "config1" | "config2" => format!("{name}:0-63"),
            name => read(&unit.join("format").join(name))?,
        };
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{term}: {what} {format}"));
        match spread(&format, value) {
            None => return Err(invalid("the kernel's format is not understood:")),
            Some((_, _, left)) if left != 0 => return Err(invalid("the value is too large for")),
            Some((word, bits, _)) => config.0[word] |= bits,
        }
    }
    Ok(())
}

/// Distributes a value over the bits of a format such as `config1:0-7,32`: which word, the bits in it, and the rest of
/// the value.
fn spread(format: &str, mut value: u64) -> Option<(usize, u64, u64)> {
    let (word, ranges) = format.split_once(':')?;
    let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
    let mut bits = 0;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        let width = last.checked_sub(first)?.checked_add(1)?;
        let mask = u64::MAX.checked_shr(64u32.checked_sub(width)?)?;
        bits |= (value & mask).checked_shl(first)?;
        value = value.checked_shr(width).unwrap_or(0);
    }
    Some((word, bits, value))
}

/// The names in a unit's folders of events and of fields.
pub(crate) fn terms(unit: &str) -> impl Iterator<Item = String> {
    let folders = ["events", "format"].map(|folder| fs::read_dir(Path::new(DEVICES).join(unit).join(folder)));
    folders.into_iter().flatten().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok())
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

#[cfg(test)]
mod tests {
    use super::{Config, all, config_in, flag, number, spread};
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
    #[test]
    fn values_go_where_formats_say() {
        assert_eq!(spread("config:0-7", 0x3c), Some((0, 0x3c, 0)));
        assert_eq!(spread("config:0-7", 0x13c), Some((0, 0x3c, 1)));
        assert_eq!(spread("config:0-7,32-35", 0xabc), Some((0, 0xa_0000_00bc, 0)));
        assert_eq!(spread("config2:21", 1), Some((2, 1 << 21, 0)));
        assert_eq!(spread("config1:0-63", u64::MAX), Some((1, u64::MAX, 0)));
        for wrong in ["", "config", "config3:0", "config:x", "config:7-0", "config:0-64", "config:64"] {
            assert_eq!(spread(wrong, 1), None, "{wrong}");
        }
    }

    /// A unit as real hardware has it and a virtual machine lacks it.
    #[test]
    fn terms_are_events_and_fields() {
        let unit = std::env::temp_dir().join(format!("perfweave-pmu-{}", std::process::id()));
        for (folder, files) in [
            ("events", &[("cache-misses", "event=0x2e,umask=0x41\n")][..]),
            (
                "format",
                &[
                    ("event", "config:0-7\n"),
                    ("umask", "config:8-15\n"),
                    ("inv", "config:23\n"),
                    ("ldlat", "config1:0-15\n"),
                ],
            ),
        ] {
            std::fs::create_dir_all(unit.join(folder)).unwrap();
            for (name, text) in files {
                std::fs::write(unit.join(folder).join(name), text).unwrap();
            }
        }
        let config = |terms: &str| {
            let mut config = Config::default();
            config_in(&unit, terms, &mut config, true).map(|()| config.0)
        };
        assert_eq!(config("cache-misses").unwrap(), [0x412e, 0, 0]);
        assert_eq!(config("event=0x3c,umask=1,inv,ldlat=30").unwrap(), [0x80_013c, 30, 0]);
        assert_eq!(config("config=0x1234,config2=7").unwrap(), [0x1234, 0, 7]);
        assert_eq!(config("cache-mises").unwrap_err().kind(), std::io::ErrorKind::NotFound);
        assert!(config("event=0x13c").unwrap_err().to_string().contains("too large for config:0-7"));
        assert!(config("event=x").unwrap_err().to_string().contains("no number"));
        std::fs::remove_dir_all(unit).unwrap();
    }
}
