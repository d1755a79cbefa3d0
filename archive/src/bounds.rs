//! Bounds of how far one machine's clock is ahead of another's, from messages between the two.
//!
//! No message is received before it is sent. So each message from A to B bounds from above how far B's clock is ahead
//! of A's at that time, and each message from B to A bounds it from below. Over some time the difference is taken as a
//! line: both clocks run at steady rates, each at most 500 ppm wrong. All lines between the two sets of points are
//! possible; the convex hulls of the sets say which these are. This is the method of LTTng's trace synchronisation. A
//! clock that is set within that time breaks the assumption. Mostly no line is left then, which is an error; but that
//! is no proof. So take messages of some minutes, between two settings of a clock.

/// The most by which the rates of two clocks differ: 500 ppm of each.
const DRIFT: f64 = 0.001_001;

/// What is added on each side against rounding, in nanoseconds.
const ROUNDING: f64 = 2.0;

/// A message, by the clocks of the machine that sent it and of the one that received it: TAI in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// From A to B, or else from B to A.
    pub from_a: bool,
    /// By the sender's clock.
    pub sent: i64,
    /// By the receiver's clock.
    pub received: i64,
}

/// There is no line between the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the messages contradict each other: a clock was set in between, or two messages were taken for one")]
pub struct Contradiction;

/// A point of a hull: a time by A's clock, and a bound, both from the first message on.
type Point = (f64, f64);

/// How far B's clock is ahead of A's.
#[derive(Debug, Clone)]
pub struct Bounds {
    from: i64,
    base: i64,
    /// B is ahead by at most this: the lower hull.
    most: Vec<Point>,
    /// B is ahead by at least this: the upper hull.
    least: Vec<Point>,
    slopes: (f64, f64),
}

/// What A's clock showed when B's clock showed some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Not before.
    pub from: i64,
    /// Not after.
    pub to: i64,
}

impl Interval {
    /// Whether this was before the other. `None`: nobody knows.
    pub fn is_before(self, other: Self) -> Option<bool> {
        if self.to < other.from {
            Some(true)
        } else if other.to < self.from {
            Some(false)
        } else {
            None
        }
    }
}

impl Bounds {
    /// The bounds that follow from these messages. `None` if there are none in one of the two directions, so that there
    /// is no bound on one side.
    ///
    /// # Errors
    /// If the messages contradict each other.
    pub fn of(messages: &[Message]) -> Result<Option<Self>, Contradiction> {
        let (Some(first), true, true) =
            (messages.first(), messages.iter().any(|one| one.from_a), messages.iter().any(|one| !one.from_a))
        else {
            return Ok(None);
        };
        let ahead = |message: &Message| {
            let Message { from_a, sent, received } = *message;
            // The time by A's clock, and how far B's is ahead at it.
            if from_a { (sent, received - sent) } else { (received, sent - received) }
        };
        let (from, base) = ahead(first);
        let points = |from_a: bool| {
            let points = messages.iter().filter(move |message| message.from_a == from_a).map(ahead);
            points.map(|(time, ahead)| ((time - from) as f64, (ahead - base) as f64)).collect::<Vec<_>>()
        };
        let negative = |points: Vec<Point>| points.into_iter().map(|(time, bound)| (time, -bound)).collect::<Vec<_>>();
        let (most, least) = (lower_hull(points(true)), negative(lower_hull(negative(points(false)))));
        let slopes = slopes(&most, &least).ok_or(Contradiction)?;
        Ok(Some(Self { from, base, most, least, slopes }))
    }

    /// How far B's clock is ahead of A's when A's shows this time: at least, and at most.
    pub fn ahead(&self, time: i64) -> (i64, i64) {
        let at = (time - self.from) as f64;
        let most = largest(&self.most, at, self.slopes);
        let negative = self.least.iter().map(|(time, bound)| (*time, -bound)).collect::<Vec<_>>();
        let least = -largest(&negative, at, (-self.slopes.1, -self.slopes.0));
        (self.base + (least - ROUNDING).floor() as i64, self.base + (most + ROUNDING).ceil() as i64)
    }

    /// What A's clock showed when B's clock showed this time.
    pub fn on_a(&self, time: i64) -> Interval {
        // A's time is not known yet. From a first guess on, the bounds change by the drift at most.
        let guess = time - self.base;
        let (least, most) = self.ahead(guess);
        let off = (guess - (time - least)).abs().max((guess - (time - most)).abs());
        let slack = (off as f64 * DRIFT / (1.0 - DRIFT)).ceil() as i64;
        let ends = [guess - off - slack, guess + off + slack].map(|end| self.ahead(end));
        // A possible line is between its ends everywhere.
        Interval { from: time - ends[0].1.max(ends[1].1), to: time - ends[0].0.min(ends[1].0) }
    }
}

/// The lower convex hull, from left to right (Andrew's monotone chain).
fn lower_hull(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    points.dedup_by(|next, kept| next.0 == kept.0);
    let mut hull = Vec::<Point>::new();
    for point in points {
        while let [.., a, b] = hull[..]
            && (b.0 - a.0) * (point.1 - a.1) <= (b.1 - a.1) * (point.0 - a.0)
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// The slopes of the lines between the hulls. `None` if there is no line.
fn slopes(most: &[Point], least: &[Point]) -> Option<(f64, f64)> {
    let (mut from, mut to) = (-DRIFT, DRIFT);
    for (above, below) in most.iter().flat_map(|above| least.iter().map(move |below| (above, below))) {
        let (time, room) = (above.0 - below.0, above.1 - below.1);
        if time > 0.0 {
            to = to.min((room + ROUNDING) / time);
        } else if time < 0.0 {
            from = from.max((room + ROUNDING) / time);
        } else if room < 0.0 {
            return None;
        }
    }
    (from <= to).then_some((from, to))
}

/// The largest value at a time of a line with one of these slopes that is below all points.
fn largest(hull: &[Point], at: f64, (from, to): (f64, f64)) -> f64 {
    let below = |slope: f64| hull.iter().map(|point| point.1 + slope * (at - point.0)).fold(f64::INFINITY, f64::min);
    let right = hull.partition_point(|point| point.0 < at);
    let slope = match (right.checked_sub(1).map(|left| hull[left]), hull.get(right)) {
        (Some(left), Some(right)) => (right.1 - left.1) / (right.0 - left.0),
        // Right of all points a steep line is the largest, left of them a falling one.
        (Some(_), None) => f64::INFINITY,
        (None, _) => f64::NEG_INFINITY,
    };
    below(slope.clamp(from, to))
}

#[cfg(test)]
mod tests;
