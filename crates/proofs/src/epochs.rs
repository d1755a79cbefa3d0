//! Writers' epochs: words in which a tool's own BPF programs say that they are inside.

use crate::watch::Watch;
use perfweave::{ANY_CPU, EpochWords, Error, ErrorKind, Fence, Rings, Source};
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Words in which BPF programs say that they are inside: from before they draw a key until they have written it. One
/// word for each CPU.
///
/// A grace period of the kernel proves order for every producer, and has to be waited for. If only the tool's own
/// programs write into the rings, the programs can say when they are inside. The reader then proves order by reading
/// one word for each CPU, without a thread or a system call. It waits only for a program that is inside.
///
/// # The programs' part
///
/// Each program that writes into the rings enters before it draws its key. It leaves after its output, on every path to
/// its end. In C, with
/// [`Epochs::HEADER`]:
///
/// ```c
/// #include "perfweave.bpf.h"
///
/// PERFWEAVE_EPOCHS(epochs, 1024);                 /* as many as the machine can have CPUs */
///
/// SEC("raw_tp/sys_enter") int on_enter(void *ctx) {
///     perfweave_word *word = perfweave_enter(&epochs);
///     if (!word) return 0;
///     struct event event = { .time = bpf_ktime_get_ns() };
///     bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &event, sizeof event);
///     perfweave_leave(word);
///     return 0;
/// }
/// ```
///
/// Programs may nest and interrupt each other. The kernel draws its times inside the output helper, so they are always
/// inside.
///
/// **Programs that may sleep** (`fentry.s`, `fexit.s`, `fmod_ret.s`, `lsm.s`, `uprobe.s`, `iter.s`, `syscall`,
/// sleepable struct_ops, callbacks of `bpf_wq`) need [`patience(Duration::MAX)`](Self::patience). Then the reader waits
/// for one that sleeps inside, however long that takes, and so do all events. With any other patience a grace period of
/// the kernel takes the place of the proof, and it does not wait for them: their records can be late behind events that
/// are marked as proven, and the reader reports them ([`ErrorKind::Degraded`]).
///
/// # What it does not cover
///
/// - A key that is drawn outside: before the program enters, or saved at the entry of a function and written at its
///   exit. Such a key can be late, as under any fence.
/// - A program that sleeps inside, unless the patience has no end.
/// - A program that writes into the rings and does not enter. The reader cannot see it. Its records can be late
///   although they are marked proven.
/// - Rings that are adopted ([`Rings::add`](perfweave::Rings::add)). The crate does not check who writes there. Only such
///   programs may write.
/// - A program that leaves twice, or that leaves after a tail call, which does not return: leave before the call.
/// - A program that returns without leaving. Its CPU looks occupied for ever. A grace period of the kernel then
///   replaces the proof each time, and the reader reports it ([`ErrorKind::Degraded`]).
///
/// The map is a `BPF_MAP_TYPE_ARRAY` with `BPF_F_MMAPABLE` (Linux 5.5). The programs need atomics that return the old
/// value (Linux 5.12). docs/PROOF.md has the proof.
///
/// On architectures other than x86-64 the reader interrupts every online CPU before each proof, because there a
/// program's clock reading can come before others see that the program has entered. See
/// [`Barrier::INTERRUPTS`](crate::Barrier::INTERRUPTS) for what this takes.
#[derive(Clone)]
#[doc(alias = "quiescent state")]
pub struct Epochs {
    pub(crate) words: Arc<EpochWords>,
    pub(crate) patience: Duration,
    /// What replaces the proof for a program that stays inside.
    pub(crate) stand_in: Fence,
}

/// The default time that a program may be inside before a grace period of the kernel replaces the proof: longer than
/// most of them take.
const PATIENCE: Duration = Duration::from_millis(20);

impl Epochs {
    /// `perfweave.bpf.h`: the programs' part in C. A build script writes it to where clang finds it.
    pub const HEADER: &str = include_str!("perfweave.bpf.h");

    /// Maps the words of a BPF array. `map` has the array's file descriptor, which the program may close afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the map is no such array or lacks an element for a CPU, [`ErrorKind::System`] if
    /// the array cannot be mapped.
    pub fn open(map: impl AsFd) -> Result<Self, Error> {
        EpochWords::open(map).map(|words| Self::over(Arc::new(words)))
    }

    /// Epochs over words that are there: a simulated machine's, or those of a map that several readers share.
    pub fn over(words: Arc<EpochWords>) -> Self {
        Self { words, patience: PATIENCE, stand_in: Fence::Auto }
    }

    /// The fence, for [`Hold::Fence`](perfweave::Hold::Fence).
    pub fn fence(&self) -> Fence {
        let epochs = self.clone();
        Fence::Proof("epochs", Arc::new(move || Box::new(Watch::new(epochs.clone()))))
    }

    /// Sets what replaces the proof for a program that stays inside: [`Fence::Auto`] unless set.
    pub fn stand_in(mut self, fence: Fence) -> Self {
        self.stand_in = fence;
        self
    }

    /// Sets how long a program may be inside before a grace period of the kernel replaces the proof: 20 ms unless set.
    ///
    /// The fence waits for programs that cannot sleep, and for no others. `Duration::MAX` is for programs that may
    /// sleep inside: no fence replaces the proof. Then a program that returns without leaving stops the stream for
    /// good, without a report, and no flush or deadline ends that.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Checks that every writer into the rings uses the epochs, and that each CPU has its word.
    pub(crate) fn check(&self, rings: &Rings) -> Result<(), Error> {
        // A writer that does not count itself may have been interrupted: its ring's head then still hides the record of
        // the program that interrupted it (PROOF).
        if let Some(event) = rings.sources().iter().find(|event| !is_bpf_output(event)).map(Source::name) {
            let message = format!(
                "epochs say nothing of \"{event}\", which writes into the same rings: open rings for BPF output \
                 alone, or choose another fence"
            );
            return Err(Error::new(ErrorKind::Unsupported, message).about(event));
        }
        // All CPUs write into a ring of no single CPU. There is a word for each of them.
        match rings.cpus().find(|cpu| *cpu != ANY_CPU && *cpu >= self.words.len()) {
            Some(cpu) => {
                let (has, needs) = (self.words.len(), cpu + 1);
                let message = format!("a map of epochs with {has} elements has none for CPU {cpu}: it needs {needs}");
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
            None => Ok(()),
        }
    }
}

/// Whether only BPF programs write through the event.
fn is_bpf_output(event: &Source) -> bool {
    /// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_BPF_OUTPUT` of `<linux/perf_event.h>`.
    const OUTPUT: (u32, u64) = (1, 10);
    (event.attr().type_, event.attr().config) == OUTPUT
}

impl fmt::Debug for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").field("cpus", &self.words.len()).field("patience", &self.patience).finish()
    }
}
