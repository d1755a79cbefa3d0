//! What is behind the descriptors of a call, as strace(1) prints it with -y and -yy: paths, pipes, sockets.
//!
//! BPF programs ([`program::opened`](super::program::opened)) tell it at the moment of the call.

use super::program::opened::{
    ADDRESS, ALONE, DEVICE_AT, HASHED_AT, HEAD, INODE_AT, LAST, MAGIC_AT, MODE_AT, MOST, NAME, NAMES, PEER_AT, PORT_AT,
    PROTOCOL_AT, Places, SOCKET, STEPS, Sockets, TARGET, TYPE_AT,
};
use super::shapes::Numbers;
use super::strings::{Copied, Quotes};
use linux_raw_sys::general as kernel;
use nix::libc;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

// include/uapi/linux/magic.h
const SOCKETS: u64 = kernel::SOCKFS_MAGIC as u64;
const PIPES: u64 = kernel::PIPEFS_MAGIC as u64;
const NO_FILES: u64 = kernel::ANON_INODE_FS_MAGIC as u64;
const IN_MEMORY: [u64; 2] = [kernel::TMPFS_MAGIC as u64, kernel::HUGETLBFS_MAGIC as u64];
const PROCESSES: u64 = 0x5049_4446;

/// What is behind descriptors at the entry and at the return.
#[derive(Debug, Clone, Default)]
pub struct Opened([BTreeMap<i32, Behind>; 2]);

#[derive(Debug, Clone)]
struct Behind {
    text: String,
    path: Option<Vec<u8>>,
}

impl Opened {
    /// Of what the programs have told. `None`: nothing is known.
    pub fn of(told: [Option<Copied>; 2], places: &Places) -> Option<Self> {
        let each = told.map(|told| {
            let of = |target| told.as_ref().and_then(|told| Told { told, target, places }.behind());
            (TARGET..TARGET + MOST).filter_map(of).collect::<BTreeMap<_, _>>()
        });
        each.iter().any(|each| !each.is_empty()).then_some(Self(each))
    }

    /// Without what no argument means: the working directory, if none is a directory, and the result, if it is another
    /// number. `None`: nothing is left.
    pub fn meant(mut self, means_working_directory: bool, gives: bool) -> Option<Self> {
        if !means_working_directory {
            self.0[0].remove(&libc::AT_FDCWD);
        }
        if !gives {
            self.0[1].clear();
        }
        self.0.iter().any(|each| !each.is_empty()).then_some(self)
    }

    /// `</etc/passwd>` behind a descriptor that the call is given, or nothing.
    pub fn entered(&self, descriptor: i32) -> &str {
        self.0[0].get(&descriptor).map_or("", |behind| &behind.text)
    }

    /// The same of one that it has made.
    pub fn returned(&self, descriptor: i32) -> &str {
        self.0[1].get(&descriptor).map_or("", |behind| &behind.text)
    }

    /// Paths of descriptors that the call is given.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.0[0].values().filter_map(|behind| behind.path.as_deref())
    }

    /// All by their numbers, without the brackets.
    pub fn json(&self) -> Value {
        let all = self.0.iter().flatten().map(|(descriptor, behind)| {
            let text = behind.text.strip_prefix('<').unwrap_or(&behind.text);
            let (file, deleted) = text.rsplit_once('>').unwrap_or((text, ""));
            (descriptor.to_string(), format!("{file}{deleted}").into())
        });
        Value::Object(all.collect())
    }
}

/// What was told of one descriptor.
struct Told<'a> {
    told: &'a Copied,
    target: usize,
    places: &'a Places,
}

