//! What lies at addresses of the kernel: functions (`/proc/kallsyms`), and strings that tracepoints point to
//! (`printk_formats` of tracefs).

use perfweave::Clock;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// A kernel. Its symbols are read when they are asked for.
#[derive(Debug, Default)]
pub struct Kernel {
    of: Of,
    symbols: OnceCell<Vec<Symbol>>,
    strings: HashMap<u64, String>,
}

#[derive(Debug, Default)]
enum Of {
    /// Of a recording that has not said where its kernel lies.
    #[default]
    Unknown,
    /// The one that runs.
    Running,
    /// Of a recording, which says where a symbol lies: as perf does, `[kernel.kallsyms]_text`.
    Recorded { symbol: String, address: u64, path: PathBuf },
}

#[derive(Debug)]
struct Symbol {
    at: u64,
    is_function: bool,
    /// `name`, or `name [module]`.
    text: Box<str>,
}

impl Symbol {
    /// Its name, and ` [module]` or nothing.
    fn parts(&self) -> (&str, &str) {
        self.text.split_at(self.text.find(' ').unwrap_or(self.text.len()))
    }
}

/// No function is longer. Behind the last one lies something else.
const LONGEST: u64 = 1 << 20;

impl Kernel {
    /// The kernel that runs.
    pub fn running() -> Self {
        let formats =
            perfweave_events::tracefs().ok().and_then(|root| fs::read_to_string(root.join("printk_formats")).ok());
        Self { of: Of::Running, strings: strings(&formats.unwrap_or_default()), ..Self::default() }
    }

    /// The kernel of a recording that has these strings.
    pub fn recorded(formats: &str) -> Self {
        Self { strings: strings(formats), ..Self::default() }
    }

    /// Learns from a recording where its kernel lies: from a mapping's name and offset.
    pub fn learn(&mut self, map: &str, address: u64, path: &Path) {
        if let Some(symbol) = map.strip_prefix("[kernel.kallsyms]") {
            self.of = Of::Recorded { symbol: symbol.to_owned(), address, path: path.to_owned() };
            self.symbols = OnceCell::new();
        }
    }

    /// The function that is executed at an address.
    pub fn function(&self, address: u64) -> Option<&str> {
        let symbols = self.symbols();
        let after = symbols.partition_point(|symbol| symbol.at <= address);
        symbols[..after].iter().rev().find(|symbol| symbol.is_function).map(|symbol| symbol.parts().0)
    }

    /// The string at an address, or the function as `%pS` prints it: `name+0x1/0x20 [module]`.
    pub fn look(&self, address: u64) -> Option<String> {
        if let Some(string) = self.strings.get(&address) {
            return Some(string.clone());
        }
        let symbols = self.symbols();
        let after = symbols.partition_point(|symbol| symbol.at <= address);
        let begin = symbols.get(after.checked_sub(1)?)?.at;
        // Of several names the first, as in the kernel (kernel/kallsyms.c).
        let (name, module) = symbols[symbols.partition_point(|symbol| symbol.at < begin)].parts();
        let end = symbols.get(after).map_or(begin, |next| next.at);
        let offset = address - begin;
        (offset < LONGEST).then(|| format!("{name}+{offset:#x}/{:#x}{module}", end - begin))
    }

    fn symbols(&self) -> &[Symbol] {
        self.symbols.get_or_init(|| match &self.of {
            Of::Unknown => Vec::new(),
            Of::Running => kallsyms(),
            // The kernel lies elsewhere after each boot (KASLR).
            Of::Recorded { path, .. } if !is_since_boot(path) => Vec::new(),
            Of::Recorded { symbol, address, .. } => {
                let symbols = kallsyms();
                let is_same = symbols.iter().any(|known| known.at == *address && known.parts().0 == symbol);
                if is_same { symbols } else { Vec::new() }
            }
        })
    }
}

/// Those of the kernel that runs. They are read line by line: the whole text is as large as a recording.
fn kallsyms() -> Vec<Symbol> {
    File::open("/proc/kallsyms").map_or_else(|_| Vec::new(), |file| symbols(BufReader::new(file)))
}

