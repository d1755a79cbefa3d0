//! The BPF programs that tell what is behind the descriptors of a call, when it is entered and when it has made some.
//!
//! A path is told as d_path() in the kernel makes it: name by name from the file to the root, through mounts. So it is
//! that of the moment, whatever happens to the file or the process later. A directory on the way that is renamed at
//! this very moment may be told under either of its names.

use super::{
    BYTES_AT, Build, CONTEXT, COUNT, ELEMENT, ELEMENT_AT, END_OF_RECORD, ENTRY, INDEX, LENGTH, LIST_AT, MOST_CALLS,
    POINTER, PROBE_READ_KERNEL, PROBE_READ_USER, RECORD, RESULT, begin, counted, ends_unless, header_of_element,
    length_of, output, output_alone, register,
};
use crate::instructions::{Code, EQUAL, FRAME, NOT_NEGATIVE, UNEQUAL};

/// The map with a row for each call.
pub const DESCRIPTORS: &str = "descriptors";
pub const ENTER: (&str, &str) = ("descriptors_enter", "sys_enter");
pub const EXIT: (&str, &str) = ("descriptors_exit", "sys_exit");

/// What their records begin with.
pub const AT_ENTER: u64 = 5;
pub const AT_EXIT: u64 = 6;

/// Descriptors of one call that are told at most, and those of them that are arguments.
pub const MOST: usize = 8;
const ARGUMENTS: usize = 3;

/// In the place of an argument: the first of these descriptors.
pub const TARGET: usize = 16;

// Elements of a descriptor. The pointer of the first is the descriptor.
pub const HEAD: i32 = 1;
pub const SOCKET: i32 = 2;
pub const ADDRESS: i32 = 3;
/// The name of a file that is in no folder; the end of a path that leads to the root, which has no bytes; and the first
/// name of a path: others are behind it.
pub const ALONE: i32 = 14;
pub const LAST: i32 = 15;
pub const NAMES: i32 = 16;

/// Where the first element has the number and the mode of the inode, its device, whether it has a name, what kind of
/// file system it is on; and of a socket: its type, its protocol, the inode of its peer, its address as netlink(7) has
/// it.
pub const INODE_AT: usize = 0;
pub const MODE_AT: usize = 8;
pub const DEVICE_AT: usize = 16;
pub const HASHED_AT: usize = 24;
pub const MAGIC_AT: usize = 32;
pub const TYPE_AT: usize = 40;
pub const PROTOCOL_AT: usize = 48;
pub const PEER_AT: usize = 56;
pub const PORT_AT: usize = 64;
const HEAD_BYTES: usize = 72;
/// Bytes that are copied of a socket and of its AF_UNIX address: its length and itself.
const SOCKET_BYTES: usize = 112;
const ADDRESS_BYTES: usize = 116;

/// Names and mounts of a path at most.
pub const STEPS: i32 = 64;
/// More than the longest name with its end: a name with so many bytes is cut.
pub const NAME: i32 = 257;

// enum bpf_func_id
const GET_CURRENT_TASK: i32 = 35;
const PROBE_READ_KERNEL_STR: i32 = 115;

// Local places, below those of the other programs.
const TARGETS: i16 = -160;
const TASK: i16 = -168;
const DESCRIPTOR: i16 = -176;
const PATH: i16 = -184;
const FILE: i16 = -192;
const DENTRY: i16 = -200;
const MOUNT: i16 = -208;
const INODE: i16 = -216;
const PARENT: i16 = -224;
const ROOT: i16 = -232;
const SOCK: i16 = -240;
const STEP: i16 = -248;

/// Where this kernel has what is read.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// `task_struct.files`, `files_struct.fdt`, `max_fds` and `fd` of `fdtable`, `file.f_path`
    files: [i32; 5],
    /// `task_struct.fs`, `fs_struct.pwd`
    directory: [i32; 2],
    /// `mnt` and `dentry` of `path`
    path: [i32; 2],
    /// `d_parent`, `d_name.name`, `d_hash.pprev`, `d_inode` of `dentry`
    dentry: [i32; 4],
    /// `mnt`, `mnt_parent` and `mnt_mountpoint` of `mount`, `vfsmount.mnt_root`
    mount: [i32; 4],
    /// `i_ino`, `i_mode`, `i_rdev` and `i_sb` of `inode`, `super_block.s_magic`
    inode: [i32; 5],
    /// If they are asked for.
    pub sockets: Option<Sockets>,
}

