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

    /// The time that this share of the times, in percent, does not exceed.
    pub fn quantile(&self, percent: u64) -> u64 {
        let mut left = (self.count.saturating_sub(1)) * percent / 100;
        for (bucket, count) in &self.buckets {
            if left < *count {
                return last_of(*bucket).min(self.most);
            }
            left -= count;
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

    #[test]
    fn short_times() {
        let texts = [0, 999, 1_000, 12_345, 123_456, 9_999_000, 1_500_000_000].map(short);
        assert_eq!(texts, ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "123 µs", "10.0 ms", "1.50 s"]);
    }
}
