//! Reading where a tracepoint's fields are.

use std::fmt::Display;
use std::io;

/// What a tracepoint writes.
#[derive(Debug, Clone)]
pub struct Format {
    /// Its number, which is also the first field of its data, a u16.
    pub id: u16,
    fields: Vec<(String, usize)>,
}

impl Format {
    /// Of a text that may be missing.
    pub fn of<E: Display>(text: Result<String, E>) -> io::Result<Self> {
        let text = text.map_err(|error| io::Error::other(error.to_string()))?;
        Self::parse(&text).ok_or_else(|| io::Error::other(format!("not understood: {text}")))
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
