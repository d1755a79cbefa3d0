//! Stacks that are lost after one frame, because their functions keep no frame pointers.

/// How many samples have frames of a program, and how many of them are lost after the innermost, from which a rule would
/// lead on.
#[derive(Debug, Default)]
pub struct Short {
    samples: u64,
    lost: u64,
}

/// What is known of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// In a function that can be unwound.
    LeadsOn,
    Other,
    /// Where the process has no code: the register was no frame pointer.
    Nowhere,
}

impl Short {
    /// Counts a stack by its frames of the program, the innermost first.
    pub fn count(&mut self, mut frames: impl Iterator<Item = Frame>, times: u64) {
        let Some(first) = frames.next() else { return };
        self.samples += times;
        if first == Frame::LeadsOn && frames.next().is_none_or(|next| next == Frame::Nowhere) {
            self.lost += times;
        }
    }

    /// What is to be said if that is so of most of them.
    pub fn hint(&self) -> Option<String> {
        let Self { samples, lost } = self;
        let words =
            || format!("{lost} of {samples} stacks of programs are lost after one frame, without frame pointers");
        (*lost > samples / 2).then(words)
    }
}

#[cfg(test)]
mod tests {
    use super::Frame::{LeadsOn, Nowhere, Other};
    use super::{Frame, Short};

    #[test]
    fn it_is_said_of_most_stacks_that_can_be_unwound() {
        let mut short = Short::default();
        let mut count = |frames: &[Frame], times, is_said: bool| {
            short.count(frames.iter().copied(), times);
            assert_eq!(short.hint().is_some(), is_said, "{frames:?} {short:?}");
        };
        count(&[], 100, false);
        count(&[LeadsOn, Other], 4, false);
        count(&[LeadsOn, LeadsOn, Nowhere], 4, false);
        count(&[Other], 100, false);
        count(&[LeadsOn], 100, false);
        count(&[LeadsOn, Nowhere, Other], 8, false);
        count(&[LeadsOn], 1, true);
        let said = "109 of 217 stacks of programs are lost after one frame, without frame pointers";
        assert_eq!(short.hint().unwrap(), said);
    }
}
