//! A simulated BPF ring buffer: programs reserve, fill, and submit or discard.

use crate::ring::{KernelHalf, Ring};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A BPF ring buffer in memory (`kernel/bpf/ringbuf.c`), for [`Rings::add`](crate::Rings::add). A clone is another
/// handle to the same one.
///
/// ```
/// use perfweave::{ANY_CPU, Clock, Fence, Hold, Key, Layout, Merge, Order, Rings, sim};
///
/// let (buffer, ring) = sim::RingBuffer::new(4096);
/// let mut rings = Rings::empty(Clock::Perf);
/// rings.add(ANY_CPU, ring, Layout::RING_BUFFER);
/// let hold = Hold::Fence(Fence::by(|| Ok(())));
/// let mut merge = Merge::new(rings, Order::new().key(Key::Payload(0)).hold(hold))?;
///
/// // A program is interrupted between reserving and drawing its key.
/// let slow = buffer.reserve(8).unwrap();
/// assert!(buffer.output(&1u64.to_ne_bytes()));
/// merge.refresh(0);
/// assert_eq!(merge.held(), 0, "the first reservation is busy");
/// buffer.submit(slow, &2u64.to_ne_bytes());
/// merge.refresh(0);
/// assert!(merge.begin_fence());
/// merge.end_fence();
/// merge.refresh(0);
/// let times: Vec<_> = merge.batch().map(|event| event.key()).collect();
/// assert_eq!(times, [Some(1), Some(2)]);
/// # Ok::<(), perfweave::Error>(())
/// ```
#[derive(Clone)]
pub struct RingBuffer(Arc<Mutex<Half>>);

struct Half {
    kernel: KernelHalf,
    /// Becomes readable when a record is committed that the consumer waits for.
    wake: Option<EventFd>,
    failed: u64,
}

/// Bytes that a program has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    place: u64,
    len: u32,
}

impl RingBuffer {
    /// A ring buffer with so many bytes of data, and the ring that reads it.
    ///
    /// # Panics
    /// If `bytes` is not a power of two or less than 8.
    pub fn new(bytes: usize) -> (Self, Ring) {
        // Without an eventfd the reader refreshes at its own ticks.
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok();
        let fd = wake.as_ref().and_then(|wake| wake.as_fd().try_clone_to_owned().ok());
        let (kernel, ring) = Ring::simulated_ring_buffer(bytes, fd.map(Arc::new));
        (Self(Arc::new(Mutex::new(Half { kernel, wake, failed: 0 }))), ring)
    }

    /// The ring for another reader, which begins where the last one stopped.
    ///
    /// # Panics
    /// If the last ring was not dropped: a ring buffer has one reader.
    pub fn adopt(&self) -> Ring {
        let half = self.half();
        let fd = half.wake.as_ref().and_then(|wake| wake.as_fd().try_clone_to_owned().ok());
        Ring::adopt_simulated(&half.kernel, fd.map(Arc::new))
    }

    fn half(&self) -> MutexGuard<'_, Half> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program reserves so many bytes (`bpf_ringbuf_reserve`). `None` if there is not enough space, or for 2^30 bytes
    /// or more; the kernel counts that nowhere.
    pub fn reserve(&self, len: u32) -> Option<Reservation> {
        let mut half = self.half();
        let place = half.kernel.reserve(len);
        half.failed += u64::from(place.is_none());
        place.map(|place| Reservation { place, len })
    }

    /// A program fills its reservation and submits it (`bpf_ringbuf_submit`).
    ///
    /// # Panics
    /// Unless `data` is as long as the reservation, which is busy.
    pub fn submit(&self, reservation: Reservation, data: &[u8]) {
        self.commit(reservation, Some(data));
    }

    /// A program discards its reservation (`bpf_ringbuf_discard`).
    ///
    /// # Panics
    /// Unless the reservation is busy.
    pub fn discard(&self, reservation: Reservation) {
        self.commit(reservation, None);
    }

    fn commit(&self, Reservation { place, len }: Reservation, data: Option<&[u8]>) {
        let mut half = self.half();
        half.kernel.commit(place, len, data);
        // `bpf_ringbuf_commit` wakes the consumer if it has read everything before.
        if half.kernel.tail() == place
            && let Some(wake) = &half.wake
        {
            let _ = wake.write(1);
        }
    }

    /// Reserves, fills and submits in one call (`bpf_ringbuf_output`). False if there is not enough space.
    pub fn output(&self, data: &[u8]) -> bool {
        // What does not fit 32 bits is too long in any case.
        let place = self.reserve(data.len().try_into().unwrap_or(u32::MAX));
        place.map(|place| self.submit(place, data)).is_some()
    }

    /// How many reservations have failed.
    pub fn failed(&self) -> u64 {
        self.half().failed
    }

    /// The producer position.
    pub fn produced(&self) -> u64 {
        self.half().kernel.head()
    }

    /// Sets the consumer position, as another reader of the map does. What programs write afterwards takes effect at
    /// the consumer's next refresh.
    pub fn force_consumed(&self, position: u64) {
        self.half().kernel.force_tail(position);
    }

    /// The consumer position.
    pub fn consumed(&self) -> u64 {
        self.half().kernel.tail()
    }

    /// Overwrites bytes from a position on, as no lawful kernel does. This and all later writes take effect at the
    /// consumer's next refresh.
    pub fn scribble(&self, position: u64, bytes: &[u8]) {
        self.half().kernel.scribble(position, bytes);
    }

    /// Sets the producer position to any value, as no lawful kernel does. This and all later writes take effect at the
    /// consumer's next refresh. The next reservation begins there, rounded down to a multiple of 8.
    pub fn force_produced(&self, position: u64) {
        self.half().kernel.force_head(position);
    }
}

impl fmt::Debug for RingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = self.half();
        f.debug_struct("RingBuffer")
            .field("kernel", &half.kernel)
            .field("busy", &half.kernel.busy())
            .finish_non_exhaustive()
    }
}
