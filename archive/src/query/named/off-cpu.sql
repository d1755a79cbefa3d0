-- how long threads of each process were off a CPU: sleeping, ready, preempted and so on
--
-- A thread that leaves a CPU to sleep does so until its wake-up. From then on it is ready, until a CPU switches to it. If it is just going to
-- sleep, its wake-up comes before its switch, and all of the time is ready. A thread that could run when it left is preempted until it runs.
-- Times during which something was lost, and sleeps whose wake-up is not known, are left out, and counted. A wake-up before a loss is not known
-- to be that of a switch after it. A thread that has ended is off no CPU: the next one with its number is another.
WITH marks AS (
    -- Where losses begin, behind all rows of that time, and where they end, before all rows of that time.
    SELECT machine, boot, trace, CAST(9223372036854775807 AS BIGINT) AS row, coalesce(from_mono, 0) AS mono, 1 AS begins, 0 AS ends
    FROM notices WHERE kind IN ('lost', 'dropped', 'gap', 'damage', 'dark')
    UNION ALL
    SELECT machine, boot, trace, -1, coalesce(to_mono, CAST(9223372036854775807 AS BIGINT)), 0, 1
    FROM notices WHERE kind IN ('lost', 'dropped', 'gap', 'damage', 'dark')
), steps AS (
    SELECT machine, boot, trace, row, mono, prev_pid AS pid, prev_comm AS comm, prev_state AS state, 'out' AS step, 0 AS begins, 0 AS ends
    FROM sched.sched_switch WHERE prev_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, next_pid, next_comm, NULL, 'in', 0, 0
    FROM sched.sched_switch WHERE next_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, pid, comm, NULL, 'woken', 0, 0
    FROM sched.sched_waking
    UNION ALL
    SELECT machine, boot, trace, row, mono, NULL, NULL, NULL, 'mark', begins, ends FROM marks
), counted AS (
    SELECT machine, boot, trace, row, mono, pid, comm, state,
        CASE
            WHEN step <> 'out' THEN step
            WHEN state = 0 OR (state & 256) <> 0 THEN 'preempted'
            WHEN (state & 48) <> 0 THEN 'ended'
            ELSE 'out'
        END AS step,
        sum(begins) OVER recording AS begun,
        sum(ends) OVER recording AS ended
    FROM steps
    WINDOW recording AS (PARTITION BY machine, boot, trace ORDER BY mono, row ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), pairs AS (
    SELECT machine, comm, state, step, mono, begun, ended,
        coalesce(lag(step) OVER thread, 'none') AS before,
        lag(ended) OVER thread AS ended_before,
        coalesce(lead(step) OVER thread, 'none') AS next,
        lead(mono) OVER thread AS until,
        lead(begun) OVER thread AS begun_by_then,
        coalesce(lead(step, 2) OVER thread, 'none') AS second,
        lead(mono, 2) OVER thread AS until_second,
        lead(begun, 2) OVER thread AS begun_by_second
    FROM counted
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
), spans AS (
    -- Each loss that began before the end had ended before the begin.
    SELECT machine, comm, state,
        CASE WHEN step = 'out' AND next = 'in' AND before = 'woken' AND begun = ended_before THEN 'woken' ELSE step END AS step,
        CASE
            WHEN step = 'preempted' AND next = 'woken' THEN CASE WHEN begun_by_second = ended THEN until_second - mono END
            WHEN step = 'out' AND next = 'in' AND (before <> 'woken' OR begun <> ended_before) THEN NULL
            WHEN begun_by_then = ended THEN until - mono
        END AS ns
    FROM pairs
    WHERE step = 'out' AND next IN ('woken', 'in')
        OR step = 'woken' AND before = 'out' AND next = 'in'
        OR step = 'preempted' AND (next = 'in' OR next = 'woken' AND second = 'in')
)
SELECT machine, comm AS process,
    CASE
        WHEN step = 'woken' THEN 'ready'
        WHEN step = 'preempted' THEN 'preempted'
        WHEN (state & 128) <> 0 THEN 'idle'
        WHEN (state & 1) <> 0 THEN 'sleeping'
        WHEN (state & 2) <> 0 THEN 'uninterruptible'
        WHEN (state & 12) <> 0 THEN 'stopped'
        ELSE 'parked'
    END AS reason,
    count(ns) AS times,
    sum(ns) AS total_ns,
    CAST(percentile_cont(0.99) WITHIN GROUP (ORDER BY ns) AS BIGINT) AS p99_ns,
    max(ns) AS max_ns,
    count(*) - count(ns) AS left_out
FROM spans
GROUP BY 1, 2, 3
ORDER BY total_ns DESC NULLS LAST, machine, process, reason
