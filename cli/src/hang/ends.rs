//! Who has the other end of a pipe or a socket open.

use super::threads;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd;

/// The descriptors of all processes that may be read, by what is behind them: `pipe:[7]`.
#[derive(Debug, Default)]
pub struct Ends(HashMap<String, Vec<End>>);

/// One descriptor of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub pid: u32,
    pub reads: bool,
    pub writes: bool,
}

impl Ends {
    /// Reads them all, once.
    pub fn read() -> Self {
        let mut all: HashMap<String, Vec<End>> = HashMap::new();
        for pid in threads::processes() {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for descriptor in descriptors.flatten() {
                let Some(file) =
                    fs::read_link(descriptor.path()).ok().and_then(|path| path.into_os_string().into_string().ok())
                else {
                    continue;
                };
                if !file.starts_with("pipe:[") && !file.starts_with("socket:[") && file != "/dev/fuse" {
                    continue;
                }
                // Of a socket both ends are the same.
                let access = Some(&file).filter(|file| file.starts_with("pipe:["));
                let access = access.and_then(|_| access_of(pid, &descriptor.file_name().to_string_lossy()));
                let access = access.unwrap_or(nix::libc::O_RDWR);
                let (reads, writes) = (access != nix::libc::O_WRONLY, access != nix::libc::O_RDONLY);
                all.entry(file).or_default().push(End { pid, reads, writes });
            }
        }
        Self(all)
    }

    /// The processes that have such a descriptor, each once.
    pub fn who(&self, file: &str, is_right: impl Fn(&End) -> bool) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.0.get(file).into_iter().flatten().filter(|end| is_right(end)).map(|end| end.pid).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// How a descriptor is open: `O_RDONLY`, `O_WRONLY` or `O_RDWR`.
fn access_of(pid: u32, descriptor: &str) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    let flags = info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok())?;
    Some(flags & nix::libc::O_ACCMODE)
}

/// The number in `socket:[7]`.
pub fn inode(file: &str) -> Option<u32> {
    file.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

// struct unix_diag_req and unix_diag_msg, include/uapi/linux/unix_diag.h; sock_diag(7).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
const HEADER: usize = 16;
const MESSAGE: usize = 16;

/// The socket at the other end of one of the family `AF_UNIX`.
pub fn unix_peer(inode: u32) -> Option<u32> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag).ok()?;
    let mut request = Vec::new();
    let mut words = |words: &[u32]| words.iter().for_each(|word| request.extend(word.to_ne_bytes()));
    // struct nlmsghdr: length, type and flags (NLM_F_REQUEST), sequence, sender.
    let kind = u32::from_ne_bytes([SOCK_DIAG_BY_FAMILY.to_ne_bytes(), 1u16.to_ne_bytes()].concat().try_into().ok()?);
    words(&[(HEADER + 24) as u32, kind, 1, 0]);
    // family and protocol; all states; the socket; what is wanted; no cookie.
    words(&[u32::from_ne_bytes([nix::libc::AF_UNIX as u8, 0, 0, 0]), u32::MAX, inode, UDIAG_SHOW_PEER]);
    words(&[u32::MAX, u32::MAX]);
    send(socket.as_raw_fd(), &request, MsgFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let read = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).ok()?;
    peer(&answer[..read])
}

/// The peer that an answer has.
fn peer(answer: &[u8]) -> Option<u32> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    if u16_at(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut at = HEADER + MESSAGE;
    loop {
        // struct nlattr: its length with this header, and its type.
        let (len, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        if kind == UNIX_DIAG_PEER {
            return Some(u32::from_ne_bytes(*answer.get(at + 4..)?.first_chunk()?));
        }
        at += len.next_multiple_of(4).max(4);
    }
}

/// The socket of this machine at the other end of a TCP connection, in the network namespace of a process.
pub fn tcp_peer(pid: u32, inode: u32) -> Option<u32> {
    let mut rows = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        rows.extend(text.lines().skip(1).filter_map(tcp_row));
    }
    let (local, remote, _) = rows.iter().find(|(.., found)| *found == inode)?;
    rows.iter().find(|(its, other, found)| its == remote && other == local && *found != 0).map(|(.., found)| *found)
}

/// Both addresses, and the socket's number. An IPv4 address in a table of IPv6 is as in the other.
fn tcp_row(line: &str) -> Option<(String, String, u32)> {
    let mut fields = line.split_whitespace().skip(1);
    let mut address =
        || fields.next().map(|text| text.strip_prefix("0000000000000000FFFF0000").unwrap_or(text).to_owned());
    let (local, remote) = (address()?, address()?);
    // After both: state, queues, timer, retransmits, user, time-outs.
    Some((local, remote, fields.nth(6)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn file(descriptor: impl AsFd) -> String {
        let path = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
        fs::read_link(path).unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn other_ends_are_found() {
        let (reads, writes) = std::io::pipe().unwrap();
        let own = std::process::id();
        let ends = Ends::read();
        assert_eq!(file(&reads), file(&writes));
        assert_eq!(ends.who(&file(&reads), |end| end.writes && !end.reads), [own]);
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(unix_peer(inode(&file(&one)).unwrap()), inode(&file(&other)));
        let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listens.local_addr().unwrap()).unwrap();
        let (server, _) = listens.accept().unwrap();
        assert_eq!(tcp_peer(own, inode(&file(&client)).unwrap()), inode(&file(&server)));
        assert_eq!(peer(&[0; 40]), None);
    }
}
