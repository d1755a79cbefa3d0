//! Bytes of a ring in place: one run, or two where they cross the ring's end.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// Bytes in a ring: one slice, or two if they wrap.
///
/// All reads are bounds-checked and work across the wrap. A read that does not fit gives `None`. Only
/// [`Bytes::to_cow`] and [`Bytes::to_vec`] copy. Integers are read in the machine's own byte order,
/// which is the kernel's.
#[derive(Clone, Copy, Default)]
pub struct Bytes<'a> {
    /// INVARIANT: empty only if `tail` is empty too.
    head: &'a [u8],
    tail: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// Joins two runs, in this order.
    pub fn new(head: &'a [u8], tail: &'a [u8]) -> Self {
        if head.is_empty() { Self { head: tail, tail: &[] } } else { Self { head, tail } }
    }

    /// The two runs. The second is empty unless the bytes wrap.
    #[inline]
    pub fn as_slices(&self) -> (&'a [u8], &'a [u8]) {
        (self.head, self.tail)
    }

    /// How many bytes there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// The bytes in `range`. `None` if there are fewer.
    #[inline]
    pub fn get(&self, range: Range<usize>) -> Option<Bytes<'a>> {
        if let Some(head) = self.head.get(range.clone()) {
            return Some(Self { head, tail: &[] });
        }
        let head = head_across(self.head, self.tail, range.clone())?;
        Some(Self { head, tail: tail_across(self.head, self.tail, range) })
    }

    /// The bytes from `start` on. `None` if there are fewer.
    #[inline]
    pub fn skip(&self, start: usize) -> Option<Bytes<'a>> {
        self.get(start..self.len())
    }

    /// Fills `out` from `offset` on. `None` if there are too few bytes; `out` is then unchanged.
    #[inline]
    fn copy_to(&self, offset: usize, out: &mut [u8]) -> Option<()> {
        let part = self.get(offset..offset.checked_add(out.len())?)?;
        let (first, second) = out.split_at_mut(part.head.len());
        first.copy_from_slice(part.head);
        second.copy_from_slice(part.tail);
        Some(())
    }

    /// `N` bytes from `offset` on, across the wrap if necessary.
    #[inline]
    pub fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N)?;
        match self.head.get(offset..end) {
            Some(run) => run.try_into().ok(),
            None => array_across(self.head, self.tail, offset),
        }
    }

    /// The byte at `offset`.
    #[inline]
    pub fn u8(&self, offset: usize) -> Option<u8> {
        self.array(offset).map(u8::from_ne_bytes)
    }

    /// The `u16` at `offset`, aligned or not.
    #[inline]
    pub fn u16(&self, offset: usize) -> Option<u16> {
        self.array(offset).map(u16::from_ne_bytes)
    }

    /// The `u32` at `offset`, aligned or not.
    #[inline]
    pub fn u32(&self, offset: usize) -> Option<u32> {
        self.array(offset).map(u32::from_ne_bytes)
    }

    /// The `u64` at `offset`, aligned or not.
    #[inline]
    pub fn u64(&self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_ne_bytes)
    }

    /// The bytes as one slice: borrowed if they lie in one run, copied only if they wrap.
    pub fn to_cow(&self) -> Cow<'a, [u8]> {
        if self.tail.is_empty() { Cow::Borrowed(self.head) } else { Cow::Owned(self.to_vec()) }
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        [self.head, self.tail].concat()
    }

    /// The bytes one by one.
    pub fn iter(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.head.iter().chain(self.tail).copied()
    }
}

// The slow cases, out of line and by value, so that a `Bytes` on the fast path can stay in registers.

/// The first run of a range that is not all in `head`.
#[cold]
#[inline(never)]
fn head_across<'a>(head: &'a [u8], tail: &'a [u8], range: Range<usize>) -> Option<&'a [u8]> {
    let cut = head.len();
    if range.start > range.end || range.end > cut + tail.len() {
        return None;
    }
    if range.start >= cut { tail.get(range.start - cut..range.end - cut) } else { head.get(range.start..) }
}

