//! Whether rings can be merged with the options of a user.

use crate::error::{Error, ErrorKind};
use crate::merge::place::RINGS;
use crate::merge::rules::Rule;
use crate::order::Order;
use crate::order::arrivals::too_many;
use crate::order::key::Key;
use crate::order::unmerged::Unmerged;
use crate::record::Layout;
use crate::ring::{ANY_CPU, Ring};
use crate::rings::{CpuRing, Rings};

/// An error if the clock of live rings can be set back, or if the key is the kernel's time and the records of a ring
/// have none.
fn check_key(rings: &Rings, key: &Key) -> Result<(), Error> {
    if !rings.are_from_elsewhere() {
        rings.clock().check_is_steady()?;
    }
    if matches!(key, Key::Time)
        && let Some(cpu_ring) = rings.cpu_rings.iter().find(|cpu_ring| !cpu_ring.origin.layout.has_time())
    {
        if rings.are_from_elsewhere() {
            // Its records need not say their CPU.
            let message = "its records carry no time to order by (perf record --no-timestamp): name another key";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        return Err(no_time(cpu_ring.origin.cpu, &cpu_ring.ring, &cpu_ring.origin.layout));
    }
    Ok(())
}

fn no_time(cpu: u32, ring: &Ring, layout: &Layout) -> Error {
    let message = if layout.has_fields() {
        let cure = "name another key, or open the ring with PERF_SAMPLE_TIME";
        format!("the records of CPU {cpu} carry no time to order by: {cure}")
    } else {
        let cure = "unless the program writes one: name its field of the payload";
        format!("the records of {} carry no time to order by, {cure}", ring.properties().name)
    };
    Error::new(ErrorKind::InvalidInput, message)
}

/// Whether one more ring can join these, of which some may be read already.
pub(super) fn check_more(rings: &Rings, cpu: u32, ring: &Ring, layout: &Layout, under: &Unmerged) -> Result<(), Error> {
    let refused = |kind, message: &'static str| Err(Error::new(kind, message));
    if rings.are_complete() {
        return refused(ErrorKind::InvalidInput, "no ring can join a recording");
    }
    // A proof that is under way has not seen what programs had reserved in it, or which number comes first there.
    if ring.properties().reserves || matches!(under.frontier.rule, Rule::Number { .. }) {
        let message =
            "no BPF ring buffer can join a reader that runs, nor any ring one that counts: make a reader of all";
        return refused(ErrorKind::Unsupported, message);
    }
    if rings.cpu_rings.len() >= RINGS {
        return Err(too_many(rings.cpu_rings.len() + 1, RINGS));
    }
    if under.keys.are_times() && !layout.has_time() { Err(no_time(cpu, ring, layout)) } else { Ok(()) }
}

/// Whether these rings can be merged with these options.
pub(super) fn check(rings: &Rings, order: &Order) -> Result<(), Error> {
    if rings.cpu_rings.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "no rings"));
    }
    if rings.cpu_rings.len() > RINGS {
        return Err(too_many(rings.cpu_rings.len(), RINGS));
    }
    for (at, cpu_ring) in rings.cpu_rings.iter().enumerate() {
        if rings.cpu_rings[..at].iter().any(|other| other.ring.is_same_map(&cpu_ring.ring)) {
            let cpu = cpu_ring.origin.cpu;
            let of = if cpu == ANY_CPU { "all CPUs".into() } else { format!("CPU {cpu}") };
            let message = format!(
                "the ring buffer of {of} was added twice: one reader would give back what the other still holds"
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
    }
    check_key(rings, &order.key)?;
    let names_none = |cpu_ring: &&CpuRing| {
        cpu_ring.ring.properties().is_shared && cpu_ring.origin.cpu == ANY_CPU && cpu_ring.origin.layout.cpu().is_none()
    };
    if let Some(cpu_ring) = rings.cpu_rings.iter().find(names_none).filter(|_| order.numbers.is_some()) {
        let name = cpu_ring.ring.properties().name;
        let message = format!(
            "CPUs share {name}: to number the records of each CPU, its layout must name the field that has the CPU"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}