#[derive(Debug, Clone, Copy)]
pub struct Sockets {
    /// `file.private_data`, `socket.sk`
    sock: [i32; 2],
    /// `sk_type`, `sk_protocol`, `sk_socket` of `sock`, `socket_alloc.vfs_inode`, `inode.i_ino`
    of: [i32; 5],
    /// `peer` and `addr` of `unix_sock`, `unix_address.len`, `netlink_sock.portid`
    unix: [i32; 4],
    /// `skc_family`, `skc_num`, `skc_dport`, `skc_rcv_saddr`, `skc_daddr`, `skc_v6_rcv_saddr`, `skc_v6_daddr` of
    /// `sock_common`
    pub common: [i32; 7],
}

#[cfg(feature = "btf")]
impl Places {
    /// And why not those of sockets, if they are asked for and this kernel has them elsewhere.
    pub fn read(has_sockets: bool) -> Result<(Self, Option<String>), String> {
        let kernel = crate::read::btf::Kernel::read()?;
        let at = |kind: &str, name: &str| kernel.offset(kind, name).map(|at| at as i32);
        let sockets = has_sockets.then(|| Sockets::read(at)).transpose();
        let (sockets, without) = sockets.map_or_else(|why| (None, Some(why)), |sockets| (sockets, None));
        let places = Self {
            files: [
                at("task_struct", "files")?,
                at("files_struct", "fdt")?,
                at("fdtable", "max_fds")?,
                at("fdtable", "fd")?,
                at("file", "f_path")?,
            ],
            directory: [at("task_struct", "fs")?, at("fs_struct", "pwd")?],
            path: [at("path", "mnt")?, at("path", "dentry")?],
            dentry: [
                at("dentry", "d_parent")?,
                at("dentry", "d_name")? + at("qstr", "name")?,
                at("dentry", "d_hash")? + at("hlist_bl_node", "pprev")?,
                at("dentry", "d_inode")?,
            ],
            mount: [
                at("mount", "mnt")?,
                at("mount", "mnt_parent")?,
                at("mount", "mnt_mountpoint")?,
                at("vfsmount", "mnt_root")?,
            ],
            inode: [
                at("inode", "i_ino")?,
                at("inode", "i_mode")?,
                at("inode", "i_rdev")?,
                at("inode", "i_sb")?,
                at("super_block", "s_magic")?,
            ],
            sockets,
        };
        Ok((places, without))
    }
}

#[cfg(feature = "btf")]
impl Sockets {
    fn read(at: impl Fn(&str, &str) -> Result<i32, String>) -> Result<Self, String> {
        let names = ["family", "num", "dport", "rcv_saddr", "daddr", "v6_rcv_saddr", "v6_daddr"];
        let mut common = [0; 7];
        for (to, name) in common.iter_mut().zip(names) {
            *to = at("sock_common", &format!("skc_{name}"))?;
        }
        Ok(Self {
            sock: [at("file", "private_data")?, at("socket", "sk")?],
            of: [
                at("sock", "sk_type")?,
                at("sock", "sk_protocol")?,
                at("sock", "sk_socket")?,
                at("socket_alloc", "vfs_inode")?,
                at("inode", "i_ino")?,
            ],
            unix: [
                at("unix_sock", "peer")?,
                at("unix_sock", "addr")?,
                at("unix_address", "len")?,
                at("netlink_sock", "portid")?,
            ],
            common,
        })
    }
}

#[cfg(not(feature = "btf"))]
impl Places {
    pub fn read(_: bool) -> Result<(Self, Option<String>), String> {
        Err("this program was built without the feature btf".into())
    }
}

/// Which descriptors a call has.
#[derive(Debug, Clone, Default)]
pub struct Descriptors {
    /// Arguments.
    pub arguments: Vec<usize>,
    /// The argument with a list as poll(2) has it. Its length is in the next one.
    pub list: Option<usize>,
    pub is_result: bool,
    /// The argument that points to two new ones.
    pub pair: Option<usize>,
}

/// An element of the map [`DESCRIPTORS`]: offsets of registers, or 0.
pub type Row = [u32; ARGUMENTS + 4];
const LIST: usize = 4 * ARGUMENTS;
const LIST_LENGTH: usize = LIST + 4;
const IS_RESULT: usize = LIST + 8;
const PAIR: usize = LIST + 12;

