//! Many times in little memory: how often, how long in all, quantiles, and a histogram.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Times in nanoseconds. Count, sum and most are exact. A quantile is at most 3 % too large.
#[derive(Debug, Clone, Default)]
pub struct Times {
    pub count: u64,
    pub total: u64,
    pub most: u64,
    /// How many times are in each bucket: 32 buckets for each power of two.
    buckets: BTreeMap<u32, u64>,
}

/// Buckets of a power of two, as a power of two.
const FINE: u32 = 5;

impl Times {
    pub fn add(&mut self, time: u64) {
        self.count += 1;
        self.total = self.total.saturating_add(time);
        self.most = self.most.max(time);
        *self.buckets.entry(bucket(time)).or_default() += 1;
    }

    pub fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.total = self.total.saturating_add(other.total);
        self.most = self.most.max(other.most);
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
    }

    /// The least time that at least this share of the times, in percent, does not exceed: the nearest rank, as
    /// HdrHistogram has it.
    pub fn quantile(&self, percent: u64) -> u64 {
        let (rank, mut seen) = (rank(self.count, percent), 0);
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return last_of(*bucket).min(self.most);
            }
        }
        self.most
    }

    /// As many rows as there are powers of two between the shortest and the longest, as bcc's histograms.
    pub fn histogram(&self, out: &mut impl Write) -> io::Result<()> {
        let rows = self.powers();
        let Some(most) = rows.iter().map(|(_, count)| *count).max() else { return Ok(()) };
        writeln!(out, "{:>22}    {:>10}  distribution", "time", "count")?;
        for (power, count) in rows {
            let bar = "*".repeat((count * 40).div_ceil(most) as usize);
            let (from, to) =
                (if power == 0 { 0 } else { 1_u64 << power }, 1_u64.checked_shl(power + 1).unwrap_or(u64::MAX));
            writeln!(out, "{:>10} -> {:<10} {count:>10}  |{bar:<40}|", short(from), short(to))?;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let histogram: Vec<_> =
            self.powers().into_iter().map(|(power, count)| json!([1_u64 << power, count])).collect();
        json!({ "count": self.count, "total_ns": self.total, "p50_ns": self.quantile(50), "p99_ns": self.quantile(99),
            "max_ns": self.most, "histogram": histogram })
    }

    /// How many times there are for each power of two, without holes.
    fn powers(&self) -> Vec<(u32, u64)> {
        let mut powers = BTreeMap::<u32, u64>::new();
        for (bucket, count) in &self.buckets {
            *powers.entry(last_of(*bucket).max(1).ilog2()).or_default() += count;
        }
        let (Some((first, _)), Some((last, _))) = (powers.first_key_value(), powers.last_key_value()) else {
            return Vec::new();
        };
        (*first..=*last).map(|power| (power, powers.get(&power).copied().unwrap_or(0))).collect()
    }
}

/// Which of so many sorted times is the quantile, counted from 1.
fn rank(count: u64, percent: u64) -> u64 {
    let rank = (u128::from(count) * u128::from(percent)).div_ceil(100);
    u64::try_from(rank).unwrap_or(count).max(1)
}

/// Times below 64 have a bucket each.
fn bucket(time: u64) -> u32 {
    let power = time.max(1).ilog2();
    let shift = power.saturating_sub(FINE);
    (shift << FINE) + (time >> shift) as u32
}

/// The longest time of a bucket.
fn last_of(bucket: u32) -> u64 {
    if bucket < 2 << FINE {
        return bucket.into();
    }
    let shift = (bucket >> FINE) - 1;
    let start = u64::from(bucket - (shift << FINE)) << shift;
    start + ((1 << shift) - 1)
}

/// A time with three digits and its unit.
pub fn short(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1e3, "µs"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let number = ns as f64 / unit;
    let digits = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::{Times, bucket, last_of, short};
    use hdrhistogram::Histogram;

    #[test]
    fn buckets_are_in_order_and_narrow() {
        let times = (0..300).chain((8..64).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]));
        for time in times.chain([u64::MAX]) {
            let last = last_of(bucket(time));
            assert!(last >= time && last - time <= time / 32, "{time} {last}");
            assert!(last == u64::MAX || bucket(last + 1) == bucket(time) + 1, "{time}");
        }
    }

    #[test]
    fn quantiles_and_joins() {
        let (mut all, mut half) = (Times::default(), Times::default());
        (1..=50).for_each(|time| all.add(time));
        (51..=100).for_each(|time| half.add(time));
        all.join(&half);
        assert_eq!((all.count, all.total, all.most), (100, 5050, 100));
        assert_eq!([0, 50, 100].map(|percent| all.quantile(percent)), [1, 50, 100]);
        assert_eq!(Times::default().quantile(50), 0);
        let mut out = Vec::new();
        all.histogram(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 8);
    }

    /// Of few times, the 99th percentile is the longest.
    #[test]
    fn quantiles_of_few_times() {
        let mut times = Times::default();
        [10, 20, 30, 40].into_iter().for_each(|time| times.add(time));
        assert_eq!([1, 25, 26, 50, 75, 99, 100].map(|percent| times.quantile(percent)), [10, 10, 20, 20, 30, 40, 40]);
    }

    /// HdrHistogram with as many or more digits gives the same within both errors: 1 in 32 here, 1 in 1000 there.
    #[test]
    fn quantiles_are_those_of_hdr_histogram() {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 33
        };
        for count in [1, 2, 3, 4, 9, 10, 99, 100, 101, 5_000] {
            let (mut times, mut theirs) = (Times::default(), Histogram::<u64>::new(3).unwrap());
            for _ in 0..count {
                let time = next() >> (next() % 31);
                times.add(time);
                theirs.record(time).unwrap();
            }
            for percent in 1..=100 {
                // A little less: in floating point 28 % of 100 is more than 28.
                let other = theirs.value_at_percentile(percent as f64 - 1e-9);
                let ours = times.quantile(percent);
                assert!(
                    ours >= other - other / 1000 && ours <= other + other / 32,
                    "{count} {percent}: {ours} {other}"
                );
            }
        }
    }

    #[test]
    fn short_times() {
        let texts = [0, 999, 1_000, 12_345, 123_456, 9_999_000, 1_500_000_000].map(short);
        assert_eq!(texts, ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "123 µs", "10.0 ms", "1.50 s"]);
    }
}
