-- how long each process waited from its wake-up until it ran, by CPU
--
-- A wait begins with a wake-up of a thread that does not run, and ends when a CPU switches to that thread. A thread that was switched out since
-- does not wait for that wake-up.
WITH steps AS (
    SELECT machine, boot, trace, row, mono, pid, 'woken' AS step, NULL AS comm, NULL AS cpu FROM sched.sched_waking
    UNION ALL
    SELECT machine, boot, trace, row, mono, next_pid, 'in', next_comm, cpu_id FROM sched.sched_switch WHERE next_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, prev_pid, 'out', NULL, NULL FROM sched.sched_switch WHERE prev_pid <> 0
), pairs AS (
    SELECT machine, comm, cpu, step, mono,
        lag(step) OVER thread AS step_before,
        lag(mono) OVER thread AS mono_before
    FROM steps
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
)
SELECT machine, comm AS process, cpu,
    count(*) AS waits,
    CAST(percentile_cont(0.5) WITHIN GROUP (ORDER BY mono - mono_before) AS BIGINT) AS p50_ns,
    CAST(percentile_cont(0.99) WITHIN GROUP (ORDER BY mono - mono_before) AS BIGINT) AS p99_ns,
    max(mono - mono_before) AS max_ns
FROM pairs
WHERE step = 'in' AND step_before = 'woken'
GROUP BY machine, comm, cpu
ORDER BY p99_ns DESC, machine, process, cpu
