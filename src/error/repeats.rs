//! Errors that repeat: which of them are reported.

/// An error that may repeat: whether to report it, and how often it occurred since the last report. Reports the first,
/// the tenth, the hundredth and so on, until 16 attempts in a row have succeeded. The next error then counts as the
/// first.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    failed: u64,
    reported: u64,
    successes: u32,
}

impl Repeats {
    /// How many successes in a row end a series of errors.
    const ENDS_A_SERIES: u32 = 16;

    /// Records that the error occurred again. Returns how often it occurred since the last report, if it is to be
    /// reported now. If `must` is true, it always is.
    pub(crate) fn failed(&mut self, must: bool) -> Option<u64> {
        self.successes = 0;
        self.failed = self.failed.saturating_add(1);
        if !must && 10u64.pow(self.failed.ilog10()) != self.failed {
            return None;
        }
        let times = self.failed - self.reported;
        self.reported = self.failed;
        Some(times)
    }

    /// Records a success.
    #[inline]
    pub(crate) fn succeeded(&mut self) {
        if self.failed > 0 {
            self.successes += 1;
            if self.successes >= Self::ENDS_A_SERIES {
                *self = Self::default();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Repeats;

    #[test]
    fn what_repeats_is_reported_ever_less_often_and_none_is_left_out() {
        let mut repeats = Repeats::default();
        let reported: Vec<_> = (1..=1000).filter_map(|n| repeats.failed(false).map(|times| (n, times))).collect();
        assert_eq!(reported, [(1, 1), (10, 9), (100, 90), (1000, 900)]);
        assert_eq!(repeats.failed(true), Some(1));
        // A success now and then does not end the series.
        for _ in 0..15 {
            repeats.succeeded();
        }
        assert_eq!(repeats.failed(false), None);
        for _ in 0..16 {
            repeats.succeeded();
        }
        assert_eq!(repeats.failed(false), Some(1), "forgotten, and new");
    }
}
