//! CPUs that come online: their rings join the stream.

use crate::error::{Error, ErrorKind};
use crate::order::cursor::Cursor;
use crate::order::key::Keys;
use crate::order::note::Notice;
use crate::order::stream::Stream;
use crate::rings::untraced::Moment;
use crate::rings::{CpuRing, Rings};

/// Opens rings for CPUs that came online, with at most so many rings in all. Returns whether there is a new one.
pub(super) fn follow(rings: &mut Rings, stream: &mut Stream, most: usize) -> Result<bool, Error> {
    let mut new = Vec::new();
    let mut failed = rings.arrived(&mut new);
    let (all, room) = (rings.cpu_rings.len() + new.len(), most.saturating_sub(rings.cpu_rings.len()));
    for cpu_ring in new.drain(room.min(new.len())..) {
        let now = Moment::now(rings.clock());
        if rings.untraced.failed(cpu_ring.origin.cpu, now) {
            failed = Err(too_many(all, most));
        }
    }
    let any = !new.is_empty();
    {
        let mut news = rings.untraced.take_news().map(Notice::Untraced).peekable();
        if news.peek().is_some() {
            // They come before what was merged.
            stream.unmerged().notices.extend(news);
        }
    }
    for cpu_ring in new {
        join(rings, stream, cpu_ring);
    }
    failed.map(|()| any)
}

/// A ring joins the stream.
pub(super) fn join(rings: &mut Rings, stream: &mut Stream, cpu_ring: CpuRing) {
    // After the other rings of that CPU: ring indexes decide between equal keys.
    let ring_index = rings.cpu_rings.partition_point(|other| other.origin.cpu <= cpu_ring.origin.cpu);
    let cursor = cursor_of(&cpu_ring, &stream.under().keys);
    stream.insert(ring_index, cursor);
    rings.cpu_rings.insert(ring_index, cpu_ring);
}

/// The cursor of a ring of which nothing is read yet.
pub(super) fn cursor_of(cpu_ring: &CpuRing, keys: &Keys) -> Cursor {
    Cursor::new(cpu_ring.ring.tail(), keys.new_numbers(&cpu_ring.origin.layout))
}

pub(super) fn too_many(rings: usize, most: usize) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{rings} rings: at most {most}"))
}
