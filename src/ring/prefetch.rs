//! Hints to the CPU that bytes are read soon. The kernel wrote them on another CPU, whose caches have them.
//!
//! A hint is no access: nothing is read, and nothing can fault.

/// Asks for the bytes that lie so far ahead of the begin of some, if there are any.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], ahead: usize) {
    if let Some(byte) = bytes.get(ahead) {
        prefetch_at(byte);
    }
}

/// Asks for the cache line at an address. For other processors the library has no such hint yet.
#[inline(always)]
pub(super) fn prefetch_at(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address may be asked for: what is not there is ignored (Intel SDM, PREFETCHh).
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
