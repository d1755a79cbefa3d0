//! A counter of steps, so that tests can say what grows with what. Other builds count nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A turn of a loop, that could be one too many.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// How many steps something takes.
#[cfg(test)]
pub(crate) fn count<T>(run: impl FnOnce() -> T) -> (u64, T) {
    let before = STEPS.with(std::cell::Cell::get);
    let value = run();
    (STEPS.with(std::cell::Cell::get) - before, value)
}
