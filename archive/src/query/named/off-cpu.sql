-- how long threads of each process were off a CPU, by the state that they left it in
WITH steps AS (
    SELECT machine, boot, trace, row, mono, prev_pid AS pid, prev_comm AS comm, prev_state AS state, true AS leaves
    FROM sched.sched_switch WHERE prev_pid <> 0
    UNION ALL
    SELECT machine, boot, trace, row, mono, next_pid, next_comm, NULL, false
    FROM sched.sched_switch WHERE next_pid <> 0
), spans AS (
    SELECT machine, comm, state, leaves, mono,
        lead(mono) OVER thread AS until,
        lead(leaves) OVER thread AS leaves_again
    FROM steps
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
)
SELECT machine, comm AS process,
    CASE
        WHEN state = 0 OR (state & 256) <> 0 THEN 'preempted'
        WHEN (state & 128) <> 0 THEN 'idle'
        WHEN (state & 1) <> 0 THEN 'sleeping'
        WHEN (state & 2) <> 0 THEN 'uninterruptible'
        WHEN (state & 12) <> 0 THEN 'stopped'
        WHEN (state & 48) <> 0 THEN 'exited'
        ELSE 'parked'
    END AS reason,
    count(*) AS times,
    sum(until - mono) AS total_ns,
    CAST(percentile_cont(0.99) WITHIN GROUP (ORDER BY until - mono) AS BIGINT) AS p99_ns,
    max(until - mono) AS max_ns
FROM spans
WHERE leaves AND NOT leaves_again
GROUP BY 1, 2, 3
ORDER BY total_ns DESC, machine, process, reason
