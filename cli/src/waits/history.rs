//! What was, the newest part of it.

use crate::packed::Packed;
use std::collections::VecDeque;

/// A time, and what was in it. Nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch<T> {
    pub from: u64,
    pub to: u64,
    pub what: T,
}

/// Stretches without a hole, the oldest first.
#[derive(Debug)]
pub struct History<T> {
    /// All but the newest: of a recording all are kept, and they take a multiple of its records as they are.
    old: VecDeque<Chunk>,
    newest: VecDeque<Stretch<T>>,
    /// What was before is not kept any more.
    pub kept_from: u64,
}

/// Some stretches, packed.
#[derive(Debug)]
struct Chunk {
    from: u64,
    to: u64,
    bytes: Box<[u8]>,
    /// Those before this place are forgotten.
    at: usize,
}

/// So many stretches are packed together.
const CHUNK: usize = 8;
/// The most that are not packed.
const NEWEST: usize = 12;

impl Chunk {
    fn new<T: Packed>(stretches: impl Iterator<Item = Stretch<T>>) -> Self {
        let (mut begin, mut end, mut bytes) = (None, 0, Vec::new());
        for Stretch { from, to, what } in stretches {
            (begin, end) = (begin.or(Some(from)), to);
            (to - from).pack(&mut bytes);
            what.pack(&mut bytes);
        }
        Self { from: begin.unwrap_or(end), to: end, bytes: bytes.into(), at: 0 }
    }

    fn stretches<T: Packed>(&self) -> impl Iterator<Item = Stretch<T>> + use<'_, T> {
        let (mut from, mut bytes) = (self.from, &self.bytes[self.at..]);
        std::iter::from_fn(move || {
            (!bytes.is_empty()).then(|| {
                let to = from + u64::unpack(&mut bytes);
                Stretch { from: std::mem::replace(&mut from, to), to, what: T::unpack(&mut bytes) }
            })
        })
    }

    /// Forgets the oldest of its stretches. False: it has no other.
    fn forget<T: Packed>(&mut self) -> bool {
        let mut rest = &self.bytes[self.at..];
        self.from += u64::unpack(&mut rest);
        T::unpack(&mut rest);
        self.at = self.bytes.len() - rest.len();
        !rest.is_empty()
    }
}

impl<T: Clone + PartialEq + Packed> History<T> {
    /// One that begins at a time.
    pub fn new(from: u64) -> Self {
        Self { old: VecDeque::new(), newest: VecDeque::new(), kept_from: from }
    }

    pub fn is_empty(&self) -> bool {
        self.old.is_empty() && self.newest.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.old.iter().map(|chunk| chunk.stretches::<T>().count()).sum::<usize>() + self.newest.len()
    }

    /// Adds what follows the last one. False if nothing was added: the time is empty, or the last one goes on.
    pub fn push(&mut self, from: u64, to: u64, what: T) -> bool {
        if from >= to {
            return false;
        }
        self.unpack(1);
        match self.newest.back_mut() {
            Some(last) if last.what == what && last.to == from => {
                last.to = to;
                false
            }
            _ => {
                while self.newest.len() >= NEWEST {
                    // A chunk has no hole.
                    let holes = self.newest.iter().zip(self.newest.range(1..));
                    let len = holes.take(CHUNK - 1).take_while(|(one, next)| one.to == next.from).count() + 1;
                    self.old.push_back(Chunk::new(self.newest.drain(..len)));
                }
                self.newest.push_back(Stretch { from, to, what });
                true
            }
        }
    }

    /// Takes so many out of the packed ones, if there are as many.
    fn unpack(&mut self, least: usize) {
        while self.newest.len() < least
            && let Some(chunk) = self.old.pop_back()
        {
            let newer = std::mem::replace(&mut self.newest, chunk.stretches().collect());
            self.newest.extend(newer);
        }
    }

    /// Takes back what was after a time. Gives the stretch that ends there instead of later, and the one before it.
    pub fn cut(&mut self, after: u64) -> Option<(&mut T, Option<&T>)> {
        while self.old.back().is_some_and(|chunk| chunk.from >= after) {
            self.old.pop_back();
            self.newest.clear();
        }
        self.unpack(1);
        while self.newest.back().is_some_and(|last| last.from >= after) {
            self.newest.pop_back();
            self.unpack(1);
        }
        self.unpack(2);
        let mut last = self.newest.iter_mut().rev();
        let shortened = last.next().filter(|last| last.to > after)?;
        shortened.to = after;
        Some((&mut shortened.what, last.next().map(|before| &before.what)))
    }

    /// Changes what ended at this time, if anything did.
    pub fn change_ended<R>(&mut self, at: u64, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let newest = self.newest.partition_point(|stretch| stretch.to < at);
        if let Some(stretch) = self.newest.get_mut(newest).filter(|stretch| stretch.to == at) {
            return Some(change(&mut stretch.what));
        }
        let chunk = self.old.partition_point(|chunk| chunk.to < at);
        let chunk = self.old.get_mut(chunk)?;
        let mut stretches: Vec<Stretch<T>> = chunk.stretches().collect();
        let changed = change(&mut stretches.iter_mut().find(|stretch| stretch.to == at)?.what);
        *chunk = Chunk::new(stretches.into_iter());
        Some(changed)
    }

