//! When the bytes of yielded events go back to the kernel.

use crate::order::cursor::catches_up;
use crate::order::stream::Stream;
use crate::order::unmerged::Unmerged;
use crate::rings::Rings;

/// The tails of all rings.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    /// Whether the reader rests, and the next refresh and what comes before it leave BPF ring buffers behind
    /// ([`catches_up`]).
    pub(crate) keep_behind: bool,
    /// A batch was handed out, and its bytes are not given back yet.
    pub(super) in_batch: bool,
}

impl Tails {
    /// Gives bytes back that are due, once all that was merged is yielded: all those of a batch, else if they are a
    /// sixteenth of a ring. No event is borrowed now.
    pub(super) fn give_back(&mut self, rings: &mut Rings, stream: &mut Stream) {
        let all = self.in_batch;
        let Some(Unmerged { queues, cursors, .. }) = stream.if_unmerged() else { return };
        let Rings { cpu_rings, control, .. } = rings;
        let (mut is_forked, mut rushed) = (None, false);
        for ((cpu_ring, cursor), queue) in cpu_rings.iter_mut().zip(cursors).zip(queues) {
            // The next refresh decides whether to catch up.
            if (all || cursor.is_tail_due(queue)) && !catches_up(cpu_ring, queue) {
                // Asked once, because it is a system call.
                if *is_forked.get_or_insert_with(|| control.is_forked()) {
                    return;
                }
                cursor.advance_tail(cpu_ring, queue);
                rushed |= cursor.fills_up(&cpu_ring.ring, queue);
            }
        }
        self.in_batch = false;
        stream.rushed |= rushed;
    }

    /// Gives all bytes of yielded events back.
    pub(super) fn advance(&mut self, rings: &mut Rings, stream: &mut Stream) {
        self.in_batch = false;
        let Unmerged { queues, cursors, .. } = stream.unmerged();
        for ((cpu_ring, cursor), queue) in rings.cpu_rings.iter_mut().zip(cursors).zip(queues) {
            if !self.keep_behind || !catches_up(cpu_ring, queue) {
                cursor.advance_tail(cpu_ring, queue);
            }
        }
    }

    /// The reader is dropped. A BPF ring buffer outlives it, and the next one begins at the first record that this one
    /// has not yielded and not copied.
    pub(super) fn leave(rings: &mut Rings, stream: &mut Stream) {
        // The tails are the parent's in a forked child. A lost head has none to store.
        let is_forked = rings.control().is_forked();
        let Unmerged { queues, cursors, far, .. } = stream.unmerged();
        for ((cpu_ring, cursor), queue) in rings.cpu_rings.iter_mut().zip(cursors).zip(queues) {
            if !is_forked {
                cursor.advance_tail(cpu_ring, queue);
            }
            if cpu_ring.origin.is_adopted {
                cursor.drop_copied(&cpu_ring.ring, queue, far);
            }
        }
    }
}
