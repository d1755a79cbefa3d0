//! What the kernel does not count of BPF ring buffers: reservations that failed.

use crate::error::{Error, ErrorKind};
use crate::ring::ANY_CPU;
use crate::rings::{Count, no_such_cpu};
use crate::sys::{bpf, machine};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Counts the failed reservations of the BPF ring buffers of these CPUs from now on, in a map with a word for each
/// possible CPU.
pub(super) fn counts_of(map: BorrowedFd<'_>, buffers: &[u32]) -> Result<Vec<Count>, Error> {
    // Asked for once: what is checked is what is read from then on.
    let map = map.try_clone_to_owned().map_err(Error::cannot("duplicate a map's file descriptor"))?;
    let map = Arc::new(map);
    let info = bpf::map_info(map.as_fd()).map_err(|errno| Error::system("ask what the map of failures is", errno))?;
    let bpf::MapInfo { map_type, key_size, value_size, .. } = info;
    if map_type != bpf::BPF_MAP_TYPE_PERCPU_ARRAY || key_size != 4 || value_size != 8 {
        let message = format!(
            "failed reservations are counted in a BPF_MAP_TYPE_PERCPU_ARRAY with values of 8 bytes; this map is \
             {}, with values of {value_size} bytes",
            bpf::map_type(map_type)
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let possible = machine::possible_cpus().map_err(Error::cannot("list CPUs"))?;
    let shared = |cpu: &u32| buffers.iter().filter(|other| *other == cpu).count() > 1;
    let wrong = if buffers.is_empty() {
        Some("there is no BPF ring buffer")
    } else if buffers.len() > 1 && buffers.contains(&ANY_CPU) || buffers.iter().any(shared) {
        Some("several BPF ring buffers share a CPU, and the counts do not say to which a failure belongs")
    } else {
        None
    };
    if let Some(why) = wrong {
        return Err(Error::new(ErrorKind::InvalidInput, format!("failed reservations cannot be counted: {why}")));
    }
    let counter = |cpu: u32| {
        // Its own word, or those of all CPUs together.
        let words = match possible.iter().position(|other| *other == cpu) {
            _ if cpu == ANY_CPU => 0..possible.len(),
            Some(at) => at..at + 1,
            None => return Err(no_such_cpu(cpu, possible.last().copied().unwrap_or(0))),
        };
        let (map, possible) = (Arc::clone(&map), possible.len());
        let count = move || {
            let counts = bpf::map_counts(map.as_fd(), possible)?;
            let own = counts.get(words.clone()).unwrap_or_default();
            Ok(own.iter().fold(0u64, |sum, count| sum.saturating_add(*count)))
        };
        let before = count().map_err(Error::cannot("read the counts of failed reservations"))?;
        Ok(Box::new(move || count().ok().map(|all| all.saturating_sub(before))) as Count)
    };
    buffers.iter().map(|cpu| counter(*cpu)).collect()
}
