//! `%p` and the letters behind it: what the kernel prints of an address or of what lies there
//! (`Documentation/core-api/printk-formats.rst`).

use crate::value::{Scope, Value};
use perfweave::Bytes;
use std::borrow::Cow;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What a kind prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address,
    /// A function, with the offset in it or without.
    Function(bool),
    Ipv4,
    Ipv6,
    Socket,
    Mac,
    Uuid,
    /// As many bytes as the width says.
    Hex,
    Mask,
    /// A physical address.
    Physical,
}

fn kind(letters: &str) -> Option<Kind> {
    Some(match letters {
        "" | "x" | "K" => Kind::Address,
        "S" | "SR" | "F" | "B" => Kind::Function(true),
        "s" | "f" => Kind::Function(false),
        "I4" | "i4" | "I4h" | "I4n" | "I4b" | "I4l" => Kind::Ipv4,
        "I6" | "i6" | "I6c" => Kind::Ipv6,
        "M" | "MF" | "MR" | "m" | "mR" => Kind::Mac,
        "U" | "Ub" | "Ul" | "UB" | "UL" => Kind::Uuid,
        "h" | "hC" | "hD" | "hN" => Kind::Hex,
        "b" | "bl" => Kind::Mask,
        "a" | "ap" | "ad" => Kind::Physical,
        socket if socket.starts_with("IS") => Kind::Socket,
        _ => return None,
    })
}

/// Whether it is known what the kernel prints for these letters.
pub(super) fn is_known(letters: &str) -> bool {
    kind(letters).is_some()
}

/// Whether the width counts something, and is no width.
pub(super) fn counts(letters: &str) -> bool {
    matches!(kind(letters), Some(Kind::Hex | Kind::Mask))
}

/// The text for a value. Of an address whose memory no record has, the address.
pub(super) fn text(letters: &str, value: Value<'_>, count: Option<usize>, scope: Scope<'_>) -> Option<String> {
    let kind = kind(letters).unwrap_or(Kind::Address);
    let bytes = match value {
        Value::Number(number) => return Some(address(kind, number.value as u64, scope)),
        // Names that only the kernel has.
        Value::Text(text) => return Some(text.into_owned()),
        Value::Bytes(bytes) => bytes,
    };
    Some(match kind {
        // The address is not in the record.
        Kind::Address | Kind::Function(_) => return None,
        Kind::Ipv4 => ipv4(letters, array(bytes, 0)?),
        Kind::Ipv6 => ipv6(letters, array(bytes, 0)?),
        Kind::Socket => socket(letters, bytes).unwrap_or_else(|| "(einval)".into()),
        Kind::Mac => mac(letters, array(bytes, 0)?),
        Kind::Uuid => uuid(letters, array(bytes, 0)?),
        Kind::Hex => {
            let between = match letters {
                "hC" => ":",
                "hD" => "-",
                "hN" => "",
                _ => " ",
            };
            // The kernel prints no more.
            joined(&bytes.get(0..count?.min(64))?.to_vec(), between)
        }
        Kind::Mask if letters == "bl" => list(&bytes.to_vec(), count?),
        Kind::Mask => mask(&bytes.to_vec(), count?),
        Kind::Physical => format!("{:#018x}", u64::from_ne_bytes(array(bytes, 0)?)),
    })
}

fn address(kind: Kind, address: u64, scope: Scope<'_>) -> String {
    let found = if let Kind::Function(_) = kind { (scope.look)(address) } else { None };
    match (found, kind) {
        (Some(name), Kind::Function(false)) => without_offset(&name).into_owned(),
        (Some(name), _) => name,
        (None, _) => format!("{address:#x}"),
    }
}

/// `name [module]` of `name+0x1/0x2 [module]`.
fn without_offset(name: &str) -> Cow<'_, str> {
    let Some((function, rest)) = name.split_once('+') else { return name.into() };
    match rest.split_once(' ') {
        Some((_, module)) => format!("{function} {module}").into(),
        None => function.into(),
    }
}

fn array<const N: usize>(bytes: Bytes<'_>, at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.to_vec().try_into().ok()
}

