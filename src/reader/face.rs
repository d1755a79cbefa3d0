//! The methods that both readers share, over their engine.

/// The methods of both readers except waiting, over their `engine`.
macro_rules! reader_face {
    () => {
        /// A handle that flushes, closes, pauses and resumes this reader from any thread, even while the reader blocks.
        pub fn handle(&self) -> $crate::rings::control::Handle {
            self.engine.handle()
        }

        /// Why the stream has ended, if the last call found that it has. `None` while it goes on, also if only a
        /// time-out is over.
        pub fn ended(&self) -> Option<$crate::reader::Ended> {
            self.engine.report.ended()
        }

        /// Gives the bytes of all yielded events back to the kernel now. The reader does this by itself before each
        /// refresh and each sleep (feature `test-util`).
        ///
        /// # Panics
        /// In a forked child, which does not have the rings.
        #[cfg(any(test, feature = "test-util"))]
        pub fn advance_tails(&mut self) {
            self.engine.merge.advance_tails();
        }

        /// How the reader proves order: "membarrier", "map", or the name of the [`Proof`](crate::Proof). `None` if the
        /// hold rule needs none. With [`Fence::Auto`](crate::Fence::Auto), "membarrier" changes to "map" for good if the
        /// kernel begins to refuse it.
        pub fn fence(&self) -> Option<&'static str> {
            self.engine.proof.as_ref().map($crate::proof::prover::Prover::name)
        }

        /// The threads of this reader, by their numbers (gettid(2)): first the one that made the reader, then all
        /// others that have read so far, the one that waits for fences, and the one that speeds fences up, once they
        /// exist and until they end. [`Order::leave_out`](crate::Order::leave_out) leaves out records about them.
        pub fn threads(&self) -> impl Iterator<Item = u32> {
            self.engine.merge.threads()
        }

        /// What came of what was written, what the reader did so far, and what it waits for, as of the last refresh. It
        /// takes no system call and interrupts no CPU.
        pub fn status(&self) -> $crate::account::status::Status {
            self.engine.status()
        }

        /// The status now, with an account of everything written until now. Refreshes the rings, and asks the kernel
        /// for its count of losses, which interrupts every CPU. Works on a closed reader too.
        ///
        /// # Errors
        /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
        pub fn ledger(&mut self) -> Result<$crate::account::status::Status, $crate::error::Error> {
            self.engine.ledger()
        }

        /// The rings that this reader reads.
        pub fn rings(&self) -> &$crate::rings::Rings {
            self.engine.merge.rings()
        }
    };
}
pub(crate) use reader_face;
