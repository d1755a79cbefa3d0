//! The facts that hold for all records of a ring.

use crate::record::Layout;
use smallvec::SmallVec;

/// Where a record comes from: what its ring knows about all its records.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) cpu: u32,
    pub(crate) layout: Layout,
    /// The events that write into the ring, and the source of each, by rising id.
    sources: Sources,
    /// The same of events that died with their CPU, and the position after their last record.
    pub(super) past: SmallVec<[(u64, Sources); 1]>,
    /// The one source of all events: records then need no id.
    pub(super) only: Option<usize>,
    /// Whether another program opened the ring's event, and nobody knows what it asked for.
    pub(crate) is_adopted: bool,
}

/// Event ids (`PERF_EVENT_IOC_ID`), and the index of each event's source.
pub(crate) type Sources = SmallVec<[(u64, usize); 4]>;

impl Origin {
    pub(crate) fn new(cpu: u32, layout: Layout, mut sources: Sources) -> Self {
        // A recording can have many sources.
        sources.sort_unstable();
        let mut origin = Self { cpu, layout, sources, past: SmallVec::new(), only: None, is_adopted: false };
        let only = origin.all().next().map(|(_, first)| first);
        origin.only = only.filter(|only| origin.all().all(|(_, source)| source == *only));
        origin
    }

    /// The same, but every record must have an id, even if all known ids have one source: a recording also has records
    /// of no source.
    pub(crate) fn asked(self) -> Self {
        Self { only: None, ..self }
    }

    /// The same, but of a ring that was adopted.
    pub(crate) fn adopted(self) -> Self {
        Self { is_adopted: true, ..self }
    }

    /// The same, with other events that write into the ring from a position on. Nothing before `oldest` is unread.
    pub(crate) fn with(&self, new: Sources, begin: u64, oldest: u64) -> Self {
        let mut origin = Self::new(self.cpu, self.layout, new);
        origin.past = self.past.iter().cloned().chain([(begin, self.sources.clone())]).collect();
        origin.past.retain(|(end, _)| *end > oldest);
        origin.only = origin.only.filter(|only| origin.all().all(|(_, source)| source == *only));
        origin
    }

    /// All ids, and the source of each.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, usize)> {
        self.sources.iter().chain(self.past.iter().flat_map(|(_, sources)| sources)).copied()
    }

    /// The source of an event id.
    #[inline]
    pub(crate) fn source(&self, id: u64) -> Option<usize> {
        let past = self.past.iter().map(|(_, sources)| sources);
        std::iter::once(&self.sources).chain(past).find_map(|sources| {
            let at = sources.binary_search_by_key(&id, |(known, _)| *known).ok()?;
            sources.get(at).map(|(_, source)| *source)
        })
    }
}
