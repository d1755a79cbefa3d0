//! What a summary says of loss. It never says more than is known.

use perfweave::Account;

/// Why losses are not all counted, where a command knows nothing more special.
pub const UNCOUNTED: &str = "losses after the last record of a ring are not counted here (Linux 6.0 counts them)";

/// What is said of losses that a recording counts and does not place, if there are any.
pub fn without_place(lost: u64) -> Option<String> {
    (lost > 0).then(|| format!("{lost} records were lost at a place that the recording does not have"))
}

/// What is said of AUX data in a recording, if there is any.
pub fn undecoded(aux: u64) -> Option<String> {
    (aux > 0)
        .then(|| format!("{aux} bytes of AUX data (Intel PT, Arm CoreSight, SPE) are not decoded: `perf script` does"))
}

/// What is said of switches that have no record, behind all else.
pub fn switches(unrecorded: u64) -> String {
    match unrecorded {
        0 => String::new(),
        count => format!("; the kernel left {count} switches out, and what was then is not known"),
    }
}

/// What is missing, where that many switches are missing all the same.
pub fn beside_switches(missing: String, unrecorded: u64) -> String {
    if unrecorded == 0 {
        return missing;
    }
    missing
        .replace("nothing is missing", "no record is lost")
        .replace("nothing is known to be missing", "no record is known to be lost")
}

/// What is missing, in words, by the account of all CPUs together. `uncounted` says why losses are not all counted, if
/// they are not, and what would help.
pub fn of(total: &Account, uncounted: &str) -> String {
    if total.is_complete() {
        return "nothing is missing".into();
    }
    let Account { lost, unreported, exact, missing, unexplained, damaged, untraced, .. } = *total;
    let mut known = Vec::new();
    if lost > 0 || damaged > 0 {
        let least = if exact { "" } else { "at least " };
        let after = if unreported > 0 {
            format!(" ({unreported} of them after the last event of their ring)")
        } else {
            String::new()
        };
        known.push(format!("{least}{lost} lost{after}, {damaged} damaged"));
    }
    if missing > 0 || unexplained > 0 {
        known.push(format!("{missing} numbers missing, {unexplained} of them without a known loss"));
    }
    if !untraced.is_zero() {
        known.push(format!("CPUs were online and not traced for up to {:.3} s", untraced.as_secs_f64()));
    }
    match (known.is_empty(), exact) {
        (true, _) => format!("nothing is known to be missing, but {uncounted}"),
        (false, true) => known.join(", "),
        (false, false) => format!("{}; {uncounted}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::of;
    use perfweave::Account;

    /// A ring may have its last event long before that of the stream.
    #[test]
    fn losses_behind_a_last_event_are_those_of_a_ring() {
        let mut total = Account::default();
        (total.lost, total.unreported, total.exact) = (7, 3, true);
        assert_eq!(of(&total, ""), "7 lost (3 of them after the last event of their ring), 0 damaged");
    }
}
