//! Machines that this one is not: with modules, with other symbols, with strange files.

use super::*;
use perf_event_open_sys::bindings;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A machine in a folder, which is removed in the end.
///
/// And whether a recording of it has copies of stacks.
struct Made(PathBuf, bool);

impl Made {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let made = Self(std::env::temp_dir().join(format!("perfweave-names-{name}-{}", std::process::id())), false);
        files.iter().for_each(|(path, bytes)| made.add(path, bytes));
        fs::create_dir_all(made.0.join("proc")).unwrap();
        std::os::unix::fs::symlink(std::process::id().to_string(), made.0.join("proc/self")).unwrap();
        made
    }

    fn add(&self, path: &str, bytes: &[u8]) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// What is written: kind, `misc` and bytes of each record, and the rest.
    fn write(&self, only: Option<&[u32]>) -> (Vec<(u32, u16, Vec<u8>)>, Named) {
        let [proc, sys, modules] = ["proc", "sys", "lib"].map(|folder| self.0.join(folder));
        let machine = Machine { proc, sys, modules };
        let mut records = Vec::new();
        let naming = Naming::new(&machine, self.1, |kind, misc, body: &[u8]| {
            records.push((kind, misc, body.to_vec()));
            Ok(())
        });
        let named = naming.write(Scope { only, processes: true }).unwrap();
        (records, named)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|at| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap()))
}

fn text(bytes: &[u8]) -> &str {
    assert!(bytes.len().is_multiple_of(8));
    std::str::from_utf8(bytes).unwrap().trim_end_matches('\0')
}