impl Descriptors {
    pub fn is_empty(&self) -> bool {
        self.row(&[1; 6]).iter().all(|word| *word == 0)
    }

    /// Whether it may make some: then a call that has succeeded leaves a record.
    pub fn gives(&self) -> bool {
        self.is_result || self.pair.is_some()
    }

    /// `registers`: where the arguments are.
    pub fn row(&self, registers: &[u32; 6]) -> Row {
        let mut row = [0; ARGUMENTS + 4];
        row.iter_mut().zip(self.arguments.iter().take(ARGUMENTS)).for_each(|(to, of)| *to = registers[*of]);
        if let Some(list) = self.list {
            (row[LIST / 4], row[LIST_LENGTH / 4]) = (registers[list], registers[list + 1]);
        }
        row[IS_RESULT / 4] = self.is_result.into();
        row[PAIR / 4] = self.pair.map_or(0, |pair| registers[pair]);
        row
    }
}

/// Of the map.
pub fn definition(kind: u32) -> [u32; 5] {
    [kind, 4, size_of::<Row>() as u32, MOST_CALLS, 0]
}

fn target(at: usize) -> i16 {
    TARGETS + 8 * at as i16
}

/// `raw_tracepoint/sys_enter`: descriptors that the call is given.
pub fn enter(build: &Build, places: &Places) -> Code {
    let mut code = counted(build);
    code.set(1, 0).store(FRAME, RESULT, 1).load(7, CONTEXT, 8).store(FRAME, INDEX, 7);
    started(&mut code, &[0, 4, 8, LIST], AT_ENTER);
    for argument in 0..ARGUMENTS {
        code.load_u32(3, ENTRY, 4 * argument).unless(EQUAL, 3, 0, |code| register(code, target(argument)));
    }
    code.load_u32(3, ENTRY, LIST).unless(EQUAL, 3, 0, |code| {
        register(code, LIST_AT);
        code.load_u32(3, ENTRY, LIST_LENGTH);
        register(code, COUNT);
        for at in 0..MOST {
            code.load_local(1, COUNT).unless_less_or_equal(1, at as i32, |code| pair(code, target(at), 8 * at as i32));
        }
    });
    (0..MOST).for_each(|at| one(&mut code, places, at));
    output(&mut code, false);
    code
}

/// `raw_tracepoint/sys_exit`: descriptors that the call has made.
pub fn exit(build: &Build, places: &Places) -> Code {
    let mut code = counted(build);
    code.load(1, CONTEXT, 8).store(FRAME, RESULT, 1).unless(NOT_NEGATIVE, 1, 0, |code| {
        code.exit_with(0);
    });
    code.set(3, build.registers.number as i32);
    register(&mut code, INDEX);
    started(&mut code, &[IS_RESULT, PAIR], AT_EXIT);
    code.load_u32(1, ENTRY, IS_RESULT).unless(EQUAL, 1, 0, |code| {
        code.load_local(1, RESULT).store(FRAME, target(0), 1);
    });
    code.load_u32(3, ENTRY, PAIR).unless(EQUAL, 3, 0, |code| {
        register(code, LIST_AT);
        pair(code, target(0), 0);
        code.load_local(1, target(0)).push(0x77, 1, 0, 0, 32).store(FRAME, target(1), 1);
    });
    (0..2).for_each(|at| one(&mut code, places, at));
    // Also without a descriptor: without a record, that of the next call would be taken for this one's.
    output_alone(&mut code);
    code
}

/// [`ENTRY`] gets the row of the call, and the record begins, unless all these words of the row are 0.
fn started(code: &mut Code, words: &[usize], kind: u64) {
    code.element(DESCRIPTORS, INDEX).place(ENTRY, 0, 0);
    ends_unless(code, words);
    begin(code, kind);
    code.call(GET_CURRENT_TASK).store(FRAME, TASK, 0).set(1, -1);
    for at in 0..MOST {
        code.store(FRAME, target(at), 1);
    }
}

/// A local place gets eight bytes of the program behind [`LIST_AT`]: the first four are a descriptor, -1 if they cannot
/// be read.
fn pair(code: &mut Code, to: i16, at: i32) {
    code.place(1, FRAME, to.into()).set(2, 8).load_local(3, LIST_AT).push(0x07, 3, 0, 0, at).call(PROBE_READ_USER);
    code.unless(EQUAL, 0, 0, |code| {
        code.set(1, -1).store(FRAME, to, 1);
    });
}

