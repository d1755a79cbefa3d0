//! The fields of a record from BTF: the type information that compilers write beside BPF programs.

use super::layout::{Field, Kind, Payload};
use btf_rs::utils::elf::extract_btf_from_file;
use btf_rs::{Btf, BtfType, Member, Type};
use std::fs;
use std::path::Path;

/// The most fields of a struct, those of its structs and arrays of structs included.
const MOST: usize = 1024;

/// How deep structs may lie in structs, and names in names.
const DEPTH: usize = 16;

/// The largest file that is read: kernels with debug information have some 500 MB.
const LARGEST: u64 = 1 << 30;

/// The fields of a struct, by its name, from an object file or from BTF as it is (`/sys/kernel/btf`).
pub fn layout(path: &Path, name: &str) -> Result<Payload, String> {
    let btf = load(path).map_err(|why| format!("cannot read BTF from {}: {why}", path.display()))?;
    let types = btf.resolve_types_by_name(name).unwrap_or_default();
    let mut walk = Walk { btf: &btf, fields: Vec::new() };
    // A typedef may have the name of the struct that it stands for, or of one without a name.
    let found = types.into_iter().map(|kind| walk.real(kind)).find(|kind| matches!(kind, Ok(Type::Struct(_))));
    let Some(Ok(Type::Struct(found))) = found else {
        return Err(format!("{} has no struct {name}: {}", path.display(), walk.structs()));
    };
    walk.members(&found.members, "", 0, 0)?;
    match walk.fields.is_empty() {
        true => Err(format!("struct {name} has no fields")),
        false => Ok(Payload::new(walk.fields)),
    }
}

fn load(path: &Path) -> Result<Btf, String> {
    let there = fs::metadata(path).map_err(|error| error.to_string())?;
    if !there.is_file() || there.len() > LARGEST {
        return Err("it is no file, or too large".into());
    }
    let bytes = extract_btf_from_file(path).or_else(|error| {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        if bytes.starts_with(b"\x7fELF") { Err(error.to_string()) } else { Ok(bytes) }
    })?;
    Btf::from_bytes(&bytes).map_err(|error| error.to_string())
}

struct Walk<'a> {
    btf: &'a Btf,
    fields: Vec<Field>,
}

impl Walk<'_> {
    /// What a type is behind typedefs and qualifiers.
    fn real(&self, kind: Type) -> Result<Type, String> {
        let mut kind = kind;
        for _ in 0..DEPTH {
            let next: &dyn BtfType = match &kind {
                Type::Typedef(inner) => inner,
                Type::Const(inner) | Type::Volatile(inner) | Type::Restrict(inner) => inner,
                Type::TypeTag(inner) => inner,
                _ => return Ok(kind),
            };
            kind = self.btf.resolve_chained_type(next).map_err(|error| error.to_string())?;
        }
        Err("names stand for names without an end".into())
    }

    fn inner(&self, outer: &dyn BtfType) -> Result<Type, String> {
        self.real(self.btf.resolve_chained_type(outer).map_err(|error| error.to_string())?)
    }

    /// The members of a struct or union that begins at an offset.
    fn members(&mut self, members: &[Member], prefix: &str, begin: usize, depth: usize) -> Result<(), String> {
        if depth > DEPTH {
            return Err(format!("{prefix}: structs lie in structs too deep"));
        }
        for member in members {
            let name = self.btf.resolve_name(member).unwrap_or_default();
            let name = match (prefix, name.as_str()) {
                ("", _) => name,
                // Members of a struct without a name are members of the struct around it.
                (_, "") => prefix.to_owned(),
                _ => format!("{prefix}.{name}"),
            };
            if member.bitfield_size().is_some_and(|bits| bits > 0) || !member.bit_offset().is_multiple_of(8) {
                return Err(format!("{name} is a bit field, which is not read: use --format"));
            }
            let offset = begin + member.bit_offset() as usize / 8;
            self.field(self.inner(member)?, &name, None, offset, depth)?;
        }
        Ok(())
    }

    /// A field of a type, or as many as an array has.
    fn field(&mut self, of: Type, name: &str, count: Option<usize>, offset: usize, depth: usize) -> Result<(), String> {
        let kind = match of {
            Type::Int(int) if int.size() > 8 => {
                return Err(format!("{name} has {} bytes, and 8 is the most", int.size()));
            }
            Type::Int(int) => self.int(&int, count.is_some()),
            Type::Ptr(_) => Kind::Unsigned(8),
            Type::Enum(one) if one.is_signed() => Kind::Signed(one.size()),
            Type::Enum(one) => Kind::Unsigned(one.size()),
            Type::Enum64(one) if one.is_signed() => Kind::Signed(8),
            Type::Enum64(_) => Kind::Unsigned(8),
            Type::Array(array) => {
                let all = count.unwrap_or(1).checked_mul(array.len()).filter(|all| *all <= 1 << 16);
                let all = all.ok_or_else(|| format!("{name} has too many elements"))?;
                // An array of no length is what follows the struct.
                return if all == 0 {
                    Ok(())
                } else {
                    self.field(self.inner(&array)?, name, Some(all), offset, depth + 1)
                };
            }
            Type::Struct(inner) | Type::Union(inner) => {
                for index in 0..count.unwrap_or(1) {
                    let name = if count.is_some() { format!("{name}[{index}]") } else { name.to_owned() };
                    self.members(&inner.members, &name, offset + index * inner.size(), depth + 1)?;
                }
                return Ok(());
            }
            other => return Err(format!("{name} is a {}, which is not read: use --format", other.name())),
        };
        if self.fields.len() == MOST || depth > DEPTH {
            return Err(format!("{name}: there are more than {MOST} fields"));
        }
        self.fields.push(Field { name: name.into(), kind, count, offset });
        Ok(())
    }

    fn int(&self, int: &btf_rs::Int, is_array: bool) -> Kind {
        // Compilers say `char` by its name. As one byte it is a number.
        let is_char = int.is_char() || self.btf.resolve_name(int).is_ok_and(|name| name == "char");
        match int.is_signed() {
            _ if is_char && is_array => Kind::Char,
            true => Kind::Signed(int.size()),
            false => Kind::Unsigned(int.size()),
        }
    }

    /// The names of structs, as far as they fit a line.
    fn structs(&self) -> String {
        let named = |kind: Type| match kind {
            Type::Struct(one) => self.btf.resolve_name(&one).ok().filter(|name| !name.is_empty()),
            _ => None,
        };
        let (first, last) = self.btf.base().type_id_range();
        let types = (first..=last).filter_map(|id| self.btf.resolve_type_by_id(id).ok());
        let names: Vec<_> = types.filter_map(named).take(13).collect();
        match names.len() {
            0 => "there is none".into(),
            13 => format!("among others there are {}", names[..12].join(", ")),
            _ => format!("there are {}", names.join(", ")),
        }
    }
}
