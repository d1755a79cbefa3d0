//! How the scheduler is traced: by programs that tell the call at the switch, or by tracepoints alone.

#[cfg(feature = "btf")]
use super::switch::Switches;
use crate::args::Common;
use crate::numbers::Numbers;
use perf_event_open_sys::bindings;
use perfweave::{Order, RingOptions};
use perfweave_events::EventOptions;

/// By which of the two, if it is asked for.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Way {
    /// Trace with tracepoints alone, as where BPF is refused: calls at each entry and return
    #[arg(long)]
    pub no_bpf: bool,
}

/// What runs in the kernel, as long as this lives.
#[derive(Debug)]
pub struct Tracing {
    #[cfg(feature = "btf")]
    programs: Option<Switches>,
    /// Why it is by tracepoints alone.
    without: Option<String>,
    calls: bool,
}

/// Has each CPU tell where it stands, if a program can.
#[derive(Debug, Clone, Default)]
pub struct Look {
    #[cfg(feature = "btf")]
    stands: Option<super::switch::Stands>,
}

impl Look {
    /// `is_last`: nothing is asked for that comes later.
    pub fn now(&self, is_last: bool) {
        #[cfg(feature = "btf")]
        self.stands.iter().for_each(|stands| stands.tell(is_last));
        #[cfg(not(feature = "btf"))]
        let _ = is_last;
    }
}

impl Tracing {
    /// `calls`: whether it is asked in which calls threads wait. `without`: why programs will not do, if so.
    pub fn begin(way: Way, calls: bool, without: Option<&str>) -> Self {
        let without = without.or(way.no_bpf.then_some("--no-bpf")).map(str::to_owned);
        // There the kernel's own record of a switch says which number the next thread has.
        let without = without.or_else(|| (!Numbers::are_the_kernels()).then(|| "in a PID namespace".into()));
        #[cfg(feature = "btf")]
        {
            let (programs, without) = match without {
                Some(why) => (None, Some(why)),
                None => match Switches::begin(calls) {
                    Ok(programs) => (Some(programs), None),
                    Err(error) => (None, Some(refused(&*error))),
                },
            };
            Self { programs, without, calls }
        }
        #[cfg(not(feature = "btf"))]
        Self { without: without.or_else(|| Some("built without the feature btf".into())), calls }
    }

    /// Who runs and who wakes whom.
    ///
    /// Where a kernel leaves a `sched_switch` out, its own record of the switch still says who runs: on a virtual
    /// machine that was one in six, most of them from an idle CPU. And in a PID namespace only that record has the
    /// number of the next thread.
    ///
    /// The kernel counts a wake-up for the waker alone. So who wants those of some threads traces the whole machine.
    pub fn sources(&self, options: RingOptions) -> RingOptions {
        #[cfg(feature = "btf")]
        if let Some(programs) = &self.programs {
            return programs.output(super::wake_ups(options));
        }
        super::sources(options)
    }

    /// The same, and which interrupts take a CPU from a thread.
    pub fn sources_and_interrupts(&self, options: RingOptions) -> RingOptions {
        super::INTERRUPTS.into_iter().fold(self.sources(options), EventOptions::tracepoint)
    }

    /// All that a [`Scheduler`](super::Scheduler) takes: also in which calls threads wait, and what the interrupts are
    /// called that wake them. `but`: without some tracepoints.
    pub fn all_sources(&self, options: RingOptions, but: impl Fn(&str) -> bool) -> RingOptions {
        #[cfg(feature = "btf")]
        if let Some(programs) = &self.programs {
            let is_told = |name: &str| super::BY_PROGRAMS.contains(&name);
            return programs.output(super::tracepoints(options, |name| is_told(name) || but(name)));
        }
        super::tracepoints(options, but).records([bindings::PERF_RECORD_SWITCH])
    }

    /// The order of what is told. The one record of a switch is of two threads: if the first is this program's, it is
    /// the other's as well. Of tracepoints, the kernel's own record has the other.
    pub fn order(&self, common: &Common) -> Order {
        if self.is_by_programs() { Order::new().hold(common.hold.clone()) } else { common.order() }
    }

    /// What has each CPU tell where it stands: once its rings are open, and before they are read for the last time.
    /// Then no switch of the time in between is missing unseen.
    pub fn look(&self) -> Look {
        Look {
            #[cfg(feature = "btf")]
            stands: self.programs.as_ref().map(|programs| programs.stands().clone()),
        }
    }

    /// Whether the call is told at the switch.
    pub fn is_by_programs(&self) -> bool {
        self.without.is_none()
    }

    /// Why not, if so.
    pub fn without(&self) -> Option<&str> {
        self.without.as_deref()
    }

    /// Whether it is told in which calls threads fall asleep.
    pub fn tells_calls(&self) -> bool {
        self.calls
    }

    /// What a summary says of it.
    pub fn words(&self) -> String {
        match (&self.without, self.calls) {
            (None, true) => "calls from the registers at switches".into(),
            (None, false) => "switches by a BPF program".into(),
            (Some(why), true) => format!("calls traced at each entry and return ({why})"),
            (Some(why), false) => format!("switches by tracepoints ({why})"),
        }
    }
}

/// Why programs are not granted, in a line. The verifier's log is none.
#[cfg(feature = "btf")]
fn refused(error: &dyn std::error::Error) -> String {
    let first = crate::failure::without_log(error);
    let needs = if nix::unistd::geteuid().is_root() { "" } else { "; it takes CAP_BPF and CAP_PERFMON" };
    format!("BPF is refused: {first}{needs}")
}