/// The second run of a range that is not all in `head` and lies within both.
#[cold]
#[inline(never)]
fn tail_across<'a>(head: &'a [u8], tail: &'a [u8], range: Range<usize>) -> &'a [u8] {
    let cut = head.len();
    if range.start >= cut { &[] } else { &tail[..range.end - cut] }
}

#[cold]
#[inline(never)]
fn array_across<const N: usize>(head: &[u8], tail: &[u8], offset: usize) -> Option<[u8; N]> {
    let mut out = [0; N];
    Bytes::new(head, tail).copy_to(offset, &mut out)?;
    Some(out)
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(run: &'a [u8]) -> Self {
        Self { head: run, tail: &[] }
    }
}

impl PartialEq for Bytes<'_> {
    /// Equal bytes are equal, wherever they wrap.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Bytes<'_> {}

impl PartialEq<[u8]> for Bytes<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        *self == Bytes::from(other)
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Bytes;

    fn every_split(whole: &[u8]) -> impl Iterator<Item = Bytes<'_>> {
        (0..=whole.len()).map(|at| Bytes::new(&whole[..at], &whole[at..]))
    }

    #[test]
    fn reads_are_the_same_wherever_the_bytes_wrap() {
        let whole: Vec<u8> = (1..=12).collect();
        let plain = Bytes::from(&whole[..]);
        for split in every_split(&whole) {
            assert_eq!(split, plain);
            assert_eq!(split.len(), 12);
            assert_eq!(split.to_vec(), whole);
            assert_eq!(&*split.to_cow(), &whole[..]);
            for offset in 0..16 {
                assert_eq!(split.u8(offset), plain.u8(offset));
                assert_eq!(split.u16(offset), plain.u16(offset));
                assert_eq!(split.u32(offset), plain.u32(offset));
                assert_eq!(split.u64(offset), plain.u64(offset));
                for end in 0..16 {
                    let want = whole.get(offset..end);
                    let part = split.get(offset..end);
                    assert_eq!(part.map(|b| b.to_vec()).as_deref(), want);
                    assert!(part.is_none_or(|part| part.is_empty() == (offset == end)));
                }
            }
        }
    }

    #[test]
    fn a_read_that_does_not_fit_is_none() {
        let bytes = Bytes::new(&[1, 2, 3], &[4]);
        assert_eq!(bytes.u32(0), Some(u32::from_ne_bytes([1, 2, 3, 4])));
        assert_eq!(bytes.u32(1), None);
        assert_eq!(bytes.u64(0), None);
        assert_eq!(bytes.u8(usize::MAX), None);
        assert_eq!(bytes.array::<0>(4), Some([]));
        assert_eq!(bytes.array::<0>(5), None);
        let mut out = [9; 3];
        assert_eq!(bytes.copy_to(2, &mut out), None);
        assert_eq!(out, [9; 3], "untouched");
    }

    #[test]
    fn bytes_are_equal_if_they_are_the_same_and_as_many() {
        for (one, other) in [(&b"abc"[..], &b"abd"[..]), (b"abc", b"ab"), (b"abc", b"abcd"), (b"abc", b""), (b"", b"a")]
        {
            for bytes in every_split(one) {
                assert!(every_split(one).all(|same| same == bytes) && bytes == *one);
                assert!(every_split(other).all(|different| different != bytes));
                assert!(bytes != *other);
                assert_eq!((bytes.is_empty(), bytes.iter().count()), (one.is_empty(), one.len()));
            }
        }
        assert!(Bytes::default().is_empty() && Bytes::new(&[], &[]).is_empty() && !Bytes::new(&[], &[0]).is_empty());
        assert_eq!(format!("{:?}", Bytes::new(&[1], &[2])), "[1, 2]");
    }

    #[test]
    fn only_wrapped_bytes_are_copied() {
        assert!(matches!(Bytes::new(&[1], &[]).to_cow(), std::borrow::Cow::Borrowed(_)));
        assert!(matches!(Bytes::new(&[], &[1]).to_cow(), std::borrow::Cow::Borrowed(_)));
        assert!(matches!(Bytes::new(&[1], &[2]).to_cow(), std::borrow::Cow::Owned(_)));
    }
}
