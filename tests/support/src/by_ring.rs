//! The events as a reader sees them that takes one ring after the other.

/// Collects a pass of events, to give them back ring by ring.
#[derive(Debug)]
pub struct ByRing<T> {
    rings: Vec<Vec<T>>,
}

impl<T> Default for ByRing<T> {
    fn default() -> Self {
        Self { rings: Vec::new() }
    }
}

impl<T> ByRing<T> {
    /// An event of a CPU's ring.
    pub fn push(&mut self, cpu: u32, event: T) {
        let cpu = cpu as usize;
        if self.rings.len() <= cpu {
            self.rings.resize_with(cpu + 1, Vec::new);
        }
        self.rings[cpu].push(event);
    }

    /// Everything since the last pass: first all of the first ring, then all of the next.
    pub fn pass(&mut self) -> impl Iterator<Item = T> {
        self.rings.iter_mut().flat_map(|ring| ring.drain(..))
    }
}
