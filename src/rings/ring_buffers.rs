//! What the kernel does not count of BPF ring buffers: reservations that failed.

use crate::error::{Error, ErrorKind};
use crate::ring::ANY_CPU;
use crate::rings::no_such_cpu;
use crate::sys::{bpf, machine};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The counts of failed reservations: a map with a word for each possible CPU.
pub(crate) struct Failures {
    map: Arc<OwnedFd>,
    /// How many CPUs the machine can have, and which of them counts; `None` for all.
    possible: usize,
    which: Option<usize>,
    /// What was counted before the ring was adopted.
    before: u64,
}

impl Failures {
    /// The counts of the BPF ring buffers of these CPUs, from now on.
    pub(super) fn of(map: BorrowedFd<'_>, buffers: &[u32]) -> Result<Vec<Self>, Error> {
        // Asked for once: what is checked is what is read from then on.
        let map = map.try_clone_to_owned().map_err(Error::cannot("duplicate a map's file descriptor"))?;
        let map = Arc::new(map);
        let info =
            bpf::map_info(map.as_fd()).map_err(|errno| Error::system("ask what the map of failures is", errno))?;
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
            let which = (cpu != ANY_CPU).then(|| possible.iter().position(|other| *other == cpu));
            let Some(which) = which.map_or(Some(None), |which| which.map(Some)) else {
                return Err(no_such_cpu(cpu, possible.last().copied().unwrap_or(0)));
            };
            let mut failures = Self { map: Arc::clone(&map), possible: possible.len(), which, before: 0 };
            failures.before = failures.count().map_err(Error::cannot("read the counts of failed reservations"))?;
            Ok(failures)
        };
        buffers.iter().map(|cpu| counter(*cpu)).collect()
    }

    /// How many reservations have failed since the ring was adopted.
    pub(crate) fn read(&self) -> Option<u64> {
        self.count().ok()
    }

    fn count(&self) -> io::Result<u64> {
        let counts = bpf::map_counts(self.map.as_fd(), self.possible)?;
        let all = match self.which {
            Some(which) => counts.get(which).copied().unwrap_or(0),
            None => counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count)),
        };
        Ok(all.saturating_sub(self.before))
    }
}
