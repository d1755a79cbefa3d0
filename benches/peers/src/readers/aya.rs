//! aya's perf buffers. Their wake-up is one for each event, and there is no option for it.

use super::{POLL, Start, wait};
use crate::Result;
use crate::tally::Seen;
use aya::maps::perf::PerfEvent;
use aya::maps::{Map, MapData, PerfEventArray};
use aya::util::online_cpus;
use nix::poll::{PollFd, PollFlags};
use perfweave_support::foreign::page_size;
use std::os::fd::{AsFd, OwnedFd};

pub fn default(map: OwnedFd, start: &Start) -> Result<Seen> {
    let mut array = PerfEventArray::try_from(Map::from_map_data(MapData::from_fd(map)?)?)?;
    let mut buffers = Vec::new();
    for cpu in online_cpus().map_err(|(_, error)| error)? {
        buffers.push(array.open(cpu, Some(start.bytes / page_size()))?);
    }
    let mut tally = start.ready(|| ());
    loop {
        let over = start.is_over();
        for buffer in buffers.iter_mut().filter(|buffer| buffer.readable()) {
            buffer.for_each(|event| match event {
                PerfEvent::Sample { head, tail: [] } => tally.bytes(head),
                PerfEvent::Sample { head, tail } => tally.bytes(&[head, tail].concat()),
                PerfEvent::Lost { count } => tally.lost(count),
            });
        }
        if over {
            return Ok(tally.end());
        }
        let mut fds: Vec<_> = buffers.iter().map(|buffer| PollFd::new(buffer.as_fd(), PollFlags::POLLIN)).collect();
        wait(&mut fds, POLL)?;
    }
}