impl Told<'_> {
    fn element(&self, element: i32) -> Option<&[u8]> {
        self.told.element(self.target, element)?.bytes.as_deref()
    }

    /// The name at this place, if there is one; `None` in it: it was not in memory, or is longer than what is copied.
    fn name(&self, element: i32) -> Option<Option<&[u8]>> {
        let piece = self.told.element(self.target, element)?;
        let is_whole = |bytes: &&[u8]| bytes.len() < NAME as usize;
        Some(piece.bytes.as_deref().filter(is_whole).and_then(|bytes| bytes.strip_suffix(b"\0")))
    }

    fn behind(&self) -> Option<(i32, Behind)> {
        let descriptor = self.told.element(self.target, HEAD)?.pointer as i32;
        let head = self.element(HEAD)?;
        let (inode, magic) = (head.u64(INODE_AT)?, head.u64(MAGIC_AT)?);
        let is_file = self.element(LAST).is_some();
        // What is no root has the name of one if it has none.
        let alone = self.name(ALONE).flatten().filter(|name| *name != b"/");
        // Mounts have a place among them, and no name.
        let names: Vec<_> = (NAMES..NAMES + STEPS).filter_map(|at| self.name(at)).collect::<Option<_>>()?;
        let path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", *name].concat()).collect();
        let text = match magic {
            SOCKETS => match self.places.sockets.and_then(|sockets| self.socket(head, &sockets)) {
                Some(text) => return Some((descriptor, Behind { text: format!("<{text}>"), path: None })),
                None => format!("socket:[{inode}]"),
            },
            PIPES => format!("pipe:[{inode}]"),
            NO_FILES => format!("anon_inode:{}", bracketed(alone?)),
            PROCESSES => "anon_inode:[pidfd]".into(),
            _ if !is_file && IN_MEMORY.contains(&magic) => bracketed(&[b"/", alone?].concat()),
            _ if !is_file => return None,
            _ if path.is_empty() => "/".into(),
            _ => bracketed(&path),
        };
        let is_path = is_file || text.starts_with('/');
        // A file without a directory, such as of memfd_create(2), is never in one.
        let is_deleted = is_path && !names.is_empty() && head.u64(HASHED_AT)? == 0 || is_path && !is_file;
        let device = self.places.sockets.filter(|_| is_file).and_then(|_| device(head)).unwrap_or_default();
        let deleted = if is_deleted { "(deleted)" } else { "" };
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        let text = format!("<{text}{device}>{deleted}");
        Some((descriptor, Behind { text, path: is_file.then_some(path).filter(|_| !is_deleted) }))
    }

    /// `TCP:[127.0.0.1:34->127.0.0.1:5432]`
    fn socket(&self, head: &[u8], sockets: &Sockets) -> Option<String> {
        let sock = self.element(SOCKET)?;
        let [family, own, other, ..] = sockets.common.map(|at| at as usize);
        let (kind, protocol) = (i32::from(head.u16(TYPE_AT)?), i32::from(head.u16(PROTOCOL_AT)?));
        let inode = head.u64(INODE_AT)?;
        match i32::from(sock.u16(family)?) {
            family @ (libc::AF_INET | libc::AF_INET6) => {
                let name = match protocol {
                    libc::IPPROTO_TCP => "TCP",
                    libc::IPPROTO_UDP => "UDP",
                    libc::IPPROTO_UDPLITE => "UDP-Lite",
                    _ => return None,
                };
                let name = format!("{name}{}", if family == libc::AF_INET6 { "v6" } else { "" });
                let (port, to) = (sock.u16(own)?, u16::from_be(sock.u16(other)?));
                let [from, at] = addresses(sock, family, sockets)?;
                Some(match (port, to) {
                    (0, _) => format!("{name}:[{inode}]"),
                    (_, 0) if at.is_unspecified() => format!("{name}:[{}]", SocketAddr::new(from, port)),
                    _ => format!("{name}:[{}->{}]", SocketAddr::new(from, port), SocketAddr::new(at, to)),
                })
            }
            libc::AF_UNIX => {
                let kind = match kind {
                    libc::SOCK_STREAM => "STREAM",
                    libc::SOCK_DGRAM => "DGRAM",
                    libc::SOCK_SEQPACKET => "SEQPACKET",
                    _ => return None,
                };
                let peer = head.u64(PEER_AT).filter(|peer| *peer != 0).map(|peer| format!("->{peer}"));
                let path = self.address().map(|path| format!(",{path}"));
                Some(format!("UNIX-{kind}:[{inode}{}{}]", peer.unwrap_or_default(), path.unwrap_or_default()))
            }
            libc::AF_NETLINK => Some(match (netlink(protocol), head.u32(PORT_AT)?) {
                (Some(name), port @ 1..) => format!("NETLINK:[{name}:{port}]"),
                _ => format!("NETLINK:[{inode}]"),
            }),
            _ => None,
        }
    }

    /// The path of an AF_UNIX socket. An abstract one begins with @.
    fn address(&self) -> Option<String> {
        let address = self.element(ADDRESS)?;
        // struct unix_address { refcount_t refcnt; int len; struct sockaddr_un name[]; }
        let length = usize::try_from(address.u32(0)?).ok()?;
        let path = address.get(6..4 + length)?;
        let quotes = Quotes { limit: path.len(), hexadecimal: 0 };
        match path.split_first()? {
            (0, name) => Some(quotes.quoted((&[b"@", name].concat(), false))),
            _ => Some(quotes.quoted((path.split(|byte| *byte == 0).next()?, false))),
        }
    }
}

/// As strace(1) has it: a name may not end the brackets.
fn bracketed(path: &[u8]) -> String {
    let quoted = Quotes::default().quoted((path, false));
    quoted[1..quoted.len() - 1].replace('<', "\\74").replace('>', "\\76")
}

/// `<char 1:3>`
fn device(head: &[u8]) -> Option<String> {
    let kind = match u32::from(head.u16(MODE_AT)?) & kernel::S_IFMT {
        kernel::S_IFCHR => "char",
        kernel::S_IFBLK => "block",
        _ => return None,
    };
    // As the kernel has it: MKDEV, include/linux/kdev_t.h.
    let number = head.u32(DEVICE_AT)?;
    Some(format!("<{kind} {}:{}>", number >> 20, number & 0xf_ffff))
}

/// The socket's own address, and that of its peer.
fn addresses(sock: &[u8], family: i32, sockets: &Sockets) -> Option<[IpAddr; 2]> {
    let [.., own, other, own_v6, other_v6] = sockets.common.map(|at| at as usize);
    Some(match family {
        libc::AF_INET => [IpAddr::V4(Ipv4Addr::from(sock.part(own)?)), IpAddr::V4(Ipv4Addr::from(sock.part(other)?))],
        _ => [
            IpAddr::V6(Ipv6Addr::from(sock.part::<16>(own_v6)?)),
            IpAddr::V6(Ipv6Addr::from(sock.part::<16>(other_v6)?)),
        ],
    })
}

fn netlink(protocol: i32) -> Option<&'static str> {
    Some(match protocol {
        libc::NETLINK_ROUTE => "ROUTE",
        libc::NETLINK_USERSOCK => "USERSOCK",
        libc::NETLINK_SOCK_DIAG => "SOCK_DIAG",
        libc::NETLINK_XFRM => "XFRM",
        libc::NETLINK_AUDIT => "AUDIT",
        libc::NETLINK_NETFILTER => "NETFILTER",
        libc::NETLINK_KOBJECT_UEVENT => "KOBJECT_UEVENT",
        libc::NETLINK_GENERIC => "GENERIC",
        libc::NETLINK_CRYPTO => "CRYPTO",
        _ => return None,
    })
}
