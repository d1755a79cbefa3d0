-- how long system calls took, by name
WITH steps AS (
    SELECT machine, boot, trace, row, mono, common_pid AS pid, id, true AS enters FROM raw_syscalls.sys_enter
    UNION ALL
    SELECT machine, boot, trace, row, mono, common_pid, id, false FROM raw_syscalls.sys_exit
), calls AS (
    SELECT machine, id, enters, mono,
        lead(mono) OVER thread AS until,
        lead(enters) OVER thread AS enters_next,
        lead(id) OVER thread AS id_next
    FROM steps
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
)
SELECT calls.machine, coalesce(max(names.name), CAST(calls.id AS VARCHAR)) AS call,
    count(*) AS calls,
    sum(until - mono) AS total_ns,
    CAST(percentile_cont(0.5) WITHIN GROUP (ORDER BY until - mono) AS BIGINT) AS p50_ns,
    CAST(percentile_cont(0.99) WITHIN GROUP (ORDER BY until - mono) AS BIGINT) AS p99_ns,
    max(until - mono) AS max_ns
FROM calls LEFT JOIN system_calls AS names ON names.id = calls.id
WHERE enters AND NOT enters_next AND id_next = calls.id
GROUP BY calls.machine, calls.id
ORDER BY p99_ns DESC, calls.machine, call
