//! Names of events, and the attributes that perf_event_open(2) takes for them.

use crate::error::{did_you_mean, short};
use crate::pmu;
use crate::tracefs::{self, Tracefs};
use crate::tracepoint::folders;
use perf_event_open_sys::bindings::{self as sys, perf_event_attr};
use perfweave::{Error, ErrorKind};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const SOFTWARE: [(&str, u32); 12] = [
    ("cpu-clock", sys::PERF_COUNT_SW_CPU_CLOCK),
    ("task-clock", sys::PERF_COUNT_SW_TASK_CLOCK),
    ("page-faults", sys::PERF_COUNT_SW_PAGE_FAULTS),
    ("faults", sys::PERF_COUNT_SW_PAGE_FAULTS),
    ("context-switches", sys::PERF_COUNT_SW_CONTEXT_SWITCHES),
    ("cs", sys::PERF_COUNT_SW_CONTEXT_SWITCHES),
    ("cpu-migrations", sys::PERF_COUNT_SW_CPU_MIGRATIONS),
    ("minor-faults", sys::PERF_COUNT_SW_PAGE_FAULTS_MIN),
    ("major-faults", sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ),
    ("alignment-faults", sys::PERF_COUNT_SW_ALIGNMENT_FAULTS),
    ("emulation-faults", sys::PERF_COUNT_SW_EMULATION_FAULTS),
    ("cgroup-switches", sys::PERF_COUNT_SW_CGROUP_SWITCHES),
];

