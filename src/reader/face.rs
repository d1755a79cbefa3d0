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

        /// Sets when the stream ends; `None` for never. See
        /// [`Handle::set_deadline`](crate::Handle::set_deadline).
        ///
        /// # Errors
        /// As [`Handle::set_deadline`](crate::Handle::set_deadline).
        pub fn set_deadline(&self, deadline: Option<std::time::Instant>) -> Result<(), $crate::error::Error> {
            self.handle().set_deadline(deadline)
        }

        /// Gives the bytes of all yielded events back to the kernel now. The reader does this by itself before each
        /// refresh and each sleep. Only a program that takes events and then does not call the reader for a long time
        /// needs this method.
        ///
        /// # Panics
        /// In a forked child, which does not have the rings.
        pub fn advance_tails(&mut self) {
            self.engine.merge.advance_tails();
        }

        /// The hold rule in force.
        pub fn hold(&self) -> &$crate::order::hold::Hold {
            &self.engine.hold
        }

        /// How the reader proves order: "membarrier", "map", or the name of the [`Proof`](crate::Proof). `None` if the
        /// hold rule needs none. With [`Fence::Auto`](crate::Fence::Auto), "membarrier" changes to "map" for good if the
        /// kernel begins to refuse it.
        pub fn fence(&self) -> Option<&'static str> {
            self.engine.proof.as_ref().map($crate::proof::prover::Prover::name)
        }

        /// The threads of this reader, by their numbers (gettid(2)): first the one that made the reader, then all
        /// others that have read so far, the one that waits for fences, and the one that speeds fences up, once they
        /// exist and until they end. To leave out records about them, see [`Order::leave_out`](crate::Order::leave_out).
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