    /// Changes what was in a time, as wholes. `change`: whether it did.
    pub fn change_between(&mut self, from: u64, to: u64, mut change: impl FnMut(&mut T) -> bool) {
        let first = self.old.partition_point(|chunk| chunk.to <= from);
        for chunk in self.old.range_mut(first..).take_while(|chunk| chunk.from < to) {
            let mut stretches: Vec<Stretch<T>> = chunk.stretches().collect();
            let mut has_changed = false;
            for stretch in stretches.iter_mut().filter(|stretch| stretch.to > from && stretch.from < to) {
                has_changed |= change(&mut stretch.what);
            }
            if has_changed {
                *chunk = Chunk::new(stretches.into_iter());
            }
        }
        let newest = self.newest.partition_point(|stretch| stretch.to <= from);
        for stretch in self.newest.range_mut(newest..).take_while(|stretch| stretch.from < to) {
            change(&mut stretch.what);
        }
    }

    /// Drops the oldest.
    pub fn forget(&mut self) {
        if let Some(chunk) = self.old.front_mut() {
            let has_more = chunk.forget::<T>();
            self.kept_from = chunk.from;
            if !has_more {
                self.old.pop_front();
            }
        } else if let Some(oldest) = self.newest.pop_front() {
            self.kept_from = oldest.to;
        }
    }

    /// What was between two times, as far as it is kept.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = Stretch<T>> + use<'_, T> {
        let first = self.old.partition_point(|chunk| chunk.to <= from);
        let old = self.old.range(first..).take_while(move |chunk| chunk.from < to).flat_map(Chunk::stretches);
        let newest = self.newest.partition_point(|stretch| stretch.to <= from);
        let all = old.chain(self.newest.range(newest..).cloned());
        let within = all.skip_while(move |stretch| stretch.to <= from).take_while(move |stretch| stretch.from < to);
        within.map(move |stretch| Stretch { from: stretch.from.max(from), to: stretch.to.min(to), ..stretch })
    }
}

/// Those that are not empty. Where the same goes on, it is one.
pub fn joined<T: PartialEq>(stretches: impl Iterator<Item = Stretch<T>>) -> impl Iterator<Item = Stretch<T>> {
    let mut stretches = stretches.filter(|stretch| stretch.from < stretch.to).peekable();
    std::iter::from_fn(move || {
        let mut one = stretches.next()?;
        while let Some(next) = stretches.next_if(|next| next.from == one.to && next.what == one.what) {
            one.to = next.to;
        }
        Some(one)
    })
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, History, NEWEST, Stretch};

    /// A random history, and the same as it stands here: neither packed nor joined.
    #[test]
    fn what_is_packed_is_as_it_was() {
        let (mut history, mut plain, mut seed) = (History::new(5), Vec::<Stretch<u64>>::new(), 1u64);
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for step in 0..20_000 {
            let end = plain.last().map_or(5, |last| last.to);
            match random(100) {
                0 => {
                    let after = end.saturating_sub(random(200));
                    plain.retain(|stretch| stretch.from < after);
                    let cut = plain.last_mut().filter(|last| last.to > after).map(|last| {
                        last.to = after;
                        last.what
                    });
                    let before = cut.and_then(|_| Some(plain.get(plain.len().checked_sub(2)?)?.what));
                    let did = history.cut(after).map(|(what, before)| (*what, before.copied()));
                    assert_eq!(did, cut.map(|what| (what, before)), "{step}");
                }
                1 => {
                    history.forget();
                    (!plain.is_empty()).then(|| plain.remove(0));
                }
                2 => {
                    let at = plain.get(plain.len().saturating_sub(1 + random(30) as usize)).map_or(0, |one| one.to);
                    let one = plain.iter_mut().rev().find(|one| one.to == at);
                    assert_eq!(
                        history.change_ended(at, |what| (*what, *what = 77).0),
                        one.map(|one| (one.what, one.what = 77).0)
                    );
                }
                4 => {
                    let from = end.saturating_sub(random(3_000));
                    let to = from + random(1_000);
                    let change = |what: &mut u64| (*what == 0).then(|| *what = 99).is_some();
                    history.change_between(from, to, change);
                    for one in plain.iter_mut().filter(|one| one.to > from && one.from < to) {
                        change(&mut one.what);
                    }
                }
                3 => {
                    let from = end.saturating_sub(random(3_000));
                    let to = from + random(1_000);
                    let parts = plain.iter().filter(|one| one.to > from && one.from < to);
                    let clipped = parts.map(|one| Stretch { from: one.from.max(from), to: one.to.min(to), ..*one });
                    assert!(history.between(from, to).eq(clipped), "{step}");
                }
                _ => {
                    // Sometimes there is a hole.
                    let (from, what) = (end + random(20).saturating_sub(18), random(3) * 1_000_000);
                    let to = from + random(20);
                    let is_new = history.push(from, to, what);
                    match plain.last_mut() {
                        _ if from == to => assert!(!is_new),
                        Some(last) if last.to == from && last.what == what => last.to = to,
                        _ => plain.push(Stretch { from, to, what }),
                    }
                }
            }
            assert!(history.newest.len() <= NEWEST.max(3 * CHUNK + 30));
        }
        assert!(history.old.len() > 20 && history.len() == plain.len());
        assert!(history.between(0, u64::MAX).eq(plain));
    }
}
