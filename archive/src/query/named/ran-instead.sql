-- who had the CPU while the 100 longest waits lasted
--
-- A wait lasts from the wake-up of a thread until a CPU switches to it. If the thread is just going to sleep, its wake-up comes before its
-- switch, and the wait begins with the switch. A thread that was preempted does not wait for its wake-up.
-- Waits and runs during which something was lost are left out, and so are waits whose wake-up was before a loss and whose switch after it.
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
    SELECT machine, boot, trace, row, mono, next_pid, 'in', next_comm, cpu_id, 0, 0 FROM sched.sched_switch
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
    SELECT machine, boot, trace, comm, cpu, step, mono, begun,
        lag(step) OVER thread AS step_before,
        coalesce(lag(step, 2) OVER thread, 'none') AS second_before,
        lag(mono) OVER thread AS since,
        lag(ended) OVER thread AS ended_before,
        lag(begun) OVER thread AS begun_before,
        lag(ended, 2) OVER thread AS ended_second
    FROM counted
    WHERE pid <> 0
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
), waits AS (
    -- Each loss that began before the end had ended before the begin.
    SELECT machine, boot, trace, comm, cpu, since, mono AS until
    FROM pairs
    WHERE step = 'in' AND begun = ended_before
        AND (step_before = 'woken' AND second_before <> 'preempted'
            OR step_before = 'out' AND second_before = 'woken' AND begun_before = ended_second)
    ORDER BY mono - since DESC, machine, mono
    LIMIT 100
), runs AS (
    SELECT machine, boot, trace, cpu, comm, mono AS since, ended,
        lead(mono) OVER on_cpu AS until,
        lead(begun) OVER on_cpu AS begun_by_then
    FROM counted
    WHERE step = 'in'
    WINDOW on_cpu AS (PARTITION BY machine, boot, trace, cpu ORDER BY mono, row)
)
SELECT waits.machine, waits.comm AS process, runs.comm AS ran,
    sum(least(waits.until, runs.until) - greatest(waits.since, runs.since)) AS ns
FROM waits JOIN runs
    ON runs.machine = waits.machine AND runs.boot = waits.boot AND runs.trace = waits.trace AND runs.cpu = waits.cpu
    AND runs.since < waits.until AND runs.until > waits.since AND runs.begun_by_then = runs.ended
GROUP BY waits.machine, waits.comm, runs.comm
ORDER BY ns DESC, machine, process, ran
