-- who had the CPU while the 100 longest waits lasted
--
-- A wait lasts from the wake-up of a thread until a CPU switches to it.
WITH steps AS (
    SELECT machine, boot, trace, row, mono, pid, 'woken' AS step, NULL AS comm, NULL AS cpu FROM sched.sched_waking
    UNION ALL
    SELECT machine, boot, trace, row, mono, next_pid, 'in', next_comm, cpu_id FROM sched.sched_switch WHERE next_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, prev_pid, 'out', NULL, NULL FROM sched.sched_switch WHERE prev_pid <> 0
), pairs AS (
    SELECT machine, boot, trace, comm, cpu, step, mono,
        lag(step) OVER thread AS step_before,
        lag(mono) OVER thread AS since
    FROM steps
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
), waits AS (
    SELECT machine, boot, trace, comm, cpu, since, mono AS until
    FROM pairs
    WHERE step = 'in' AND step_before = 'woken'
    ORDER BY mono - since DESC, machine, mono
    LIMIT 100
), runs AS (
    SELECT machine, boot, trace, cpu_id AS cpu, next_comm AS comm, mono AS since,
        lead(mono) OVER (PARTITION BY machine, boot, trace, cpu_id ORDER BY mono, row) AS until
    FROM sched.sched_switch
)
SELECT waits.machine, waits.comm AS process, runs.comm AS ran,
    sum(least(waits.until, runs.until) - greatest(waits.since, runs.since)) AS ns
FROM waits JOIN runs
    ON runs.machine = waits.machine AND runs.boot = waits.boot AND runs.trace = waits.trace AND runs.cpu = waits.cpu
    AND runs.since < waits.until AND runs.until > waits.since
GROUP BY waits.machine, waits.comm, runs.comm
ORDER BY ns DESC, machine, process, ran