/// A local place gets what is behind the pointer at another one. What cannot be read is 0.
fn follow(code: &mut Code, from: i16, at: i32, to: i16) {
    code.load_local(3, from).push(0x07, 3, 0, 0, at);
    code.place(1, FRAME, to.into()).set(2, 8).call(PROBE_READ_KERNEL);
}

/// The element that begins gets bytes from behind the pointer at a local place.
fn part(code: &mut Code, (from, at): (i16, i32), to: usize, bytes: usize) {
    code.load_local(3, from).push(0x07, 3, 0, 0, at);
    code.place(1, RECORD, (BYTES_AT + to) as i32).add(1, END_OF_RECORD).set(2, bytes as i32).call(PROBE_READ_KERNEL);
}

/// What is behind one descriptor.
fn one(code: &mut Code, places: &Places, at: usize) {
    let [files, table, most, all, path] = places.files;
    let [directories, directory] = places.directory;
    code.load_local(1, target(at)).shift(1, 32).push(0x77, 1, 0, 0, 32).store(FRAME, DESCRIPTOR, 1);
    code.set(1, 0).store(FRAME, PATH, 1).store(FRAME, FILE, 1);
    follow(code, TASK, files, POINTER);
    follow(code, POINTER, table, POINTER);
    follow(code, POINTER, most, LENGTH);
    code.load_local(1, LENGTH).shift(1, 32).push(0x77, 1, 0, 0, 32).load_local(2, DESCRIPTOR);
    code.unless_not_above(1, 2, |code| {
        follow(code, POINTER, all, POINTER);
        code.load_local(1, POINTER).load_local(2, DESCRIPTOR).shift(2, 3).add(1, 2).store(FRAME, POINTER, 1);
        follow(code, POINTER, 0, FILE);
        code.load_local(1, FILE).unless(EQUAL, 1, 0, |code| {
            code.place(1, 1, path).store(FRAME, PATH, 1);
        });
    });
    code.load_local(1, DESCRIPTOR).shift(1, 32).push(0xc7, 1, 0, 0, 32);
    code.unless(UNEQUAL, 1, nix::libc::AT_FDCWD, |code| {
        follow(code, TASK, directories, POINTER);
        code.load_local(1, POINTER).place(1, 1, directory).store(FRAME, PATH, 1);
    });
    code.load_local(1, PATH).unless(EQUAL, 1, 0, |code| described(code, places, at));
}

fn described(code: &mut Code, places: &Places, at: usize) {
    let [number, mode, device, block, magic] = places.inode;
    let [mount, dentry] = places.path;
    let element = |code: &mut Code, element: i32| {
        code.set(1, (TARGET + at) as i32 | element << ELEMENT).store(FRAME, ELEMENT_AT, 1);
        header_of_element(code);
    };
    let ends = |code: &mut Code, bytes: usize| {
        code.set(0, bytes as i32);
        length_of(code);
    };
    follow(code, PATH, dentry, DENTRY);
    follow(code, PATH, mount, MOUNT);
    code.load_local(1, MOUNT).place(1, 1, -places.mount[0]).store(FRAME, MOUNT, 1);
    follow(code, DENTRY, places.dentry[3], INODE);
    code.load_local(1, DESCRIPTOR).store(FRAME, POINTER, 1);
    element(code, HEAD);
    part(code, (INODE, number), INODE_AT, 8);
    part(code, (INODE, mode), MODE_AT, 2);
    part(code, (INODE, device), DEVICE_AT, 4);
    part(code, (DENTRY, places.dentry[2]), HASHED_AT, 8);
    follow(code, INODE, block, POINTER);
    part(code, (POINTER, magic), MAGIC_AT, 8);
    let Some(sockets) = &places.sockets else {
        ends(code, HEAD_BYTES);
        return path(code, places, at);
    };
    follow(code, INODE, mode, LENGTH);
    code.load_local(1, LENGTH).and(1, nix::libc::S_IFMT as i32).either(
        1,
        nix::libc::S_IFSOCK as i32,
        |code| {
            socket(code, sockets);
            ends(code, HEAD_BYTES);
            element(code, SOCKET);
            part(code, (SOCK, 0), 0, SOCKET_BYTES);
            ends(code, SOCKET_BYTES);
            follow(code, SOCK, sockets.unix[1], PARENT);
            element(code, ADDRESS);
            part(code, (PARENT, sockets.unix[2]), 0, ADDRESS_BYTES);
            ends(code, ADDRESS_BYTES);
        },
        |code| ends(code, HEAD_BYTES),
    );
    path(code, places, at);
}

