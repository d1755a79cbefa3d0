//! perf's modifiers of events, as in `cycles:u` (perf-list(1)).

use crate::failure::Failure;
use perf_event_open_sys::bindings::perf_event_attr;
use perfweave::RingOptions;
use perfweave_events::EventOptions;
use std::fs;

/// The letters behind an event's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modifiers(String);

/// Those that are understood, and those that perf has beside them.
const KNOWN: &str = "ukhGHIpPDe";
const OTHERS: &str = "SWbR";

impl Modifiers {
    /// An event's name and its modifiers: `cpu-clock:u`, `cpu/cache-misses/u`, `sched:sched_switch:k`. What a probe's
    /// name ends with is a function.
    pub fn split(name: &str) -> Result<(&str, Self), Failure> {
        const PROBES: [&str; 6] = ["kprobe:", "kretprobe:", "uprobe:", "uretprobe:", "usdt:", "/"];
        let none = (name, Self::default());
        if PROBES.iter().any(|kind| name.starts_with(kind)) {
            return Ok(none);
        }
        let (event, letters) = match name.rsplit_once('/') {
            Some((unit, letters)) => (&name[..=unit.len()], letters.trim_start_matches(':')),
            None => match name.rsplit_once(':') {
                Some(parts) => parts,
                None => return Ok(none),
            },
        };
        let are_letters = |known: &dyn Fn(char) -> bool| !letters.is_empty() && letters.chars().all(known);
        if !are_letters(&|letter| KNOWN.contains(letter) || OTHERS.contains(letter)) {
            return Ok(none);
        }
        match letters.chars().find(|letter| OTHERS.contains(*letter)) {
            None => Ok((event, Self(letters.to_owned()))),
            Some(letter) => Err(Failure::hinting(
                format_args!("{name}: the modifier {letter} of perf is not understood here"),
                format_args!("these are: {KNOWN}"),
            )),
        }
    }

    fn has(&self, letter: char) -> bool {
        self.0.contains(letter)
    }

    /// Whether they say where the event counts: in user mode, in the kernel or in a hypervisor.
    fn says_where(&self) -> bool {
        ['u', 'k', 'h'].into_iter().any(|letter| self.has(letter))
    }

    /// The same without the kernel, unless they say otherwise.
    pub fn in_user_mode(&self) -> Self {
        if self.says_where() { self.clone() } else { Self(format!("{}u", self.0)) }
    }

    /// Sets this for the event that was added last, which has `name`.
    pub fn set(&self, options: RingOptions, name: &str) -> RingOptions {
        if self.0.is_empty() {
            return options;
        }
        // The kernel's tracepoints would never be written: that is an error.
        let options = if self.has('u') && !self.has('k') { options.user_only() } else { options };
        let options = options.set("modifiers", &[], "", |event| {
            self.apply(&mut event.attr);
            Ok(())
        });
        let is_tracepoint = name.contains(':');
        if is_tracepoint { options } else { options.named(&format!("{name}:{}", self.0)) }
    }

    fn apply(&self, attr: &mut perf_event_attr) {
        if self.says_where() {
            attr.set_exclude_user(u64::from(!self.has('u')));
            attr.set_exclude_kernel(u64::from(!self.has('k')));
            attr.set_exclude_hv(u64::from(!self.has('h')));
            attr.set_exclude_callchain_kernel(u64::from(!self.has('k')));
        }
        if self.has('G') || self.has('H') {
            attr.set_exclude_host(u64::from(!self.has('H')));
            attr.set_exclude_guest(u64::from(!self.has('G')));
        }
        let precise = if self.has('P') { most_precise() } else { self.0.matches('p').count() as u64 };
        attr.set_precise_ip(precise.min(3));
        attr.set_exclude_idle(u64::from(self.has('I')));
        attr.set_pinned(u64::from(self.has('D')));
        attr.set_exclusive(u64::from(self.has('e')));
    }
}

/// How exact this machine's addresses of samples can be.
fn most_precise() -> u64 {
    let most = fs::read_to_string("/sys/bus/event_source/devices/cpu/caps/max_precise").ok();
    most.and_then(|most| most.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Modifiers;
    use perf_event_open_sys::bindings::perf_event_attr;

    #[test]
    fn names_and_modifiers_are_told_apart() {
        let split = |name| Modifiers::split(name).map(|(name, letters)| (name.to_owned(), letters.0)).unwrap();
        for (name, event, letters) in [
            ("cpu-clock:u", "cpu-clock", "u"),
            ("cycles:ppp", "cycles", "ppp"),
            ("cycles:ukhGHI", "cycles", "ukhGHI"),
            ("cpu/cache-misses/u", "cpu/cache-misses/", "u"),
            ("cpu/event=0x3c/:k", "cpu/event=0x3c/", "k"),
            ("cpu/cache-misses/", "cpu/cache-misses/", ""),
            ("sched:sched_switch", "sched:sched_switch", ""),
            ("sched:sched_switch:k", "sched:sched_switch", "k"),
            ("cpu-clock", "cpu-clock", ""),
            ("uprobe:/usr/bin/true:p", "uprobe:/usr/bin/true:p", ""),
            ("kprobe:p", "kprobe:p", ""),
        ] {
            assert_eq!(split(name), (event.to_owned(), letters.to_owned()), "{name}");
        }
        assert!(Modifiers::split("cycles:S").unwrap_err().message().contains("the modifier S"));
    }

    #[test]
    fn modifiers_are_those_of_perf() {
        let of = |letters: &str| {
            let mut attr = perf_event_attr::default();
            Modifiers(letters.to_owned()).apply(&mut attr);
            [
                attr.exclude_user(),
                attr.exclude_kernel(),
                attr.exclude_hv(),
                attr.precise_ip(),
                attr.exclude_idle(),
                attr.exclude_host(),
                attr.exclude_guest(),
            ]
        };
        assert_eq!(of("u"), [0, 1, 1, 0, 0, 0, 0]);
        assert_eq!(of("k"), [1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(of("ukh"), [0; 7]);
        assert_eq!(of("ppI"), [0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(of("G"), [0, 0, 0, 0, 0, 1, 0]);
        let user = |letters: &str| Modifiers(letters.to_owned()).in_user_mode().0;
        assert_eq!(["", "pp", "k", "u"].map(user), ["u", "ppu", "k", "u"]);
    }
}
