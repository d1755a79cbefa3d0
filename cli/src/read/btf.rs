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
    let mut walk = Walk { btf: &btf, fields: Vec::new(), steps: 0 };
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

/// The types of the kernel that runs.
pub struct Kernel(pub Btf);

impl Kernel {
    pub fn read() -> Result<Self, String> {
        const FILE: &str = "/sys/kernel/btf/vmlinux";
        load(Path::new(FILE)).map(Self).map_err(|why| format!("{FILE}: {why}"))
    }

    /// Where a member is in a struct, also one of a struct without a name in it.
    pub fn offset(&self, kind: &str, member: &str) -> Result<usize, String> {
        let types = self.0.resolve_types_by_name(kind).unwrap_or_default();
        let mut offsets = types.into_iter().filter_map(|kind| self.member(&kind, member, 2));
        offsets.next().ok_or_else(|| format!("this kernel has no {kind}.{member}"))
    }

    /// `depth`: how deep structs without a name are looked into.
    fn member(&self, of: &Type, name: &str, depth: u32) -> Option<usize> {
        let (Type::Struct(of) | Type::Union(of)) = of else { return None };
        of.members.iter().find_map(|member| {
            let inside = match self.0.resolve_name(member).unwrap_or_default() {
                own if own == name => Some(0),
                own if own.is_empty() && depth > 0 => {
                    self.member(&self.0.resolve_chained_type(member).ok()?, name, depth - 1)
                }
                _ => None,
            };
            Some(member.bit_offset() as usize / 8 + inside?)
        })
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

/// The bytes of a number, if they are as many as one can have.
fn number(size: usize, name: &str) -> Result<usize, String> {
    if [1, 2, 4, 8].contains(&size) {
        Ok(size)
    } else {
        Err(format!("{name} has {size} bytes, and numbers have 1, 2, 4 or 8"))
    }
}

struct Walk<'a> {
    btf: &'a Btf,
    fields: Vec<Field>,
    /// Structs and members so far, those without fields included.
    steps: usize,
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
        self.step(prefix)?;
        for member in members {
            self.step(prefix)?;
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
            self.field(self.inner(member)?, &name, offset, depth)?;
        }
        Ok(())
    }

    /// Counts towards the end of a search that may find no fields.
    fn step(&mut self, name: &str) -> Result<(), String> {
        self.steps += 1;
        if self.steps <= 16 * MOST { Ok(()) } else { Err(format!("{name}: there are too many structs without fields")) }
    }

    /// A field of a type.
    fn field(&mut self, of: Type, name: &str, offset: usize, depth: usize) -> Result<(), String> {
        self.elements(of, name, (None, false), offset, depth)
    }

    /// A field, or as many as an array has. An array of arrays is flat: all its elements, one after the other.
    fn elements(
        &mut self,
        of: Type,
        name: &str,
        (count, is_flat): (Option<usize>, bool),
        offset: usize,
        depth: usize,
    ) -> Result<(), String> {
        let kind = match of {
            Type::Int(int) => self.int(&int, count.is_some() && !is_flat, name)?,
            Type::Ptr(_) => Kind::Unsigned(8),
            Type::Enum(one) if one.is_signed() => Kind::Signed(number(one.size(), name)?),
            Type::Enum(one) => Kind::Unsigned(number(one.size(), name)?),
            Type::Enum64(one) if one.is_signed() => Kind::Signed(8),
            Type::Enum64(_) => Kind::Unsigned(8),
            Type::Array(array) => {
                let all = count.unwrap_or(1).checked_mul(array.len()).filter(|all| *all <= 1 << 16);
                let all = all.ok_or_else(|| format!("{name} has too many elements"))?;
                // An array of no length is what follows the struct.
                return if all == 0 {
                    Ok(())
                } else {
                    self.elements(self.inner(&array)?, name, (Some(all), count.is_some()), offset, depth + 1)
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

    /// A number, or a text: an array of what the program calls `char`. Bytes by another name, such as those of an
    /// address, are numbers.
    fn int(&self, int: &btf_rs::Int, is_array: bool, name: &str) -> Result<Kind, String> {
        let size = number(int.size(), name)?;
        let is_char = || size == 1 && self.btf.resolve_name(int).is_ok_and(|name| name == "char");
        Ok(match int.is_signed() {
            _ if is_array && is_char() => Kind::Char,
            true => Kind::Signed(size),
            false => Kind::Unsigned(size),
        })
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
