//! A process with a chosen number, as if process numbers had wrapped around.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem::size_of;
use std::os::fd::AsRawFd;

/// A process that calls getppid(2) when it is told to. Killed when dropped.
#[derive(Debug)]
pub struct Numbered {
    number: u32,
    told: PipeWriter,
    done: PipeReader,
}

impl Numbered {
    /// Starts a process with a number that nobody has (clone3(2) with `set_tid`, Linux 5.5).
    ///
    /// # Errors
    /// If the kernel refuses: somebody has the number (`EEXIST`), or may not choose one (`EPERM`).
    pub fn start(number: u32) -> io::Result<Self> {
        let ((orders, told), (done, answers)) = (io::pipe()?, io::pipe()?);
        let numbers = [number as libc::pid_t];
        // SAFETY: plain numbers, and the kernel wants zeros.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.exit_signal = libc::SIGCHLD as u64;
        (args.set_tid, args.set_tid_size) = (numbers.as_ptr() as u64, 1);
        // SAFETY: the arguments live until the call returns. As fork(2) does, it gives the child a copy of all memory.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } {
            0 => {
                // SAFETY: no pointers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                serve(orders.as_raw_fd(), answers.as_raw_fd())
            }
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(Self { number, told, done }),
        }
    }

    /// Has it call getppid(2) so often on a CPU, and waits until it has.
    ///
    /// # Panics
    /// If it has ended.
    pub fn call(&mut self, cpu: u32, times: u32) {
        self.told.write_all([cpu, times].map(u32::to_ne_bytes).as_flattened()).expect("it lives");
        self.done.read_exact(&mut [0]).expect("it lives");
    }
}

/// What the process does. It takes no lock and no memory: other threads may have held what it would wait for.
fn serve(orders: i32, answers: i32) -> ! {
    loop {
        let mut order = [0u32; 2];
        // SAFETY: the kernel writes as many bytes as there are.
        let read = unsafe { libc::read(orders, order.as_mut_ptr().cast(), size_of_val(&order)) };
        if read != size_of_val(&order) as isize {
            // SAFETY: leaves without running anything of ours.
            unsafe { libc::_exit(1) };
        }
        let mut cpus = [0u64; 16];
        cpus[order[0] as usize / 64] |= 1 << (order[0] % 64);
        // SAFETY: the kernel reads as many bytes as there are.
        unsafe { libc::sched_setaffinity(0, size_of_val(&cpus), cpus.as_ptr().cast()) };
        for _ in 0..order[1] {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        // SAFETY: the kernel reads one byte.
        unsafe { libc::write(answers, [1u8].as_ptr().cast(), 1) };
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        let pid = self.number as libc::pid_t;
        // SAFETY: no pointers.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        // SAFETY: no answer is asked for.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
}
