//! BPF maps under a path: a BPF file system of a test's own, and pinning.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A BPF file system that is unmounted when this is dropped.
#[derive(Debug)]
pub struct BpfFs(PathBuf);

impl BpfFs {
    /// Mounts one.
    pub fn mount() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let own = format!("perfweave-bpf-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(own);
        std::fs::create_dir_all(&path)?;
        mount(Some("bpf"), &path, Some("bpf"), MsFlags::empty(), None::<&str>)?;
        Ok(Self(path))
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Pins a map (`BPF_OBJ_PIN`).
pub fn pin(map: impl AsFd, path: &Path) -> io::Result<()> {
    #[repr(C)]
    struct Pin {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = Pin { path: path.as_ptr() as u64, fd: map.as_fd().as_raw_fd() as u32, flags: 0 };
    // SAFETY: the attribute is as long as is said, and the path lives until the call returns.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, 6, &raw const attr, size_of::<Pin>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