const HARDWARE: [(&str, u32); 12] = [
    ("cycles", sys::PERF_COUNT_HW_CPU_CYCLES),
    ("cpu-cycles", sys::PERF_COUNT_HW_CPU_CYCLES),
    ("instructions", sys::PERF_COUNT_HW_INSTRUCTIONS),
    ("cache-references", sys::PERF_COUNT_HW_CACHE_REFERENCES),
    ("cache-misses", sys::PERF_COUNT_HW_CACHE_MISSES),
    ("branches", sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
    ("branch-instructions", sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
    ("branch-misses", sys::PERF_COUNT_HW_BRANCH_MISSES),
    ("bus-cycles", sys::PERF_COUNT_HW_BUS_CYCLES),
    ("stalled-cycles-frontend", sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
    ("stalled-cycles-backend", sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
    ("ref-cycles", sys::PERF_COUNT_HW_REF_CPU_CYCLES),
];

const CACHES: [(&str, u32); 7] = [
    ("L1-dcache", sys::PERF_COUNT_HW_CACHE_L1D),
    ("L1-icache", sys::PERF_COUNT_HW_CACHE_L1I),
    ("LLC", sys::PERF_COUNT_HW_CACHE_LL),
    ("dTLB", sys::PERF_COUNT_HW_CACHE_DTLB),
    ("iTLB", sys::PERF_COUNT_HW_CACHE_ITLB),
    ("branch", sys::PERF_COUNT_HW_CACHE_BPU),
    ("node", sys::PERF_COUNT_HW_CACHE_NODE),
];

/// In the singular and in the plural.
const CACHE_USES: [([&str; 2], u32); 3] = [
    (["load", "loads"], sys::PERF_COUNT_HW_CACHE_OP_READ),
    (["store", "stores"], sys::PERF_COUNT_HW_CACHE_OP_WRITE),
    (["prefetch", "prefetches"], sys::PERF_COUNT_HW_CACHE_OP_PREFETCH),
];

/// How many times a second an event that counts time or hardware is sampled, unless a rate is set: as perf(1) does.
const FREQUENCY: u64 = 4000;

/// Samples an event at the usual rate: what counts time or hardware so many times a second, others each time.
pub(crate) fn at_usual_rate(mut attr: perf_event_attr) -> perf_event_attr {
    let is_software = attr.type_ == sys::PERF_TYPE_SOFTWARE;
    let clocks = [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK].map(u64::from);
    if is_software && !clocks.contains(&attr.config) {
        attr.sample_period = 1;
        return attr;
    }
    let most = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok();
    let most = most.and_then(|most| most.trim().parse().ok()).unwrap_or(FREQUENCY);
    attr.set_freq(1);
    attr.sample_freq = FREQUENCY.min(most);
    attr
}

/// The attribute of an event that perf(1) has a name for, without a period.
pub(crate) fn attr(name: &str) -> Result<perf_event_attr, Error> {
    let of = |type_: u32, config: u32| perf_event_attr { type_, config: config.into(), ..Default::default() };
    let find = |table: &[(&str, u32)]| table.iter().find(|(known, _)| *known == name).map(|(_, config)| *config);
    if let Some((unit, terms)) = name.strip_suffix('/').and_then(|name| name.split_once('/')) {
        return of_unit(name, unit, terms);
    }
    if let Some(config) = find(&SOFTWARE) {
        return Ok(of(sys::PERF_TYPE_SOFTWARE, config));
    }
    if let Some(config) = find(&HARDWARE) {
        return Ok(of(sys::PERF_TYPE_HARDWARE, config));
    }
    if let Some((_, config)) = cache_names().find(|(known, _)| known == name) {
        return Ok(of(sys::PERF_TYPE_HW_CACHE, config));
    }
    let names = SOFTWARE.iter().chain(&HARDWARE).map(|(name, _)| (*name).to_owned());
    let hint = did_you_mean(name, names.chain(cache_names().map(|(name, _)| name)));
    let hint = hint.unwrap_or_else(|| {
        "a software event has perf's name, such as page-faults, a PMU's is named pmu/event/, and a tracepoint \
         category:name"
            .into()
    });
    Err(no_event(ErrorKind::NotFound, name, hint))
}

fn no_event(kind: ErrorKind, name: &str, hint: String) -> Error {
    Error::new(kind, format!("there is no event {}", short(name))).hinting(hint).about(name)
}

/// All events of caches: `LLC-loads`, `LLC-load-misses`.
fn cache_names() -> impl Iterator<Item = (String, u32)> {
    let of = |cache: &'static (&str, u32), r#use: &'static ([&str; 2], u32)| {
        let config = cache.1 | r#use.1 << 8;
        let [one, many] = r#use.0;
        let missed = config | sys::PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
        [(format!("{}-{many}", cache.0), config), (format!("{}-{one}-misses", cache.0), missed)]
    };
    CACHES.iter().flat_map(move |cache| CACHE_USES.iter().flat_map(move |r#use| of(cache, r#use)))
}

/// The attribute of `unit/terms/`.
fn of_unit(name: &str, unit: &str, terms: &str) -> Result<perf_event_attr, Error> {
    let error = |errno: io::Error| {
        let units = || pmu::all().ok().map(|units| units.into_iter().map(|(_, unit)| unit));
        let hint = match errno.kind() {
            io::ErrorKind::NotFound if pmu::number(unit).is_err() => {
                units().and_then(|units| did_you_mean(unit, units))
            }
            io::ErrorKind::NotFound => did_you_mean(terms, pmu::terms(unit)),
            _ => None,
        };
        no_event(ErrorKind::of(&errno), name, hint.unwrap_or_default()).because(errno)
    };
    let mut attr = perf_event_attr { type_: pmu::number(unit).map_err(error)?, ..Default::default() };
    let pmu::Config([config, config1, config2]) = pmu::config(unit, terms).map_err(error)?;
    (attr.config, attr.config2) = (config, config2);
    attr.config1 = config1;
    Ok(attr)
}

/// The tracepoint of that name, or all that fit the pattern, sorted by name. Each comes with its number.
pub(crate) fn tracepoints(name: &str) -> Result<Vec<(String, u64)>, Error> {
    let tracefs = tracefs_for(name)?;
    let names = if is_pattern(name) {
        fitting(&tracefs.join("events"), name).map_err(|errno| refused(name, errno))?
    } else {
        vec![name.to_owned()]
    };
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let id = file(&tracefs, &name, "id")?;
        let no_number =
            |_| refused(&name, io::Error::new(io::ErrorKind::InvalidData, format!("its id is {:?}", id.trim())));
        let id = id.trim().parse().map_err(no_number)?;
        found.push((name, id));
    }
    if found.is_empty() { Err(none(&tracefs, name)) } else { Ok(found) }
}

/// Where tracefs is, to look up a tracepoint or a pattern.
pub(crate) fn tracefs_for(name: &str) -> Result<Tracefs, Error> {
    // The parts of a name become parts of a path: a slash would lead elsewhere.
    if !name.contains(':') || name.contains('/') {
        return Err(not_looked_up(name, io::ErrorKind::InvalidInput.into(), "write it as category:name".into()));
    }
    Tracefs::find().map_err(|errno| refused(name, errno))
}

/// A file of a tracepoint.
fn path(tracefs: &Path, name: &str, file: &str) -> PathBuf {
    tracefs.join("events").join(name.replacen(':', "/", 1)).join(file)
}

/// What tracefs has of a tracepoint: `id` or `format`.
pub(crate) fn file(tracefs: &Path, name: &str, file: &str) -> Result<String, Error> {
    let path = path(tracefs, name, file);
    fs::read_to_string(&path).map_err(|errno| match errno.kind() {
        // The directories above it can be searched, so it does not exist.
        io::ErrorKind::NotFound => none(tracefs, name),
        kind => refused(name, io::Error::new(kind, format!("{}: {errno}", Tracefs::named(&path)))),
    })
}

pub(crate) fn refused(name: &str, errno: io::Error) -> Error {
    let hint = tracefs::hint(&errno);
    not_looked_up(name, errno, hint)
}

/// A tracepoint cannot be looked up, so it is unknown whether it exists.
fn not_looked_up(name: &str, source: io::Error, hint: String) -> Error {
    let kind = match ErrorKind::of(&source) {
        // tracefs is not mounted.
        ErrorKind::NotFound => ErrorKind::System,
        kind => kind,
    };
    let message = format!("cannot look up tracepoint {}", short(name));
    Error::new(kind, message).because(source).hinting(hint).about(&format!("tracepoint {name}"))
}

/// There is no such tracepoint.
pub(crate) fn none(tracefs: &Path, name: &str) -> Error {
    let hint = nearest_tracepoint(&tracefs.join("events"), name);
    let all = || format!("see {}", Tracefs::named(&tracefs.join("available_events")));
    let message = format!("there is no tracepoint {}", short(name));
    let error = Error::new(ErrorKind::NotFound, message).hinting(hint.unwrap_or_else(all));
    error.about(&format!("tracepoint {name}"))
}

/// Whether a tracepoint is a probe in tracefs.
pub(crate) fn is_probe(name: &str) -> bool {
    tracefs_for(name).is_ok_and(|tracefs| {
        // A probe's format has `__probe_ip` or `__probe_func` among its fields (kernel/trace/trace_probe.h).
        fs::read_to_string(path(&tracefs, name, "format")).is_ok_and(|text| text.contains("__probe_"))
    })
}

/// Whether a name is a pattern.
pub(crate) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// The tracepoints that fit a pattern.
fn fitting(events: &Path, pattern: &str) -> io::Result<Vec<String>> {
    let (category, event) = pattern.split_once(':').unwrap_or_default();
    let mut found = Vec::new();
    for folder in folders(events)?.iter().filter(|folder| fits(category.as_bytes(), folder.as_bytes())) {
        // Most of these cannot be opened. A pattern that names the category has them all the same.
        if folder == "ftrace" && is_pattern(category) {
            continue;
        }
        let fitting = folders(&events.join(folder))?.into_iter().filter(|name| fits(event.as_bytes(), name.as_bytes()));
        found.extend(fitting.map(|name| format!("{folder}:{name}")));
    }
    Ok(found)
}

/// The tracepoint of the category with the nearest name, or the category with the nearest name if there is no such
/// category.
fn nearest_tracepoint(events: &Path, name: &str) -> Option<String> {
    let (category, event) = name.split_once(':')?;
    match folders(&events.join(category)) {
        Ok(names) => did_you_mean(event, names.into_iter()),
        Err(_) => did_you_mean(category, folders(events).ok()?.into_iter()),
    }
}

/// Whether a name fits a pattern. `*` stands for any bytes and `?` for one.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut byte) = (0, 0);
    // The place after the last star, and how far into the name the star reaches.
    let mut star = None;
    while byte < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, byte));
            }
            Some(one) if *one == b'?' || *one == name[byte] => (at, byte) = (at + 1, byte + 1),
            _ => {
                // The last star takes one more byte. Earlier stars need not: the rest of the pattern is the same.
                let Some((behind, end)) = star else { return false };
                star = Some((behind, end + 1));
                (at, byte) = (behind, end + 1);
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit() {
        let fit = |pattern: &str, name: &str| fits(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in [
            ("*", ""),
            ("*", "abc"),
            ("a*", "a"),
            ("*c", "abc"),
            ("a?c", "abc"),
            ("*b*", "abc"),
            ("abc", "abc"),
            ("a**c", "ac"),
            ("*ab*ab", "aabab"),
            ("a*b?c*", "axbbyc"),
        ] {
            assert!(fit(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("?", ""), ("a?", "a"), ("ab", "abc"), ("*d", "abc"), ("abc", "ab"), ("?*?", "a")]
        {
            assert!(!fit(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn names_are_perfs() {
        let attr = |name: &str| attr(name).map(|attr| (attr.type_, attr.config));
        assert_eq!(attr("cpu-clock").unwrap(), (1, 0));
        assert_eq!(attr("cs").unwrap(), (1, 3));
        let counted = ["cpu-clock", "task-clock", "cs", "faults", "instructions", "LLC-loads"]
            .map(|name| at_usual_rate(super::attr(name).unwrap()).freq() == 1);
        assert_eq!(counted, [true, true, false, false, true, true]);
        assert_eq!(attr("instructions").unwrap(), (0, 1));
        // perf list, and perf_event_open(2): id | op << 8 | result << 16.
        assert_eq!(attr("L1-dcache-loads").unwrap(), (3, 0));
        assert_eq!(attr("LLC-store-misses").unwrap(), (3, 2 | 1 << 8 | 1 << 16));
        assert_eq!(attr("node-prefetches").unwrap(), (3, 6 | 2 << 8));
        let error = attr("cpu-clok").unwrap_err();
        assert!(error.to_string().contains("cpu-clock"), "{error}");
        let error = attr("softwere/event=1/").unwrap_err();
        assert!(error.to_string().contains("software"), "{error}");
        assert!(attr("no-such-thing-at-all").unwrap_err().to_string().contains("pmu/event/"));
    }
}
