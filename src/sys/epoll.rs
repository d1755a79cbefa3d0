//! Waiting on epoll with a time-out finer than a millisecond.

use libc::epoll_event;
use nix::sys::signal::SigSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits on epoll, with the finest time-out available.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    /// Whether epoll_pwait2(2) was refused.
    coarse: bool,
}

impl Wait {
    /// Waits for events. Returns how many there are. Meanwhile these signals are blocked in place of the thread's own, if
    /// there are any.
    ///
    /// epoll_pwait2(2) came with Linux 5.11, and seccomp policies that do not know it refuse it with any error. From
    /// then on this uses epoll_wait(2), and rounds the time up to whole milliseconds.
    pub(crate) fn wait(
        &mut self,
        epoll: BorrowedFd<'_>,
        events: &mut [epoll_event],
        timeout: Duration,
        mask: Option<&SigSet>,
    ) -> io::Result<usize> {
        if !self.coarse {
            match wait_nanos(epoll, events, timeout, mask) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => self.coarse = true,
                answer => return answer,
            }
        }
        wait_millis(epoll, events, timeout, mask)
    }
}

fn wait_nanos(
    epoll: BorrowedFd<'_>,
    events: &mut [epoll_event],
    timeout: Duration,
    mask: Option<&SigSet>,
) -> io::Result<usize> {
    let spec = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `events` has `room` entries to write to; the time lives until the call returns, and the mask, of which the
    // kernel reads as many bytes, if there is one.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            room(events),
            &raw const spec,
            raw(mask),
            KERNEL_SIGSET,
        )
    };
    super::check(answer).map(|ready| ready as usize)
}

/// Bytes of the kernel's own set of signals (`sigset_t`, arch/*/include/uapi/asm/signal.h), with which that of the C
/// library begins.
const KERNEL_SIGSET: usize = 8;

/// A mask as the kernel takes it: null for none.
fn raw(mask: Option<&SigSet>) -> *const libc::sigset_t {
    mask.map_or(std::ptr::null(), |mask| std::ptr::from_ref(mask.as_ref()))
}

/// How many events there is room for.
fn room(events: &[epoll_event]) -> libc::c_int {
    libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX)
}

/// A time-out as epoll_wait(2) takes it. Rounded up, because waking early would spin.
fn millis(timeout: Duration) -> libc::c_int {
    libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
}

fn wait_millis(
    epoll: BorrowedFd<'_>,
    events: &mut [epoll_event],
    timeout: Duration,
    mask: Option<&SigSet>,
) -> io::Result<usize> {
    let (fd, most) = (epoll.as_raw_fd(), room(events));
    // SAFETY: `events` has `room` entries to write to; the mask lives until the call returns, if there is one.
    let answer = unsafe { libc::epoll_pwait(fd, events.as_mut_ptr(), most, millis(timeout), raw(mask)) };
    super::check(answer.into()).map(|ready| ready as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Wait, millis, wait_millis, wait_nanos};
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
    use nix::sys::eventfd::EventFd;
    use perfweave_support::privilege;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn both_ways_time_out_and_report() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let event = EventFd::new().unwrap();
        epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 5)).unwrap();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let fd = epoll.0.as_fd();

        assert_eq!(wait_nanos(fd, &mut events, Duration::from_micros(300), None).unwrap(), 0);
        assert_eq!(wait_millis(fd, &mut events, Duration::from_micros(300), None).unwrap(), 0);
        let times = [0, 300, 1000, 1001].map(Duration::from_micros);
        assert_eq!(times.map(millis), [0, 1, 1, 2]);
        assert_eq!(millis(Duration::MAX), libc::c_int::MAX);

        event.write(1).unwrap();
        assert_eq!(wait_nanos(fd, &mut events, Duration::MAX, None).unwrap(), 1);
        assert_eq!(wait_millis(fd, &mut events, Duration::MAX, None).unwrap(), 1);
        let data = events[0].u64;
        assert_eq!(data, 5);
    }

    /// For any error of a policy, the other call is used, and the first is not tried again.
    #[test]
    fn what_is_refused_has_a_stand_in_for_good() {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::EACCES] {
            let refused = std::thread::spawn(move || {
                let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
                let mut wait = Wait::default();
                let brief = Duration::from_micros(1);
                assert_eq!(wait.wait(epoll.0.as_fd(), &mut events, brief, None).unwrap(), 0);
                assert!(!wait.coarse);
                privilege::refuse(libc::SYS_epoll_pwait2, errno).unwrap();
                assert_eq!(wait.wait(epoll.0.as_fd(), &mut events, brief, None).unwrap(), 0);
                assert!(wait.coarse);
                assert_eq!(wait.wait(epoll.0.as_fd(), &mut events, brief, None).unwrap(), 0);
            });
            refused.join().unwrap();
        }
    }
}
