//! Places of rows in the order of a recording, over all tables.

/// So many rows share a bucket, at first.
const WIDTH: u64 = 4096;
/// With more buckets, each takes twice as many rows.
const MOST: usize = 1 << 16;

/// Rows with places near each other.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rows: u64,
    /// The smallest and the largest key of those that must be in order.
    keys: Option<[i64; 2]>,
}

/// Which places are taken, and whether the keys grow with them: exact to a bucket, in memory that has a bound.
#[derive(Debug)]
pub(super) struct Places {
    width: u64,
    buckets: Vec<Bucket>,
    is_wrong: bool,
}

impl Default for Places {
    fn default() -> Self {
        Self { width: WIDTH, buckets: Vec::new(), is_wrong: false }
    }
}

impl Places {
    /// A row with this place, and its key if it must be in order.
    pub(super) fn add(&mut self, place: i64, key: Option<i64>) {
        let Ok(place) = u64::try_from(place) else {
            self.is_wrong = true;
            return;
        };
        while place / self.width >= MOST as u64 {
            self.widen();
        }
        let index = (place / self.width) as usize;
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket { rows: 0, keys: None });
        }
        let bucket = &mut self.buckets[index];
        bucket.rows += 1;
        self.is_wrong |= bucket.rows > self.width;
        if let Some(key) = key {
            bucket.keys = merged(bucket.keys, Some([key; 2]));
        }
    }

    fn widen(&mut self) {
        let merge = |pair: &[Bucket]| Bucket {
            rows: pair.iter().map(|bucket| bucket.rows).sum(),
            keys: pair.iter().fold(None, |keys, bucket| merged(keys, bucket.keys)),
        };
        self.buckets = self.buckets.chunks(2).map(merge).collect();
        self.width *= 2;
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.rows).sum()
    }

    /// Whether no place was taken twice or was negative, and no key is smaller than one before it, as far as buckets
    /// tell.
    pub(super) fn are_in_order(&self) -> bool {
        let keys = self.buckets.iter().filter_map(|bucket| bucket.keys);
        let mut newest = i64::MIN;
        let is_sorted = keys.fold(true, |is_sorted, [from, until]| {
            let follows = from >= newest;
            newest = newest.max(until);
            is_sorted && follows
        });
        is_sorted && !self.is_wrong
    }
}

fn merged(one: Option<[i64; 2]>, other: Option<[i64; 2]>) -> Option<[i64; 2]> {
    match (one, other) {
        (Some([a, b]), Some([c, d])) => Some([a.min(c), b.max(d)]),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_grow_with_places_however_many_there_are() {
        let mut places = Places::default();
        // Of several tables: each has its own order.
        for table in 0..3 {
            (0..1000).map(|row| (3 * row + table) << 20).for_each(|place| places.add(place, Some(place / 7)));
        }
        assert_eq!((places.rows(), places.are_in_order()), (3000, true));
        assert!(places.buckets.len() <= MOST && places.width > WIDTH);
        // A row that need not be in order, and one that must.
        places.add(5, Some(i64::MAX / 2));
        assert!(!places.are_in_order());
        let mut places = Places::default();
        places.add(1 << 13, Some(7));
        places.add(0, Some(8));
        assert!(!places.are_in_order());
        let mut places = Places::default();
        places.add(1 << 13, Some(7));
        places.add(0, None);
        assert!(places.are_in_order());
        (0..WIDTH).for_each(|_| places.add(0, None));
        assert!(!places.are_in_order(), "more rows than places");
    }
}