/// All symbols, by address. None if this user may not see addresses (`kptr_restrict`).
fn symbols(text: impl BufRead) -> Vec<Symbol> {
    let symbol = |line: String| {
        let mut words = line.split_whitespace();
        let (at, kind, name) = (words.next()?, words.next()?, words.next()?);
        // Not those of a CPU's own data, which count from 0, as all do that are hidden.
        let at = u64::from_str_radix(at, 16).ok().filter(|at| *at >= 1 << 63)?;
        // What comes from BPF and from tracing itself has no module.
        let module = words.next().filter(|module| *module != "[bpf]" && !module.starts_with("[__builtin"));
        let module = module.map(|module| format!(" {module}")).unwrap_or_default();
        let text = format!("{name}{module}").into();
        Some(Symbol { at, is_function: matches!(kind, "t" | "T" | "w" | "W"), text })
    };
    let mut symbols: Vec<_> = text.lines().map_while(Result::ok).filter_map(symbol).collect();
    symbols.sort_by_key(|symbol| symbol.at);
    symbols
}

/// Lines `0xffffffff8281b7e5 : "rcu_preempt"`.
fn strings(formats: &str) -> HashMap<u64, String> {
    let string = |line: &str| {
        let (address, text) = line.split_once(" : ")?;
        let text = text.trim().strip_prefix('"')?.strip_suffix('"')?;
        let address = u64::from_str_radix(address.trim().strip_prefix("0x")?, 16).ok()?;
        let text = text.replace("\\n", "\n").replace("\\t", "\t").replace("\\\"", "\"").replace("\\\\", "\\");
        Some((address, text))
    };
    formats.lines().filter_map(string).collect()
}

fn is_since_boot(path: &Path) -> bool {
    // Not btime of /proc/stat, which is another in a time namespace.
    let booted = || Some(Clock::Boottime.offset_to(Clock::Realtime)?.apply(0) / 1_000_000_000);
    // A pipe has no time: where its kernel lies must do.
    let written = fs::metadata(path).and_then(|file| file.modified()).ok();
    let since = written.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.is_none_or(|since| booted().is_some_and(|booted| since.as_secs() >= booted))
}

#[cfg(test)]
mod tests {
    use super::{Kernel, Of, strings, symbols};

    /// Functions as `%pS` prints them, and nothing for what lies elsewhere.
    #[test]
    fn addresses_have_the_names_that_the_kernel_prints() {
        let text = "0000000000001000 A of_each_cpu\nffffffff81000000 T first\nffffffff81000000 T alias\n\
                    ffffffff81000040 t second\nffffffffc0000000 t init\t[ext4]\nffffffffc0000100 t prog\t[bpf]\n\
                    ffffffff81000080 D data\n";
        let formats = "0xffffffff81000050 : \"a \\\"string\\\"\\n\"\nnonsense\n0xffffffff82000000 : \"none\n";
        let kernel = Kernel { of: Of::Running, symbols: symbols(text.as_bytes()).into(), strings: strings(formats) };
        for (address, says) in [
            (0xffff_ffff_8100_0000, Some("first+0x0/0x40")),
            (0xffff_ffff_8100_003f, Some("first+0x3f/0x40")),
            (0xffff_ffff_8100_0041, Some("second+0x1/0x40")),
            (0xffff_ffff_8100_0050, Some("a \"string\"\n")),
            (0xffff_ffff_8100_0084, Some("data+0x4/0x3effff80")),
            (0xffff_ffff_c000_0010, Some("init+0x10/0x100 [ext4]")),
            (0xffff_ffff_c000_0101, Some("prog+0x1/0x0")),
            (0xffff_ffff_b000_0000, None),
            (0x1000, None),
        ] {
            assert_eq!(kernel.look(address).as_deref(), says, "{address:#x}");
        }
        assert_eq!(kernel.function(0xffff_ffff_8100_0084), Some("second"));
        assert_eq!(kernel.function(0xffff_ffff_8100_0000), Some("alias"));
        assert_eq!(Kernel::default().look(0xffff_ffff_8100_0000), None);
    }
}
