//! Where a function lies in a program or library.

use crate::error::{Hint, nearest};
use object::{File, Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::fs;
use std::io;
use std::path::Path;

/// The offset of a function from the begin of an ELF file, as a uprobe takes it: the symbol's value, less `p_vaddr` and plus
/// `p_offset` of its segment (elf(5)).
pub(super) fn offset(path: &Path, symbol: &str) -> Result<u64, (io::Error, Hint)> {
    let bytes = fs::read(path).map_err(|errno| (errno, Hint::default()))?;
    let file = File::parse(&*bytes).map_err(|error| {
        (io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())), Hint::default())
    })?;
    let functions = || {
        let all = file.symbols().chain(file.dynamic_symbols());
        all.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
    };
    let Some(found) = functions().find(|function| function.name() == Ok(symbol)) else {
        let names = functions().filter_map(|function| function.name().ok().map(str::to_owned));
        let hint = nearest(symbol, names).unwrap_or_else(|| match functions().count() {
            0 => Hint("the file has no symbols: it was stripped".into()),
            count => Hint(format!("the file has {count} other functions: see nm(1), also with -D")),
        });
        return Err((io::Error::new(io::ErrorKind::NotFound, format!("no function {symbol}")), hint));
    };
    let address = found.address();
    let inside = file.segments().find_map(|segment| {
        let behind = address.checked_sub(segment.address()).filter(|behind| *behind < segment.size())?;
        let (begin, len) = segment.file_range();
        (behind < len).then(|| begin + behind)
    });
    inside.ok_or_else(|| {
        (
            io::Error::new(io::ErrorKind::InvalidData, format!("{symbol} lies in no segment of the file")),
            Hint::default(),
        )
    })
}
