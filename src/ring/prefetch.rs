//! Hints to the CPU that bytes will be read soon. The kernel wrote them on another CPU, whose caches hold them.
//!
//! A hint is no access: it reads nothing, and cannot fault.

/// Prefetches the bytes that are `ahead` bytes after the start of a slice, if they exist.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], ahead: usize) {
    if let Some(byte) = bytes.get(ahead) {
        prefetch_at(byte);
    }
}

/// Prefetches the cache line at an address. For other processors the standard library has no such hint yet.
#[inline(always)]
pub(super) fn prefetch_at(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address is allowed: the CPU ignores a prefetch of unmapped memory (Intel SDM, PREFETCHh).
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
