//! Runtimes that have locks of their own: who owns one is in their own memory, and only a tool of theirs knows it.

use std::fs::{self, File};
use std::io::Read;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Python,
    Java,
    Go,
}

impl Runtime {
    /// That of a process, by the files that it has mapped, and by its program.
    pub fn of(pid: u32) -> Option<Self> {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut files = maps.split(|byte| *byte == b'\n').filter_map(|line| line.rsplit(|byte| *byte == b'/').next());
        let mut begin = Vec::new();
        files.find_map(by_name).or_else(|| {
            File::open(format!("/proc/{pid}/exe")).ok()?.take(BEGIN).read_to_end(&mut begin).ok()?;
            is_go(&begin).then_some(Self::Go)
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Java => "Java",
            Self::Go => "Go",
        }
    }

    /// What to type to be told.
    pub fn ask(self, pid: u32) -> String {
        match self {
            Self::Python => format!("py-spy dump -p {pid}"),
            Self::Java => format!("jstack {pid}"),
            Self::Go => format!("dlv attach {pid}, then goroutines -t"),
        }
    }
}

/// By the name of a file that it has mapped.
fn by_name(name: &[u8]) -> Option<Runtime> {
    // It may have been replaced by a newer one meanwhile.
    match name.strip_suffix(b" (deleted)").unwrap_or(name) {
        b"libjvm.so" => Some(Runtime::Java),
        name if name.starts_with(b"libpython") => Some(Runtime::Python),
        // A program that has the library in it: python3.11.
        name if name
            .strip_prefix(b"python")
            .is_some_and(|version| version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')) =>
        {
            Some(Runtime::Python)
        }
        _ => None,
    }
}

/// So much of a program is read: its notes are there.
const BEGIN: u64 = 1 << 14;

/// Whether a program has the note that Go's linker writes: `ELF_NOTE_GOBUILDID_TAG` (cmd/link/internal/ld/elf.go).
fn is_go(begin: &[u8]) -> bool {
    const NAMED: u32 = 4;
    const KIND: u32 = 4;
    begin.windows(16).step_by(4).any(|note| {
        let word = |at: usize| u32::from_ne_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]]);
        word(0) == NAMED && word(8) == KIND && &note[12..] == b"Go\0\0"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_known_by_what_it_has_mapped() {
        let of = |name: &str| by_name(name.as_bytes());
        let all = ["python3.11", "python", "libpython3.12.so.1.0", "libjvm.so", "python-config", "bash", ""].map(of);
        let [python, java] = [Runtime::Python, Runtime::Java].map(Some);
        assert_eq!(all, [python, python, python, java, None, None, None]);
        assert_eq!(["python3.11 (deleted)", "libjvm.so (deleted)"].map(of), [python, java]);
    }

    #[test]
    fn a_program_of_go_has_its_note() {
        let note = [&4u32.to_ne_bytes()[..], &83u32.to_ne_bytes(), &4u32.to_ne_bytes(), b"Go\0\0", &[7; 83]].concat();
        let program = [&[0x7f; 64][..], &note].concat();
        assert!(is_go(&program) && !is_go(&program[..70]) && !is_go(&[]));
        let other = [&4u32.to_ne_bytes()[..], &20u32.to_ne_bytes(), &3u32.to_ne_bytes(), b"GNU\0"].concat();
        assert!(!is_go(&other));
    }
}
