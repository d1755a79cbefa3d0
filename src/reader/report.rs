//! The report of a flush or a deadline: what comes before it, and when it is made.

use crate::order::merge::Merge;
use crate::reader::ended::Ended;
use crate::rings::control::{Asked, Control};
use std::time::Instant;

/// How often newer events come before a report after all: where CPUs share a ring and write all the time, each time
/// more.
const RAISES: u32 = 16;

/// How far a report is. One at a time: another that is asked for meanwhile begins after it.
///
/// ```text
///        asked for             all of it was seen                     all of it was yielded ──► none: Item::Flushed
///  none ───────────► seeing ────────────────────────► draining ───────┤
///                    what lies   or waited for long   newer events    └──────────────────────► due: the stream has
///                    before the  enough: it is not    wait above                                ended, at a deadline
///                    marks       complete             the cap                                   until that is moved
/// ```
///
/// The merge has the marks (one for each ring) and the cap: how far a report is says which of them count.
#[derive(Debug)]
pub(super) enum Report {
    None,
    /// Everything is still to be seen that the rings had when it began, as far as the merge has marked it.
    Seeing {
        asked: Asked,
        since: Instant,
    },
    /// All of that was seen, or is not waited for (`is_complete` is false). Newer events wait until it is yielded; so
    /// often (`raises`) some of them came before it after all.
    Draining {
        asked: Asked,
        since: Instant,
        is_complete: bool,
        raises: u32,
    },
    /// The stream has ended: for good, or at the deadline that was asked for.
    Due {
        asked: Option<Asked>,
        ended: Ended,
    },
}

impl Report {
    /// Whether a report was asked for and is not made yet.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Seeing { .. } | Self::Draining { .. })
    }

    /// Why the stream has ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        if let Self::Due { ended, .. } = self { Some(*ended) } else { None }
    }

    /// Since when it waits for everything before it to be seen and proven. `None` if it does not wait, or no longer.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        match self {
            Self::Seeing { since, .. } | Self::Draining { since, is_complete: true, .. } => Some(*since),
            Self::None | Self::Draining { .. } | Self::Due { .. } => None,
        }
    }

    /// Begins, right after a refresh: all that was written before it was asked for lies before the heads that this one
    /// has loaded. It reports all of that, and nothing newer.
    pub(super) fn begin(&mut self, asked: Asked, merge: &mut Merge) {
        merge.mark_heads();
        *self = Self::Seeing { asked, since: Instant::now() };
        self.refreshed(merge);
    }

    /// After a refresh: once everything before it was seen, newer events wait.
    pub(super) fn refreshed(&mut self, merge: &mut Merge) {
        if let Self::Seeing { asked, since } = *self
            && merge.is_past_marks()
        {
            merge.set_cap();
            *self = Self::Draining { asked, since, is_complete: true, raises: 0 };
        }
    }

    /// It has waited long enough for programs to commit what they have reserved, waits for none any more, and says that
    /// it is not complete.
    pub(super) fn give_up(&mut self, merge: &mut Merge) {
        if let Self::Seeing { .. } = self {
            merge.set_cap();
        }
        if let Self::Seeing { asked, since } | Self::Draining { asked, since, .. } = *self {
            *self = Self::Draining { asked, since, is_complete: false, raises: 0 };
        }
    }

    /// Whether everything before it was yielded. Once it waits no longer: all that could be.
    pub(super) fn is_due(&self, merge: &Merge) -> bool {
        match self {
            // Time alone releases what a rule holds that proves nothing.
            Self::Draining { is_complete, .. } => !is_complete && merge.rule().is_proof() || merge.is_drained(),
            _ => false,
        }
    }

    /// Whether one that is due has to let newer events come before it, so that the next reader of a ring gets none
    /// twice.
    pub(super) fn is_raised(&mut self, merge: &mut Merge) -> bool {
        match self {
            Self::Draining { is_complete: true, raises, .. } if *raises < RAISES && merge.is_drained() => {
                let is_raised = merge.raise_cap();
                *raises += u32::from(is_raised);
                is_raised
            }
            _ => false,
        }
    }

    /// Makes the report, if it is due: the next event is that of the flush, or the stream ends. Returns whether it was.
    pub(super) fn make(&mut self, merge: &mut Merge, control: &Control) -> bool {
        if !self.is_due(merge) {
            return false;
        }
        match *self {
            Self::Draining { asked: Asked::Flush, is_complete, .. } => {
                *self = Self::None;
                merge.pick_flushed(is_complete);
            }
            Self::Draining { asked, is_complete: complete, .. } => {
                self.end(Ended::Deadline { complete }, Some(asked), merge, control);
            }
            _ => {}
        }
        true
    }

    /// Ends the stream. Gives the bytes of yielded events back, because there may be no further refresh.
    pub(super) fn end(&mut self, ended: Ended, asked: Option<Asked>, merge: &mut Merge, control: &Control) {
        merge.advance_tails();
        control.set_ended(true);
        *self = Self::Due { asked, ended };
    }

    /// Drops the report of a deadline that was moved. A stream that has ended at that deadline goes on.
    pub(super) fn forget_moved(&mut self, merge: &mut Merge, control: &Control) {
        let (Self::Seeing { asked, .. } | Self::Draining { asked, .. } | Self::Due { asked: Some(asked), .. }) = self
        else {
            return;
        };
        if !control.asks_for(*asked) {
            control.set_ended(false);
            *self = Self::None;
            merge.lift_cap();
        }
    }
}
