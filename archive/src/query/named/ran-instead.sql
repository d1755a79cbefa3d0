-- who had the CPU while the 200 longest waits lasted
--
-- A wait lasts from the wake-up of a thread until a CPU switches to it. Runs and waits meet by CPU and tenth of a second.
WITH steps AS (
    SELECT machine, boot, trace, row, mono, pid, 'woken' AS step, NULL AS comm, NULL AS cpu FROM sched.sched_waking
    UNION ALL
    SELECT machine, boot, trace, row, mono, next_pid, 'in', next_comm, cpu_id FROM sched.sched_switch WHERE next_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, prev_pid, 'out', NULL, NULL FROM sched.sched_switch WHERE prev_pid <> 0
), pairs AS (
    SELECT machine, boot, trace, comm, cpu, step, pid, mono,
        lag(step) OVER thread AS step_before,
        lag(mono) OVER thread AS since
    FROM steps
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
), waits AS (
    SELECT machine, boot, trace, comm, cpu, pid, since, mono AS until
    FROM pairs
    WHERE step = 'in' AND step_before = 'woken'
    ORDER BY mono - since DESC, machine, mono
    LIMIT 200
), slots AS (
    SELECT *, unnest(range(since / 100000000, until / 100000000 + 1)) AS slot FROM waits
), runs AS (
    SELECT machine, boot, trace, cpu_id AS cpu, next_comm AS comm, mono AS since,
        lead(mono) OVER (PARTITION BY machine, boot, trace, cpu_id ORDER BY mono, row) AS until
    FROM sched.sched_switch
), run_slots AS (
    SELECT *, unnest(range(since / 100000000, until / 100000000 + 1)) AS slot FROM runs WHERE until IS NOT NULL
), parts AS (
    SELECT slots.machine, slots.comm AS process, run_slots.comm AS ran,
        least(slots.until, run_slots.until, (slots.slot + 1) * 100000000) - greatest(slots.since, run_slots.since, slots.slot * 100000000) AS ns
    FROM slots JOIN run_slots
        ON run_slots.machine = slots.machine AND run_slots.boot = slots.boot AND run_slots.trace = slots.trace
        AND run_slots.cpu = slots.cpu AND run_slots.slot = slots.slot
)
SELECT machine, process, ran, sum(ns) AS ns
FROM parts
WHERE ns > 0
GROUP BY machine, process, ran
ORDER BY ns DESC, machine, process, ran