fn ipv4(letters: &str, mut of: [u8; 4]) -> String {
    let is_host_little = letters.ends_with('h') && cfg!(target_endian = "little");
    if is_host_little || letters.ends_with('l') {
        of.reverse();
    }
    if letters.starts_with('i') {
        return of.map(|byte| format!("{byte:03}")).join(".");
    }
    Ipv4Addr::from(of).to_string()
}

fn ipv6(letters: &str, of: [u8; 16]) -> String {
    let address = Ipv6Addr::from(of);
    if letters.contains('c') {
        return address.to_string();
    }
    address.segments().map(|part| format!("{part:04x}")).join(if letters.starts_with('i') { "" } else { ":" })
}

/// `struct sockaddr_in` or `struct sockaddr_in6`.
fn socket(letters: &str, bytes: Bytes<'_>) -> Option<String> {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let asked = |letter| letters[2..].contains(letter);
    let port = u16::from_be_bytes(array(bytes, 2)?);
    let mut out = match bytes.u16(0)? {
        INET => Ipv4Addr::from(array::<4>(bytes, 4)?).to_string(),
        INET6 => {
            let of = ipv6(if asked('c') { "I6c" } else { "I6" }, array(bytes, 8)?);
            if ['p', 'f', 's'].into_iter().any(asked) { format!("[{of}]") } else { of }
        }
        _ => return None,
    };
    if asked('p') {
        write!(out, ":{port}").ok()?;
    }
    if bytes.u16(0)? == INET6 && asked('f') {
        write!(out, "/{}", u32::from_be_bytes(array(bytes, 4)?) & 0x0fff_ffff).ok()?;
    }
    if bytes.u16(0)? == INET6 && asked('s') {
        write!(out, "%{}", bytes.u32(24)?).ok()?;
    }
    Some(out)
}

fn mac(letters: &str, mut of: [u8; 6]) -> String {
    if letters.ends_with('R') {
        of.reverse();
    }
    let between = match letters.chars().next() {
        Some('m') => "",
        _ if letters.ends_with('F') => "-",
        _ => ":",
    };
    joined(&of, between)
}

fn uuid(letters: &str, mut of: [u8; 16]) -> String {
    // The first three numbers of a GUID are little-endian.
    if matches!(letters, "Ul" | "UL") {
        [0..4, 4..6, 6..8].into_iter().for_each(|number| of[number].reverse());
    }
    let hex = |range: std::ops::Range<usize>| joined(&of[range], "");
    let text = [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-");
    if matches!(letters, "UB" | "UL") { text.to_uppercase() } else { text }
}

fn joined(bytes: &[u8], between: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(between)
}

/// The `unsigned long`s of a mask. What is missing at the end is 0.
fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

/// So many bits in hexadecimal, in chunks of 32, as `%*pb` prints them.
pub(super) fn mask(bytes: &[u8], bits: usize) -> String {
    let (words, bits) = (words(bytes), bits.min(8 * bytes.len()));
    let chunk = |at: usize| (words[at / 2] >> (32 * (at % 2))) as u32;
    let last = bits % 32;
    let text = |at: usize| {
        if last != 0 && at == bits / 32 {
            let width = last.div_ceil(4);
            format!("{:0width$x}", chunk(at) & ((1 << last) - 1))
        } else {
            format!("{:08x}", chunk(at))
        }
    };
    (0..bits.div_ceil(32)).rev().map(text).collect::<Vec<_>>().join(",")
}

/// The set bits of so many, as `%*pbl` prints them: `0-3,7`.
fn list(bytes: &[u8], bits: usize) -> String {
    let (words, bits) = (words(bytes), bits.min(8 * bytes.len()));
    let is_set = |at: usize| at < bits && words[at / 64] >> (at % 64) & 1 == 1;
    let mut out = String::new();
    let mut at = 0;
    while at < bits {
        let from = at;
        while is_set(at) {
            at += 1;
        }
        if at > from {
            let comma = if out.is_empty() { "" } else { "," };
            // Writing into a string never fails.
            let _ = write!(out, "{comma}{from}");
            if at - 1 > from {
                let _ = write!(out, "-{}", at - 1);
            }
        }
        at += 1;
    }
    out
}
