//! Maps of BPF programs that take the events of CPUs: `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.

use crate::error::{Error, ErrorKind, hint};
use crate::sys::{bpf, machine};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// A `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
#[derive(Debug, Clone)]
pub(super) struct EventMap {
    pub(super) fd: Arc<OwnedFd>,
    /// The map's number, which is the same for all descriptors and paths of it.
    pub(super) id: u32,
    pub(super) entries: u32,
}

impl EventMap {
    /// Checks that a map is a perf event array. `event` names it in messages.
    pub(super) fn new(event: &str, map: OwnedFd) -> Result<Self, Error> {
        let other = || match machine::what_is(map.as_fd()) {
            Some(what) if what != "anon_inode:bpf-map" => Some(Error::not_a_map(event, &what).about(event)),
            _ => None,
        };
        match bpf::map_info(map.as_fd()) {
            // Other BPF objects answer too, with structs of their own. A perf event array has keys and values of 4
            // bytes.
            Ok(bpf::MapInfo {
                map_type: bpf::BPF_MAP_TYPE_PERF_EVENT_ARRAY,
                key_size: 4,
                value_size: 4,
                id,
                max_entries,
                ..
            }) => Ok(Self { fd: Arc::new(map), id, entries: max_entries }),
            Ok(info) => Err(other().unwrap_or_else(|| wrong_type(event, info.map_type))),
            Err(errno) => Err(other().unwrap_or_else(|| unusable(errno))),
        }
    }

    /// Opens a map by the path where it is pinned.
    pub(super) fn pinned(event: &str, path: &Path) -> Result<Self, Error> {
        Self::new(event, bpf::pinned(path).map_err(Error::pinned(path))?)
    }
}

fn wrong_type(event: &str, map_type: u32) -> Error {
    let hint = if map_type == bpf::BPF_MAP_TYPE_RINGBUF {
        "it is a BPF ring buffer: adopt its rings as such, or let the program write with \
         bpf_perf_event_output"
    } else {
        ""
    };
    let message = format!("the map is {}, and not a BPF_MAP_TYPE_PERF_EVENT_ARRAY (4)", bpf::map_type(map_type));
    Error::new(ErrorKind::InvalidInput, message).hinting(hint).about(event)
}

/// The kernel says nothing about a file descriptor, or does not duplicate it.
pub(super) fn unusable(errno: io::Error) -> Error {
    let hint = hint::array(&errno);
    let message = "cannot use the file descriptor as a perf event array";
    Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
}
