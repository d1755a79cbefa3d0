//! The ELF object that aya loads: programs of instructions, and their maps.

use super::Code;
use object::write::{Error, Object, Relocation, SectionId, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf,
};

/// A program: its name, its section, which says where it runs, and its instructions.
pub type Program = (String, String, Code);

/// `maps`: each with its name, and its kind, the bytes of a key and a value, the number of elements and flags.
pub fn object(maps: &[(&str, [u32; 5])], programs: &[Program]) -> Result<Vec<u8>, Error> {
    let endian = if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };
    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, endian);
    let section = object.add_section(Vec::new(), b"license".into(), SectionKind::Data);
    object.append_section_data(section, b"GPL\0", 1);
    let section = object.add_section(Vec::new(), b"maps".into(), SectionKind::Data);
    let mut known = Vec::new();
    for (name, definition) in maps {
        let bytes = definition.map(u32::to_ne_bytes);
        let value = object.append_section_data(section, bytes.as_flattened(), 4);
        let symbol = symbol(name, value, size_of_val(&bytes) as u64, SymbolKind::Data, section);
        known.push((*name, object.add_symbol(symbol)));
    }
    for (name, kind, code) in programs {
        let section = object.add_section(Vec::new(), kind.clone().into_bytes(), SectionKind::Text);
        let value = object.append_section_data(section, code.bytes.as_flattened(), 8);
        object.add_symbol(symbol(name, value, code.bytes.len() as u64 * 8, SymbolKind::Text, section));
        for (at, used) in &code.maps {
            let Some((_, symbol)) = known.iter().find(|(name, _)| name == used) else { continue };
            let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
            object.add_relocation(section, Relocation { offset: *at as u64 * 8, symbol: *symbol, addend: 0, flags })?;
        }
    }
    object.write()
}

fn symbol(name: &str, value: u64, size: u64, kind: SymbolKind, section: SectionId) -> Symbol {
    Symbol {
        name: name.into(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    }
}
