//! bpf(2): elements of maps. libc and nix have neither the structs nor the constants.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// enum bpf_cmd and enum bpf_map_type, include/uapi/linux/bpf.h.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_int = 4;
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
pub(crate) const BPF_MAP_TYPE_ARRAY: u32 = 2;
pub(crate) const BPF_F_MMAPABLE: u32 = 1 << 10;
pub(crate) const BPF_MAP_TYPE_PERF_EVENT_ARRAY: u32 = 4;
pub(crate) const BPF_MAP_TYPE_PERCPU_ARRAY: u32 = 6;
pub(crate) const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
pub(crate) const BPF_MAP_TYPE_HASH_OF_MAPS: u32 = 13;
pub(crate) const BPF_MAP_TYPE_RINGBUF: u32 = 27;
pub(crate) const BPF_MAP_TYPE_USER_RINGBUF: u32 = 31;
/// Overwrites the oldest records (Linux 6.19).
pub(crate) const BPF_F_RB_OVERWRITE: u32 = 1 << 19;

/// The part of `union bpf_attr` that BPF_MAP_CREATE reads. The kernel takes any length and fills up with zeros.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
}

/// The part of `union bpf_attr` that BPF_MAP_*_ELEM reads.
#[repr(C)]
#[derive(Default)]
struct MapElem {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` that BPF_MAP_GET_FD_BY_ID and BPF_PROG_GET_FD_BY_ID read.
#[repr(C)]
#[derive(Default)]
struct FdById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// The part of `union bpf_attr` that BPF_OBJ_GET reads.
#[repr(C)]
#[derive(Default)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The part of `union bpf_attr` that BPF_OBJ_GET_INFO_BY_FD reads.
#[repr(C)]
#[derive(Default)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The begin of `struct bpf_map_info`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct MapInfo {
    pub(crate) map_type: u32,
    pub(crate) id: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    pub(crate) map_flags: u32,
}

/// The begin of `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    before: [u64; 8],
    name: [u8; 16],
}

/// # Safety
/// Every pointer in `attr` must be valid for what the command does with it.
unsafe fn bpf<A>(command: libc::c_int, attr: &mut A) -> io::Result<libc::c_long> {
    let len = size_of::<A>();
    // SAFETY: `attr` is `len` bytes long; the caller ensures that its pointers are valid.
    super::check(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), len) })
}

/// Makes a map with 4-byte keys and values.
pub(crate) fn map_create(map_type: u32, max_entries: u32, inner: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let mut attr = MapCreate {
        map_type,
        key_size: 4,
        value_size: 4,
        max_entries,
        inner_map_fd: inner.map_or(0, |fd| fd.as_raw_fd() as u32),
        ..MapCreate::default()
    };
    // SAFETY: the command reads no pointer.
    let fd = unsafe { bpf(BPF_MAP_CREATE, &mut attr) }?;
    // SAFETY: a new file descriptor that nobody else knows. The kernel opens it close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Puts a file descriptor into an element of an array.
pub(crate) fn map_update_fd(map: BorrowedFd<'_>, index: u32, value: BorrowedFd<'_>) -> io::Result<()> {
    let value = value.as_raw_fd() as u32;
    let mut attr = MapElem {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&index) as u64,
        value: std::ptr::from_ref(&value) as u64,
        ..MapElem::default()
    };
    // SAFETY: key and value are 4 bytes long, as the maps we use demand, and live until the call returns.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Empties an element of an array of file descriptors. An empty one is `ENOENT`.
pub(crate) fn map_delete(map: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let mut attr =
        MapElem { map_fd: map.as_raw_fd() as u32, key: std::ptr::from_ref(&index) as u64, ..MapElem::default() };
    // SAFETY: the key is 4 bytes long and lives until the call returns.
    unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attr) }.map(drop)
}

/// The keys of a map with 4-byte keys, as far as no other program changes it meanwhile.
pub(crate) fn map_keys(map: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut keys = Vec::new();
    loop {
        let mut next = 0u32;
        let mut attr = MapElem {
            map_fd: map.as_raw_fd() as u32,
            // Without a key the kernel gives the first.
            key: keys.last().map_or(0, |key| std::ptr::from_ref::<u32>(key) as u64),
            value: std::ptr::from_mut(&mut next) as u64,
            ..MapElem::default()
        };
        // SAFETY: both keys are 4 bytes long, as the caller says of the map's, and live until the call returns.
        match unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut attr) } {
            // A map that changes may begin anew.
            Ok(_) if keys.contains(&next) => return Ok(keys),
            Ok(_) => keys.push(next),
            Err(errno) if errno.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
            Err(errno) => return Err(errno),
        }
    }
}

