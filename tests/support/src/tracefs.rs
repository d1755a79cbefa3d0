//! Finding or mounting tracefs, and reading where a tracepoint's fields are.

use nix::mount::{MsFlags, mount};
use std::io;
use std::path::PathBuf;

/// Where tracefs is mounted; mounts it if it is not, for which one must be root.
pub fn find_or_mount() -> io::Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (fields.get(2) == Some(&"tracefs")).then(|| PathBuf::from(fields[1]))
    });
    if let Some(path) = mounted {
        return Ok(path);
    }
    let path = PathBuf::from("/sys/kernel/tracing");
    match mount(Some("tracefs"), &path, Some("tracefs"), MsFlags::empty(), None::<&str>) {
        Ok(()) | Err(nix::errno::Errno::EBUSY) => Ok(path),
        Err(error) => Err(io::Error::other(format!("tracefs is not mounted, and cannot be: {error}"))),
    }
}

/// What a tracepoint writes.
#[derive(Debug, Clone)]
pub struct Format {
    /// Its number, which is also the first field of its data, a u16.
    pub id: u16,
    fields: Vec<(String, usize)>,
}

impl Format {
    /// Reads `category:name`'s.
    pub fn read(name: &str) -> io::Result<Self> {
        let path = find_or_mount()?.join("events").join(name.replace(':', "/")).join("format");
        let text =
            std::fs::read_to_string(&path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        Self::parse(&text).ok_or_else(|| io::Error::other(format!("{}: not understood", path.display())))
    }

    /// Reads the text of a `format` file.
    pub fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID: "))?.trim().parse().ok()?;
        let fields = text.lines().filter_map(|line| {
            // field:char comm[16];	offset:8;	size:16;	signed:0;
            let mut parts = line.trim().strip_prefix("field:")?.split(';');
            let name = parts.next()?.rsplit(' ').next()?.split('[').next()?;
            let offset = parts.next()?.trim().strip_prefix("offset:")?.parse().ok()?;
            Some((name.to_owned(), offset))
        });
        Some(Self { id, fields: fields.collect() })
    }

    /// Where a field begins, in bytes.
    pub fn offset(&self, field: &str) -> io::Result<usize> {
        let found = self.fields.iter().find(|(name, _)| name == field);
        found.map(|(_, offset)| *offset).ok_or_else(|| io::Error::other(format!("no field {field}")))
    }
}