/// [`SOCK`] gets the socket, and the element that begins what is behind it.
fn socket(code: &mut Code, Sockets { sock, of, unix, .. }: &Sockets) {
    follow(code, FILE, sock[0], SOCK);
    follow(code, SOCK, sock[1], SOCK);
    part(code, (SOCK, of[0]), TYPE_AT, 2);
    part(code, (SOCK, of[1]), PROTOCOL_AT, 2);
    part(code, (SOCK, unix[3]), PORT_AT, 4);
    // The inode of a socket lies behind it.
    follow(code, SOCK, unix[0], PARENT);
    follow(code, PARENT, of[2], PARENT);
    code.load_local(1, PARENT).unless(EQUAL, 1, 0, |code| {
        code.place(1, 1, of[3]).store(FRAME, PARENT, 1);
    });
    part(code, (PARENT, of[4]), PEER_AT, 8);
}

/// The names from [`DENTRY`] to the root. From a folder that was moved out of its mount no way leads there: then there
/// is no last.
fn path(code: &mut Code, places: &Places, at: usize) {
    let [parent, ..] = places.dentry;
    let [mount, above, point, root] = places.mount;
    code.set(1, 0).store(FRAME, STEP, 1);
    let again = code.bytes.len();
    follow(code, DENTRY, parent, PARENT);
    follow(code, MOUNT, mount + root, ROOT);
    // Whether it is the root of its mount.
    code.load_local(1, DENTRY).load_local(2, ROOT).push(0xaf, 1, 2, 0, 0);
    code.either(
        1,
        0,
        |code| {
            follow(code, MOUNT, above, PARENT);
            code.load_local(1, MOUNT).load_local(2, PARENT).push(0xaf, 1, 2, 0, 0);
            code.either(
                1,
                0,
                |code| {
                    code.set(1, (TARGET + at) as i32 | LAST << ELEMENT).store(FRAME, ELEMENT_AT, 1);
                    header_of_element(code);
                    code.set(0, 0);
                    length_of(code);
                    code.set(1, STEPS).store(FRAME, STEP, 1);
                },
                |code| {
                    follow(code, MOUNT, point, DENTRY);
                    code.load_local(1, PARENT).store(FRAME, MOUNT, 1);
                },
            );
        },
        |code| {
            code.load_local(1, DENTRY).load_local(2, PARENT).push(0xaf, 1, 2, 0, 0);
            code.either(
                1,
                0,
                |code| alone(code, places, at),
                |code| {
                    code.load_local(1, STEP).place(1, 1, NAMES).store(FRAME, COUNT, 1);
                    name(code, places, at);
                    code.load_local(1, PARENT).store(FRAME, DENTRY, 1);
                },
            );
        },
    );
    code.load_local(1, STEP).place(1, 1, 1).store(FRAME, STEP, 1).back_if_less(1, STEPS, again);
}

/// [`DENTRY`] is in no folder, and is no root: a file such as a pipe, or the top of a file system beside its mount.
fn alone(code: &mut Code, places: &Places, at: usize) {
    code.load_local(1, STEP).unless(UNEQUAL, 1, 0, |code| {
        code.set(1, ALONE).store(FRAME, COUNT, 1);
        name(code, places, at);
    });
    code.set(1, STEPS).store(FRAME, STEP, 1);
}

/// The name of [`DENTRY`], as the element at [`COUNT`].
fn name(code: &mut Code, places: &Places, at: usize) {
    follow(code, DENTRY, places.dentry[1], POINTER);
    code.load_local(1, COUNT).shift(1, ELEMENT).push(0x07, 1, 0, 0, (TARGET + at) as i32).store(FRAME, ELEMENT_AT, 1);
    header_of_element(code);
    code.place(1, RECORD, BYTES_AT as i32).add(1, END_OF_RECORD).set(2, NAME).load_local(3, POINTER);
    code.call(PROBE_READ_KERNEL_STR);
    length_of(code);
}
