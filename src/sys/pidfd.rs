//! A handle on a process or thread that was named by its number (pidfd_open(2)). After it has ended, another one may
//! get the number.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// `PIDFD_THREAD` of include/uapi/linux/pidfd.h, Linux 6.9.
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

/// A process or thread, held since it was named.
#[derive(Debug)]
pub(crate) struct Task {
    number: u32,
    /// The number of the process, if all its threads are meant and not one thread alone.
    process: Option<u32>,
    /// Whether the processes that it has started are meant as well.
    has_children: bool,
    held: OwnedFd,
    /// If this path no longer exists, the thread has left the process. For a thread of which only the process is held.
    path: Option<PathBuf>,
}

impl Task {
    /// A process, by its number or that of one of its threads.
    pub(crate) fn process(number: u32) -> io::Result<Self> {
        let (process, held) = match open(number, 0) {
            // A thread that is not the first of its process: EINVAL, or since Linux 6.16 ENOENT.
            Err(errno) if matches!(errno.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => of_thread(number)?,
            held => (number, held?),
        };
        Ok(Self { number, process: Some(process), has_children: false, held, path: None })
    }

    /// A process and the processes that it has started, and those that these have started. `ENOSYS` if the kernel does
    /// not list children (`CONFIG_PROC_CHILDREN`).
    pub(crate) fn tree(number: u32) -> io::Result<Self> {
        if !Path::new("/proc/thread-self/children").exists() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Self::process(number).map(|process| Self { has_children: true, ..process })
    }

    /// A thread.
    ///
    /// Before Linux 6.9 a thread cannot be held. Then its process is held, and the thread must be one of that process's
    /// threads. So the number of an ended thread can only be confused with that of a later thread of the same process.
    pub(crate) fn thread(number: u32) -> io::Result<Self> {
        let (held, path) = match open(number, PIDFD_THREAD) {
            Err(errno) if errno.raw_os_error() == Some(libc::EINVAL) => {
                let (process, held) = of_thread(number)?;
                (held, Some(format!("/proc/{process}/task/{number}").into()))
            }
            held => (held?, None),
        };
        Ok(Self { number, process: None, has_children: false, held, path })
    }

    /// The number with which it was named.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Its threads, or the thread. `ESRCH` if it has ended, and only then. If two calls give the same numbers, events
    /// opened by these numbers between the calls were opened for this process: no other process could have had the
    /// numbers before the second call.
    pub(crate) fn threads(&self) -> io::Result<BTreeSet<u32>> {
        let listed = match self.process {
            None => Ok(BTreeSet::from([self.number])),
            Some(process) if self.has_children => threads_of_tree(process),
            Some(process) => threads_of(process),
        };
        // After the list was read, which then belongs to the held process. If it has ended, it does not matter why it
        // could not be listed.
        let left = self.path.as_ref().is_some_and(|path| !path.exists());
        if left || has_ended(&self.held)? { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { listed }
    }
}

/// The threads of a process.
fn threads_of(process: u32) -> io::Result<BTreeSet<u32>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
    tasks.filter_map(|entry| entry.map(number).transpose()).collect()
}

/// The threads of a process, of its children, and of theirs. A child whose parent has ended is no longer in the tree.
fn threads_of_tree(root: u32) -> io::Result<BTreeSet<u32>> {
    let (mut all, mut next) = (threads_of(root)?, 0);
    let mut processes = vec![(root, all.clone())];
    while let Some((parent, threads)) = processes.get(next) {
        let parent = *parent;
        let children =
            threads.iter().filter_map(|tid| fs::read_to_string(format!("/proc/{parent}/task/{tid}/children")).ok());
        let children =
            children.flat_map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u32>>());
        for child in children.collect::<Vec<_>>() {
            // It may have ended, and another process may have got its number: not one with the same parent.
            let Ok(threads) = threads_of(child) else { continue };
            if parent_of(child) == Some(parent) {
                all.extend(&threads);
                processes.push((child, threads));
            }
        }
        next += 1;
    }
    Ok(all)
}

/// The process that has started another, or that has taken it over.
fn parent_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// The process of a thread, held.
fn of_thread(number: u32) -> io::Result<(u32, OwnedFd)> {
    let status = fs::read_to_string(format!("/proc/{number}/status"))?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<u32>().ok());
    let process = process.ok_or(io::ErrorKind::InvalidData)?;
    let held = open(process, 0)?;
    // The thread may have ended before its process was held, and so may the process.
    fs::metadata(format!("/proc/{process}/task/{number}"))?;
    Ok((process, held))
}

/// Whether a process, with all its threads, or a thread has ended.
fn has_ended(held: &OwnedFd) -> io::Result<bool> {
    let mut ended = [PollFd::new(held.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut ended, PollTimeout::ZERO)? > 0)
}

fn open(number: u32, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // 0 is no task's number, and none exceeds a pid_t.
    let Ok(number @ 1..) = libc::pid_t::try_from(number) else { return Err(io::Error::from_raw_os_error(libc::ESRCH)) };
    // SAFETY: no pointer is passed.
    let fd = super::check(unsafe { libc::syscall(libc::SYS_pidfd_open, number, flags) })?;
    // SAFETY: a new file descriptor, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Task;
    use std::sync::mpsc;

    /// Any thread of a process names the process, and a thread can be held alone.
    #[test]
    fn a_thread_names_its_process_and_ends_by_itself() {
        let (name, number) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            name.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            std::thread::park();
        });
        let number = number.recv().unwrap();
        let [process, same, alone] = [Task::process(number), Task::process(std::process::id()), Task::thread(number)];
        let [process, same, alone] = [process.unwrap(), same.unwrap(), alone.unwrap()];
        assert_eq!((process.number(), process.process), (number, same.process));
        assert!(process.threads().unwrap().contains(&number) && same.threads().unwrap().contains(&number));
        assert_eq!(alone.threads().unwrap().into_iter().collect::<Vec<_>>(), [number]);
        // As before Linux 6.9.
        let (of, held) = super::of_thread(number).unwrap();
        let path = Some(format!("/proc/{of}/task/{number}").into());
        let old = Task { number, process: None, has_children: false, held, path };
        assert_eq!(old.threads().unwrap(), alone.threads().unwrap());
        thread.thread().unpark();
        thread.join().unwrap();
        // It disappears a moment after it was joined.
        while alone.threads().is_ok() || old.threads().is_ok() {
            std::thread::yield_now();
        }
        assert_eq!([&alone, &old].map(|task| task.threads().unwrap_err().raw_os_error()), [Some(libc::ESRCH); 2]);
        assert!(!process.threads().unwrap().contains(&number));
        assert!(Task::thread(number).is_err() && Task::process(number).is_err());
    }
}
