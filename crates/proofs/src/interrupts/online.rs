//! Lists of CPUs that the kernel gives in sysfs.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

/// The CPUs that are online. The file is kept open: it can still be read after chroot(2), without `/sys`, and out of
/// descriptors. To read it again allocates nothing while CPUs neither come nor go.
#[derive(Debug)]
pub(crate) struct Online {
    file: fs::File,
    /// In order, as of the last reading.
    pub(crate) cpus: Vec<u32>,
    /// What the file said then, and space to read it again.
    text: Vec<u8>,
    new: Vec<u8>,
}

/// Files of sysfs are at most a page.
const PAGE: usize = 64 << 10;

impl Online {
    pub(crate) fn open() -> io::Result<Self> {
        let file = fs::File::open("/sys/devices/system/cpu/online")?;
        Ok(Self { file, cpus: Vec::new(), text: Vec::with_capacity(PAGE), new: Vec::with_capacity(PAGE) })
    }

    /// Reads the list. Returns whether it has changed.
    pub(crate) fn read(&mut self) -> io::Result<bool> {
        self.new.resize(PAGE, 0);
        let len = self.file.read_at(&mut self.new, 0)?;
        self.new.truncate(len);
        if self.new == self.text {
            return Ok(false);
        }
        let text = std::str::from_utf8(&self.new).map_err(|_| io::ErrorKind::InvalidData)?;
        self.cpus = parse(text).ok_or(io::ErrorKind::InvalidData)?;
        std::mem::swap(&mut self.new, &mut self.text);
        Ok(true)
    }
}

/// The CPUs that are kept free of other work (`isolcpus`, `nohz_full`). The second file says "(null)" where there are
/// none.
pub(crate) fn isolated_cpus() -> Vec<u32> {
    let read = |name: &str| fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).ok();
    ["isolated", "nohz_full"].into_iter().filter_map(|name| parse(&read(name)?)).flatten().collect()
}

/// Reads a list such as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_may_be_sparse() {
        for (list, expected) in
            [("0", vec![0]), ("0-3,8\n", vec![0, 1, 2, 3, 8]), ("0,2,5-6", vec![0, 2, 5, 6]), ("", vec![])]
        {
            assert_eq!(parse(list), Some(expected));
        }
        assert_eq!(parse("(null)"), None);
    }

    #[test]
    fn what_has_not_changed_is_not_read_again() {
        let mut online = Online::open().unwrap();
        assert!(online.read().unwrap() && !online.cpus.is_empty());
        online.cpus.clear();
        online.text.clear();
        assert!(online.read().unwrap() && !online.cpus.is_empty());
    }
}
