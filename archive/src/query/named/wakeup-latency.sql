-- how long each process waited from its wake-up until it ran, by CPU
--
-- A wait begins with a wake-up of a thread that does not run, and ends when a CPU switches to that thread. If the thread is just going to sleep,
-- its wake-up comes before its switch, and the wait begins with the switch. A thread that was preempted does not wait for its wake-up.
-- Waits during which something was lost, and those whose wake-up was before a loss and whose switch after it, are left out, and counted.
-- A thread that has ended waits for nothing: the next one with its number is another.
WITH marks AS (
    -- Where losses begin, behind all rows of that time, and where they end, before all rows of that time.
    SELECT machine, boot, trace, CAST(9223372036854775807 AS BIGINT) AS row, coalesce(from_mono, 0) AS mono, 1 AS begins, 0 AS ends
    FROM notices WHERE kind IN ('lost', 'dropped', 'gap', 'damage', 'dark')
    UNION ALL
    SELECT machine, boot, trace, -1, coalesce(to_mono, CAST(9223372036854775807 AS BIGINT)), 0, 1
    FROM notices WHERE kind IN ('lost', 'dropped', 'gap', 'damage', 'dark')
), steps AS (
    SELECT machine, boot, trace, row, mono, pid, 'woken' AS step, NULL AS comm, NULL AS cpu, 0 AS begins, 0 AS ends
    FROM sched.sched_waking
    UNION ALL
    SELECT machine, boot, trace, row, mono, next_pid, 'in', next_comm, cpu_id, 0, 0 FROM sched.sched_switch WHERE next_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, prev_pid,
        CASE WHEN state = 0 OR (state & 256) <> 0 THEN 'preempted' WHEN (state & 48) <> 0 THEN 'ended' ELSE 'out' END, NULL, NULL, 0, 0
    FROM (SELECT machine, boot, trace, row, mono, prev_pid, prev_state AS state FROM sched.sched_switch) AS leaving WHERE prev_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, NULL, 'mark', NULL, NULL, begins, ends FROM marks
), counted AS (
    SELECT machine, boot, trace, row, mono, pid, step, comm, cpu,
        sum(begins) OVER recording AS begun,
        sum(ends) OVER recording AS ended
    FROM steps
    WINDOW recording AS (PARTITION BY machine, boot, trace ORDER BY mono, row ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), pairs AS (
    SELECT machine, comm, cpu, step, mono, begun,
        lag(step) OVER thread AS step_before,
        coalesce(lag(step, 2) OVER thread, 'none') AS second_before,
        lag(mono) OVER thread AS mono_before,
        lag(ended) OVER thread AS ended_before,
        lag(begun) OVER thread AS begun_before,
        lag(ended, 2) OVER thread AS ended_second
    FROM counted
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
), waits AS (
    -- Each loss that began before the end had ended before the begin.
    SELECT machine, comm, cpu,
        CASE WHEN begun = ended_before AND (step_before = 'woken' OR begun_before = ended_second) THEN mono - mono_before END AS ns
    FROM pairs
    WHERE step = 'in' AND (step_before = 'woken' AND second_before <> 'preempted' OR step_before = 'out' AND second_before = 'woken')
)
SELECT machine, comm AS process, cpu,
    count(ns) AS waits,
    CAST(percentile_cont(0.5) WITHIN GROUP (ORDER BY ns) AS BIGINT) AS p50_ns,
    CAST(percentile_cont(0.99) WITHIN GROUP (ORDER BY ns) AS BIGINT) AS p99_ns,
    max(ns) AS max_ns,
    count(*) - count(ns) AS left_out
FROM waits
GROUP BY machine, comm, cpu
ORDER BY p99_ns DESC NULLS LAST, machine, process, cpu
