//! Waiting on epoll with a time-out finer than a millisecond.

use libc::epoll_event;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits for events; `None` waits for ever. Gives how many there are.
///
/// epoll_pwait2(2) came with Linux 5.11; before, the time is rounded up to whole milliseconds.
pub(crate) fn wait(epoll: BorrowedFd<'_>, events: &mut [epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
    let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    let spec = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: `events` has `room` entries to write to; time and mask are null or live until the call returns.
    let answer = unsafe {
        libc::syscall(libc::SYS_epoll_pwait2, epoll.as_raw_fd(), events.as_mut_ptr(), room, spec, no_mask, 0)
    };
    match super::check(answer) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => wait_millis(epoll, events, room, timeout),
        answer => answer.map(|ready| ready as usize),
    }
}

fn wait_millis(
    epoll: BorrowedFd<'_>,
    events: &mut [epoll_event],
    room: libc::c_int,
    timeout: Option<Duration>,
) -> io::Result<usize> {
    // Rounded up: to wake early would be to spin.
    let millis = timeout.map_or(-1, |timeout| {
        libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
    });
    // SAFETY: `events` has `room` entries to write to.
    let answer = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), room, millis) };
    super::check(answer.into()).map(|ready| ready as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{wait, wait_millis};
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
    use nix::sys::eventfd::EventFd;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    #[test]
    fn both_ways_time_out_and_report() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let event = EventFd::new().unwrap();
        epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 5)).unwrap();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let fd = epoll.0.as_fd();

        let begin = Instant::now();
        assert_eq!(wait(fd, &mut events, Some(Duration::from_micros(300))).unwrap(), 0);
        assert_eq!(wait_millis(fd, &mut events, 4, Some(Duration::from_micros(300))).unwrap(), 0);
        assert!(begin.elapsed() >= Duration::from_micros(1300));

        event.write(1).unwrap();
        assert_eq!(wait(fd, &mut events, None).unwrap(), 1);
        assert_eq!(wait_millis(fd, &mut events, 4, None).unwrap(), 1);
        let data = events[0].u64;
        assert_eq!(data, 5);
    }
}
