//! Finds a function in a program or library.

use crate::error::nearest;
use crate::sys::file::{self, Found};
use object::{File, Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The longest file that is read, in bytes. The whole file is in memory while a function is looked up.
const LONGEST: u64 = 1 << 30;

/// All of a regular file.
fn read(path: &Path) -> Result<Vec<u8>, (io::Error, String)> {
    let named = |kind, what: String| (io::Error::new(kind, format!("{}: {what}", path.display())), String::new());
    let failed = |errno: io::Error| named(errno.kind(), errno.to_string());
    let wrong = |what: &str| named(io::ErrorKind::InvalidInput, format!("it is {what}, and no program or library"));
    let (file, len) = match file::open(path).map_err(failed)? {
        Found::File(_, len) if len > LONGEST => {
            let hint =
                "give the function's place in the file to RingOptions::uprobe: nm(1) and readelf(1) tell it".into();
            let what = format!("it is {len} bytes long, and no more than {LONGEST} are read to look for a function");
            return Err((named(io::ErrorKind::FileTooLarge, what).0, hint));
        }
        Found::File(file, len) => (file, len as usize),
        Found::Directory => return Err(wrong("a directory")),
        Found::Other => return Err(wrong("a pipe, a socket or a device")),
    };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    bytes.resize(len, 0);
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

/// The offset of a function from the start of an ELF file, as a uprobe takes it: the symbol's value, less `p_vaddr` and plus
/// `p_offset` of its segment (elf(5)).
pub(super) fn offset(path: &Path, symbol: &str) -> Result<u64, (io::Error, String)> {
    let bytes = read(path)?;
    let file = File::parse(&*bytes).map_err(|error| {
        (io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())), String::new())
    })?;
    let functions = || {
        let all = file.symbols().chain(file.dynamic_symbols());
        all.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
    };
    let Some(found) = functions().find(|function| function.name() == Ok(symbol)) else {
        let names = functions().filter_map(|function| function.name().ok().map(str::to_owned));
        let hint = nearest(symbol, names).unwrap_or_else(|| match functions().count() {
            0 => "the file has no symbols: it was stripped".into(),
            count => format!("the file has {count} other functions: see nm(1), also with -D"),
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
        (io::Error::new(io::ErrorKind::InvalidData, format!("{symbol} lies in no segment of the file")), String::new())
    })
}
