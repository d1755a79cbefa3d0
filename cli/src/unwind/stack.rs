//! What a sample has of a program's stack (`PERF_SAMPLE_STACK_USER`): a copy of its innermost bytes.

use perfweave::Bytes;

/// The copy, and where it is from.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    bytes: Bytes<'a>,
    from: u64,
}

impl<'a> Stack<'a> {
    /// That of a sample whose stack pointer was `from`. The kernel has copied as much as there was, and says how much.
    pub fn sampled(field: Bytes<'a>, from: u64) -> Option<Self> {
        let room = usize::try_from(field.u64(0)?).ok()?;
        let copied = usize::try_from(field.u64(room.checked_add(8)?)?).ok()?;
        Some(Self { bytes: field.get(8..8 + copied.min(room))?, from })
    }

    /// The word at an address of the program, if it was copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        self.bytes.u64(usize::try_from(address.checked_sub(self.from)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::Stack;
    use perfweave::Bytes;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn words_are_those_that_were_copied() {
        let field = bytes(&[32, 7, 8, 9, 10, 16]);
        let stack = Stack::sampled(Bytes::from(&field[..]), 0x1000).unwrap();
        let words = [0xff8, 0x1000, 0x1004, 0x1008, 0x1010, 0, u64::MAX].map(|address| stack.word(address));
        assert_eq!(words, [None, Some(7), Some(8 << 32), Some(8), None, None, None]);
    }

    /// Whatever the sizes say.
    #[test]
    fn sizes_that_lie_give_no_word_outside() {
        for [room, copied] in [[u64::MAX, 8], [8, u64::MAX], [0, 8], [16, 3], [u64::MAX - 8, 0], [1 << 40, 1 << 40]] {
            let field = bytes(&[room, 7, copied]);
            let stack = Stack::sampled(Bytes::from(&field[..]), u64::MAX - 4);
            for address in [0, 4, u64::MAX - 4, u64::MAX] {
                let word = stack.and_then(|stack| stack.word(address));
                assert!(word.is_none_or(|word| word == 7), "{room} {copied}: {word:?}");
            }
        }
    }
}
