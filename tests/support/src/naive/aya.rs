//! The same rings, opened and read by aya.

use super::{Found, Rings};
use crate::bpf;
use crate::foreign::page_size;
use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{Map, MapData, PerfEventArray};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The rings, by CPU. They live as long as the map's file, which the array has.
pub(super) struct Buffers {
    buffers: Vec<(u32, PerfEventArrayBuffer<MapData>)>,
    _array: PerfEventArray<MapData>,
}

pub(super) fn open(map: &bpf::Map, cpus: [u32; 2], bytes: usize) -> io::Result<Buffers> {
    let data = MapData::from_fd(map.as_fd().try_clone_to_owned()?).map_err(io::Error::other)?;
    let map = Map::from_map_data(data).map_err(io::Error::other)?;
    let mut array = PerfEventArray::try_from(map).map_err(io::Error::other)?;
    let mut buffers = Vec::new();
    for cpu in cpus {
        buffers.push((cpu, array.open(cpu, Some(bytes / page_size())).map_err(io::Error::other)?));
    }
    Ok(Buffers { buffers, _array: array })
}

impl Rings for Buffers {
    fn read(&mut self, each: &mut dyn FnMut(u32, Found<'_>)) {
        for (cpu, buffer) in self.buffers.iter_mut().filter(|(_, buffer)| buffer.readable()) {
            buffer.for_each(|event| match event {
                PerfEvent::Sample { head, tail: [] } => each(*cpu, Found::Sample(head)),
                PerfEvent::Sample { head, tail } => each(*cpu, Found::Sample(&[head, tail].concat())),
                PerfEvent::Lost { count } => each(*cpu, Found::Lost(count)),
            });
        }
    }

    fn events(&self) -> Vec<OwnedFd> {
        self.buffers.iter().filter_map(|(_, buffer)| buffer.as_fd().try_clone_to_owned().ok()).collect()
    }
}