/// Reads the element of a map with 4-byte keys. `None` if there is none. `value` must be as long as the map's values:
/// for a map of each CPU, a word for each possible CPU.
fn map_lookup(map: BorrowedFd<'_>, index: u32, value: &mut [u64]) -> io::Result<Option<()>> {
    let mut attr = MapElem {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&index) as u64,
        value: value.as_mut_ptr() as u64,
        ..MapElem::default()
    };
    // SAFETY: the key is 4 bytes long, the value as long as the map's, and both live until the call returns.
    match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) } {
        Ok(_) => Ok(Some(())),
        Err(errno) if errno.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The map in an element of a map of maps. `None` if the element is empty.
pub(crate) fn map_in_map(map: BorrowedFd<'_>, index: u32) -> io::Result<Option<OwnedFd>> {
    // The kernel gives the id of the map, 4 bytes.
    let mut id = [0];
    if map_lookup(map, index, &mut id)?.is_none() {
        return Ok(None);
    }
    let mut attr =
        FdById { id: u32::from_ne_bytes(*id[0].to_ne_bytes().first_chunk().unwrap_or(&[0; 4])), ..FdById::default() };
    // SAFETY: the command reads no pointer.
    let fd = unsafe { bpf(BPF_MAP_GET_FD_BY_ID, &mut attr) }?;
    // SAFETY: a new file descriptor that nobody else knows. The kernel opens it close-on-exec.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// The first element of a `BPF_MAP_TYPE_PERCPU_ARRAY` with values of 8 bytes: that of each of `cpus` possible CPUs.
pub(crate) fn map_counts(map: BorrowedFd<'_>, cpus: usize) -> io::Result<Vec<u64>> {
    // The kernel writes a word for each CPU that it counts as possible. It can count no more than this.
    const MOST: usize = 8192;
    let mut counts = vec![0; cpus.max(MOST)];
    map_lookup(map, 0, &mut counts)?;
    counts.truncate(cpus);
    Ok(counts)
}

/// Opens an object that is pinned at a path in a BPF file system.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = ObjGet { pathname: path.as_ptr() as u64, ..ObjGet::default() };
    // SAFETY: the path ends with a zero and lives until the call returns.
    let fd = unsafe { bpf(BPF_OBJ_GET, &mut attr) }?;
    // SAFETY: a new file descriptor that nobody else knows. The kernel opens it close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The type of a map. A file descriptor that is not BPF's gives `EINVAL`; one of a program gives another kind of
/// information.
pub(crate) fn map_info(map: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let mut info = MapInfo::default();
    let mut attr = InfoByFd {
        bpf_fd: map.as_raw_fd() as u32,
        info_len: size_of::<MapInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the kernel writes at most `info_len` bytes to `info`, which lives until the call returns.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}

/// The name of a loaded program. Needs `CAP_SYS_ADMIN`.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    let mut attr = FdById { id, ..FdById::default() };
    // SAFETY: the command reads no pointer.
    let fd = unsafe { bpf(BPF_PROG_GET_FD_BY_ID, &mut attr) }?;
    // SAFETY: a new file descriptor that nobody else knows. The kernel opens it close-on-exec.
    let program = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut info = ProgramInfo::default();
    let mut attr = InfoByFd {
        bpf_fd: program.as_raw_fd() as u32,
        info_len: size_of::<ProgramInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the kernel writes at most `info_len` bytes to `info`, which lives until the call returns. Its lengths of
    // other buffers are 0.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// A map's type in words: `enum bpf_map_type`, include/uapi/linux/bpf.h.
pub(crate) fn map_type(number: u32) -> String {
    const NAMES: &str = "UNSPEC HASH ARRAY PROG_ARRAY PERF_EVENT_ARRAY PERCPU_HASH PERCPU_ARRAY STACK_TRACE \
                         CGROUP_ARRAY LRU_HASH LRU_PERCPU_HASH LPM_TRIE ARRAY_OF_MAPS HASH_OF_MAPS DEVMAP SOCKMAP \
                         CPUMAP XSKMAP SOCKHASH CGROUP_STORAGE REUSEPORT_SOCKARRAY PERCPU_CGROUP_STORAGE QUEUE STACK \
                         SK_STORAGE DEVMAP_HASH STRUCT_OPS RINGBUF INODE_STORAGE TASK_STORAGE BLOOM_FILTER \
                         USER_RINGBUF CGRP_STORAGE ARENA INSN_ARRAY";
    match NAMES.split(' ').nth(number as usize) {
        Some(name) => format!("a BPF_MAP_TYPE_{name} ({number})"),
        None => format!("of type {number}"),
    }
}