/// A note of a build id of 20 bytes.
fn note(byte: u8) -> Vec<u8> {
    let head: Vec<u8> = [4u32, 20, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
    [&head[..], b"GNU\0", &[byte; 20]].concat()
}

const STATUS: &str =
    "Name:\ta\\\\b\nUmask:\t0022\nState:\tS\nTgid:\t7\nNgid:\t0\nPid:\t7\nPPid:\t1\nVmPeak:\t10 kB\nVmSize:\t10 kB\n";

#[test]
fn the_kernel_and_its_modules() {
    let symbols =
        b"0000000000000000 A fixed\nffffffff81000000 T _stext\nffffffff81000010 T _text\nffffffff82000000 D _edata\n\
        ffffffff81f00000 T _etext\nffffffffc0001000 t _text\t[other]\n";
    let modules = b"snd_hda 4096 1 - Live 0xffffffffc0a00000 (O)\nlone 8192 0 - Live 0xffffffffc0b00000\n\
        hidden 1 0 - Live 0x0000000000000000\nbad line\n";
    let made = Made::new(
        "kernel",
        &[
            ("proc/kallsyms", symbols),
            ("proc/modules", modules),
            ("lib/modules.dep", b"kernel/sound/snd-hda.ko.xz: kernel/other.ko\nkernel/other.ko:\n"),
            ("sys/kernel/notes", &note(1)),
            ("sys/module/snd_hda/notes/.note.gnu.build-id", &note(2)),
        ],
    );
    let (records, (names, unnamed, table)) = made.write(None);
    assert!(unnamed.is_empty(), "{unnamed:?}");
    assert_eq!((names.kernel, names.modules, names.build_ids, names.processes), (true, 2, 2, 0));
    let file = made.0.join("lib/kernel/sound/snd-hda.ko.xz");
    let expected = [
        (0xffff_ffff_8100_0010, 0xff_fff0, 0xffff_ffff_8100_0010, "[kernel.kallsyms]_text"),
        (0xffff_ffff_c0a0_0000, 4096, 0, file.to_str().unwrap()),
        (0xffff_ffff_c0b0_0000, 8192, 0, "[lone]"),
    ];
    assert_eq!(records.len(), expected.len());
    for ((kind, misc, body), (start, len, offset, path)) in records.iter().zip(expected) {
        assert_eq!((*kind, *misc), (bindings::PERF_RECORD_MMAP, 1));
        assert_eq!(words(body), [u64::from(u32::MAX), start, len, offset]);
        assert_eq!(text(&body[32..]), path);
    }
    // Each entry of the table says how long it is.
    let first = usize::from(u16::from_ne_bytes([table[6], table[7]]));
    assert!(table[12..32] == [1; 20] && table[32] == 20 && table[first + 12..first + 32] == [2; 20]);
    assert!(table[36..].starts_with(b"[kernel.kallsyms]\0"));
    // Addresses are hidden: they are 0.
    made.add("proc/kallsyms", b"0000000000000000 T _text\n0000000000000000 T _etext\n");
    made.add("proc/modules", b"");
    let (records, (names, unnamed, _)) = made.write(None);
    assert!(records.is_empty() && !names.kernel);
    assert_eq!(unnamed[0].kind(), ErrorKind::Permission);
    assert!(unnamed[0].to_string().contains("kptr_restrict"));
}

/// A process with two threads, one that ends meanwhile, and one whose files make no sense.
#[test]
fn processes() {
    let program = std::env::current_exe().unwrap();
    let inode = fs::metadata(&program).unwrap().ino();
    let maps = format!(
        "1000-3000 r-xp 00002000 fe:01 {inode} {0}\n3000-4000 rw-p 00000000 fe:01 {inode} {0}\n\
         5000-6000 rwxs 00000000 00:00 0 \n6000-7000 r-xp 00000000 00:00 0                  [vdso]\nno mapping\n\
         7000-8000 r-xp 00000000 fe:01 1 /{1}\n",
        program.display(),
        "x".repeat(40_000)
    );
    let thread = STATUS.replace("a\\\\b", "worker");
    let mut made = Made::new(
        "processes",
        &[
            ("proc/kallsyms", b""),
            ("proc/7/status", STATUS.as_bytes()),
            ("proc/7/comm", b"a\\b\n"),
            ("proc/7/task/7/x", b""),
            ("proc/7/task/8/x", b""),
            ("proc/7/maps", maps.as_bytes()),
            ("proc/8/status", thread.as_bytes()),
            ("proc/9/task/9/x", b""),
            ("proc/10/status", b"\xff\n"),
            ("proc/10/task/10/x", b""),
            ("proc/version", b""),
        ],
    );
    std::os::unix::fs::symlink("/", made.0.join("proc/7/root")).unwrap();
    for only in [None, Some(&[8][..])] {
        // As a thread's folder is there, and is not listed.
        let (mut records, (names, ..)) = made.write(only);
        assert_eq!((names.processes, names.threads, names.mappings, names.hidden), (1, 2, 4, 0));
        records.retain(|(kind, ..)| *kind != bindings::PERF_RECORD_FORK);
        let mut comms: Vec<_> = records.iter().filter(|(kind, ..)| *kind == bindings::PERF_RECORD_COMM).collect();
        comms.sort_by(|a, b| a.2.cmp(&b.2));
        assert!(comms[0].2[..8] == words_of([7, 7]) && text(&comms[0].2[8..]) == "a\\b");
        assert!(comms[1].2[..8] == words_of([7, 8]) && text(&comms[1].2[8..]) == "worker");
        let maps: Vec<_> = records.iter().filter(|(kind, ..)| *kind == bindings::PERF_RECORD_MMAP2).collect();
        let expected = [(0x1000, 0x2000, 0x2000), (0x5000, 0x1000, 0), (0x6000, 0x1000, 0), (0x7000, 0x1000, 0)];
        for ((_, _, body), (start, len, offset)) in maps.iter().zip(expected) {
            assert_eq!(words::<4>(body)[1..], [start, len, offset]);
        }
        // Protection and sharing behind the device and inode, or behind the build id.
        assert_eq!([&maps[0].2[56..64], &maps[1].2[56..64]], [words_of([5, 2]), words_of([7, 1])]);
        let paths: Vec<_> = maps.iter().map(|(.., body)| text(&body[64..])).collect();
        assert_eq!(paths[..3], [program.to_str().unwrap(), "//anon", "[vdso]"]);
        assert!(paths[3].len() == PATH && maps[1].1 == USER && [USER, USER | BUILD_ID].contains(&maps[0].1));
        assert_eq!(names.build_ids, u64::from(maps[0].1 != USER));
    }
    // What is to read beside the code is in a recording with copies of stacks, and is no code.
    made.1 = true;
    let (records, (names, ..)) = made.write(None);
    let data: Vec<_> = records
        .iter()
        .filter(|(kind, misc, _)| {
            *kind == bindings::PERF_RECORD_MMAP2 && misc & bindings::PERF_RECORD_MISC_MMAP_DATA as u16 != 0
        })
        .collect();
    assert!(names.mappings == 4 && data.len() == 1, "{names:?}");
    assert!(words::<4>(&data[0].2)[1..] == [0x3000, 0x1000, 0] && data[0].2[56..64] == words_of([3, 2]));
}

fn words_of(words: [u32; 2]) -> [u8; 8] {
    words.map(u32::to_ne_bytes).concat().try_into().unwrap()
}

/// procfs with the numbers of another PID namespace.
#[test]
fn numbers_of_others() {
    let made =
        Made::new("others", &[("proc/kallsyms", b""), ("proc/7/status", STATUS.as_bytes()), ("proc/7/task/7/x", b"")]);
    fs::remove_file(made.0.join("proc/self")).unwrap();
    std::os::unix::fs::symlink("1", made.0.join("proc/self")).unwrap();
    let (records, (names, unnamed, _)) = made.write(None);
    assert!(records.is_empty() && names == Names::default());
    assert_eq!(unnamed.last().map(Error::kind), Some(ErrorKind::Unsupported));
}
