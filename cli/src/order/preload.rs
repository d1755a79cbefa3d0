//! The other way: a library that the tool loads in libbpf's place.

use crate::descriptors;
use crate::failure::Failure;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file.
const LIBRARY: &str = "libperfweave_libbpf.so";
/// Where it is, if not beside this program.
const PATH: &str = "PERFWEAVE_LIBBPF";

/// Becomes the command, which loads the library. Returns if that cannot be.
pub fn run(command: &[OsString]) -> Failure {
    match prepared(command) {
        Ok(mut command) => {
            let error = command.exec();
            Failure::new(format_args!("{}: {error}", command.get_program().to_string_lossy()))
        }
        Err(failure) => failure,
    }
}

fn prepared(words: &[OsString]) -> Result<Command, Failure> {
    let Some((name, rest)) = words.split_first() else {
        return Err(Failure::hinting("a process that runs loads no library", "leave out --how, or name a command"));
    };
    let library = library()?;
    if let Some(why) = found(name).and_then(|path| refuses(&path)) {
        let name = name.to_string_lossy();
        return Err(Failure::hinting(format_args!("{name} {why}: it loads no library"), "use --how relay"));
    }
    let mut all = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    if let Some(limit) = descriptors::before() {
        descriptors::set(limit)?;
    }
    let mut command = Command::new(name);
    command.args(rest).env("LD_PRELOAD", all);
    Ok(command)
}

/// The library: where the environment says, beside this program, or in `lib` beside its folder.
fn library() -> Result<PathBuf, Failure> {
    let own = env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent);
    let named = env::var_os(PATH).map(PathBuf::from);
    let places = match named {
        Some(path) => vec![path],
        None => folder.into_iter().flat_map(|at| [at.join(LIBRARY), at.join("../lib").join(LIBRARY)]).collect(),
    };
    let found = places.iter().find_map(|path| fs::canonicalize(path).ok().filter(|path| path.is_file()));
    found.ok_or_else(|| {
        let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        let places = places.join(" and ");
        Failure::hinting(
            format_args!("there is no {LIBRARY} at {places}"),
            format_args!("set {PATH} to its path, or use --how relay"),
        )
    })
}

/// The file of a command.
fn found(name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        return Some(name.into());
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Why a program loads no library that it does not name.
fn refuses(path: &Path) -> Option<&'static str> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    if mode & 0o6000 != 0 {
        return Some("is set-uid or set-gid");
    }
    if rustix::fs::getxattr(path, "security.capability", &mut [0u8; 0]).is_ok_and(|bytes| bytes > 0) {
        return Some("has capabilities of its own");
    }
    let mut bytes = Vec::new();
    // Program headers follow the file's header.
    File::open(path).ok()?.take(1 << 16).read_to_end(&mut bytes).ok()?;
    is_static(&bytes)?.then_some("is linked statically")
}

/// Whether an executable file of 64 bits names no loader (`PT_INTERP`). `None` of any other file: a script's interpreter
/// loads libraries.
fn is_static(bytes: &[u8]) -> Option<bool> {
    const INTERP: u32 = 3;
    let half = |at: usize| Some(usize::from(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let is_elf = bytes.starts_with(b"\x7fELF\x02");
    let at = usize::try_from(u64::from_ne_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (half(54)?, half(56)?);
    let kind = |number: usize| {
        let at = at.checked_add(number.checked_mul(size)?)?;
        Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    is_elf.then(|| !(0..count).any(|number| kind(number) == Some(INTERP)))
}

#[cfg(test)]
mod tests {
    use super::{found, is_static, refuses};
    use std::path::Path;

    #[test]
    fn programs_that_load_no_library_are_known() {
        assert_eq!(refuses(&std::env::current_exe().unwrap()), None);
        let mut elf = vec![0; 64 + 56];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        let [at, size, count] = [(32, 64u16), (54, 56), (56, 1)];
        for (at, value) in [at, size, count] {
            elf[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        if cfg!(target_endian = "little") {
            assert_eq!(is_static(&elf), Some(true));
            elf[64] = 3;
            assert_eq!(is_static(&elf), Some(false));
        }
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
        assert_eq!(found("./tool".as_ref()).as_deref(), Some(Path::new("./tool")));
        assert!(found("sh".as_ref()).is_some() && found("no such tool".as_ref()).is_none());
    }
}
