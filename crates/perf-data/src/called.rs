//! The names of events that a recording does not name: those of perf (`tools/perf/util/evsel.c`). Pipes of perf before
//! 4.16 name none, and the attributes say what they are.

use crate::attrs::Attr;
use perf_event_open_sys::bindings as sys;

const HARDWARE: [&str; 10] = [
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
];

const SOFTWARE: [&str; 12] = [
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];

const CACHES: [&str; 7] = ["L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node"];
/// All uses of a cache, and those that miss it.
const USES: [[&str; 2]; 3] = [["loads", "load-misses"], ["stores", "store-misses"], ["prefetches", "prefetch-misses"]];

/// The name of an event that is no tracepoint, with the modes in which it counts. `None` if perf has none: the numbers
/// of other PMUs are each machine's own.
pub(crate) fn name(attr: &Attr) -> Option<String> {
    let config = attr.config();
    let of = |names: &[&str]| names.get(usize::try_from(config).ok()?).map(|name| (*name).to_owned());
    let name = match attr.kind() {
        sys::PERF_TYPE_HARDWARE => of(&HARDWARE),
        sys::PERF_TYPE_SOFTWARE => of(&SOFTWARE),
        sys::PERF_TYPE_HW_CACHE => {
            // A byte each: the cache, its use, and whether it was missed.
            let [cache, r#use, missed, rest @ ..] = config.to_le_bytes().map(usize::from);
            let (cache, uses) = (CACHES.get(cache)?, USES.get(r#use)?);
            (rest == [0; 5]).then_some(format!("{cache}-{}", uses.get(missed)?))
        }
        sys::PERF_TYPE_RAW => Some(format!("raw {config:#x}")),
        _ => None,
    };
    Some(name? + &modes(attr))
}

/// `:u` for one that counts user space alone, and so on (`evsel__add_modifiers`). Not whether it counts guests, of which
/// versions of perf think differently.
fn modes(attr: &Attr) -> String {
    let [user, kernel, hypervisor] = attr.excludes();
    let mut modes = String::new();
    if user || kernel || hypervisor {
        let counted = [(kernel, 'k'), (user, 'u'), (hypervisor, 'h')].into_iter().filter(|(excluded, _)| !excluded);
        modes.extend(counted.map(|(_, mode)| mode));
    }
    modes.extend(std::iter::repeat_n('p', attr.precise().into()));
    if modes.is_empty() { modes } else { format!(":{modes}") }
}

#[cfg(test)]
mod tests {
    use super::{Attr, name};
    use perf_event_open_sys::bindings::perf_event_attr;
    use std::mem::offset_of;

    fn of(kind: u32, config: u64, flags: impl Fn(&mut perf_event_attr)) -> Option<String> {
        let mut attr = perf_event_attr::default();
        flags(&mut attr);
        let mut bytes = [0; size_of::<perf_event_attr>()];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[offset_of!(perf_event_attr, config)..][..8].copy_from_slice(&config.to_ne_bytes());
        let word = (0..64).fold(0, |word, bit| word | u64::from(attr._bitfield_1.get_bit(bit)) << bit);
        let at = offset_of!(perf_event_attr, _bitfield_1);
        let word = if cfg!(target_endian = "big") { word.reverse_bits() } else { word };
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        name(&Attr::of(&bytes))
    }

    #[test]
    fn events_have_the_names_that_perf_gives_them() {
        let plain = |kind, config| of(kind, config, |_| ());
        for (kind, config, name) in [
            (0, 0, "cycles"),
            (0, 9, "ref-cycles"),
            (1, 11, "cgroup-switches"),
            (3, 0x1_0000, "L1-dcache-load-misses"),
            (3, 0x102, "LLC-stores"),
            (3, 0x1_0206, "node-prefetch-misses"),
            (4, 0x1a2, "raw 0x1a2"),
        ] {
            assert_eq!(plain(kind, config).as_deref(), Some(name));
        }
        for (kind, config) in [(0, 10), (1, 12), (3, 7), (3, 0x300), (3, 0x2_0000), (3, 1 << 24), (5, 0), (9, 0)] {
            assert_eq!(plain(kind, config), None, "{kind} {config}");
        }
        assert_eq!(of(0, 0, |attr| attr.set_exclude_kernel(1)).as_deref(), Some("cycles:uh"));
        let user = |attr: &mut perf_event_attr| {
            attr.set_exclude_kernel(1);
            attr.set_exclude_hv(1);
        };
        assert_eq!(of(0, 1, user).as_deref(), Some("instructions:u"));
        assert_eq!(of(0, 0, |attr| attr.set_precise_ip(3)).as_deref(), Some("cycles:ppp"));
        assert_eq!(of(1, 0, |attr| attr.set_exclude_user(1)).as_deref(), Some("cpu-clock:kh"));
    }
}
