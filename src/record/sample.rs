//! What samples can contain besides their payload.

use perf_event_open_sys::bindings as sys;

/// What the kernel records with each sample, beside the payload: a bit of `perf_event_attr.sample_type`.
///
/// [`RingOptions::sample`](crate::RingOptions::sample) requests it. All events of a ring record the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "sample_type")]
pub enum Sample {
    /// The instruction pointer (`PERF_SAMPLE_IP`): [`Record::ip`](crate::Record::ip).
    Ip,
    /// Process and thread (`PERF_SAMPLE_TID`): [`Record::pid_tid`](crate::Record::pid_tid).
    Tid,
    /// The address that the event is about (`PERF_SAMPLE_ADDR`): [`Record::addr`](crate::Record::addr).
    Addr,
    /// The CPU (`PERF_SAMPLE_CPU`). [`Record::cpu`](crate::Record::cpu) gives it without this field.
    Cpu,
    /// How many events the sample stands for (`PERF_SAMPLE_PERIOD`): [`Record::period`](crate::Record::period).
    Period,
    /// The return addresses of kernel and user space (`PERF_SAMPLE_CALLCHAIN`):
    /// [`Record::callchain`](crate::Record::callchain).
    Callchain,
    /// The return addresses of user space alone (`exclude_callchain_kernel`).
    CallchainUser,
    /// The return addresses of the kernel alone (`exclude_callchain_user`).
    CallchainKernel,
    /// Registers of user space (`PERF_SAMPLE_REGS_USER`): the mask of `perf_event_attr.sample_regs_user`.
    RegsUser(u64),
    /// This many bytes of the user's stack (`PERF_SAMPLE_STACK_USER`), a multiple of 8 and at most 65,528. Opening the
    /// rings gives [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for any other size.
    StackUser(u32),
    /// Registers at the interrupt (`PERF_SAMPLE_REGS_INTR`): the mask of `perf_event_attr.sample_regs_intr`.
    RegsIntr(u64),
    /// The cost that the hardware measured (`PERF_SAMPLE_WEIGHT`).
    Weight,
    /// Where data came from (`PERF_SAMPLE_DATA_SRC`).
    DataSource,
    /// How a transaction ended (`PERF_SAMPLE_TRANSACTION`).
    Transaction,
    /// The physical address (`PERF_SAMPLE_PHYS_ADDR`).
    PhysAddr,
    /// The id of the control group (`PERF_SAMPLE_CGROUP`, Linux 5.7).
    Cgroup,
    /// The size of the page that the data lies in (`PERF_SAMPLE_DATA_PAGE_SIZE`, Linux 5.11).
    DataPageSize,
    /// The size of the page that the code lies in (`PERF_SAMPLE_CODE_PAGE_SIZE`, Linux 5.11).
    CodePageSize,
}

impl Sample {
    /// Its bit of `sample_type`.
    pub fn bit(self) -> u64 {
        u64::from(match self {
            Self::Ip => sys::PERF_SAMPLE_IP,
            Self::Tid => sys::PERF_SAMPLE_TID,
            Self::Addr => sys::PERF_SAMPLE_ADDR,
            Self::Cpu => sys::PERF_SAMPLE_CPU,
            Self::Period => sys::PERF_SAMPLE_PERIOD,
            Self::Callchain | Self::CallchainUser | Self::CallchainKernel => sys::PERF_SAMPLE_CALLCHAIN,
            Self::RegsUser(_) => sys::PERF_SAMPLE_REGS_USER,
            Self::StackUser(_) => sys::PERF_SAMPLE_STACK_USER,
            Self::RegsIntr(_) => sys::PERF_SAMPLE_REGS_INTR,
            Self::Weight => sys::PERF_SAMPLE_WEIGHT,
            Self::DataSource => sys::PERF_SAMPLE_DATA_SRC,
            Self::Transaction => sys::PERF_SAMPLE_TRANSACTION,
            Self::PhysAddr => sys::PERF_SAMPLE_PHYS_ADDR,
            Self::Cgroup => sys::PERF_SAMPLE_CGROUP,
            Self::DataPageSize => sys::PERF_SAMPLE_DATA_PAGE_SIZE,
            Self::CodePageSize => sys::PERF_SAMPLE_CODE_PAGE_SIZE,
        })
    }
}
