-- how long system calls took, by name
--
-- Calls during which something was lost are left out, and counted.
WITH marks AS (
    -- Where losses begin, behind all rows of that time, and where they end, before all rows of that time.
    SELECT machine, boot, trace, CAST(9223372036854775807 AS BIGINT) AS row, coalesce(from_mono, 0) AS mono, 1 AS begins, 0 AS ends
    FROM notices WHERE kind IN ('lost', 'dropped', 'gap', 'damage', 'dark')
    UNION ALL
    SELECT machine, boot, trace, -1, coalesce(to_mono, CAST(9223372036854775807 AS BIGINT)), 0, 1
    FROM notices WHERE kind IN ('lost', 'dropped', 'gap', 'damage', 'dark')
), steps AS (
    SELECT machine, boot, trace, row, mono, common_pid AS pid, id, true AS enters, 0 AS begins, 0 AS ends FROM raw_syscalls.sys_enter
    UNION ALL
    SELECT machine, boot, trace, row, mono, common_pid, id, false, 0, 0 FROM raw_syscalls.sys_exit
    UNION ALL
    SELECT machine, boot, trace, row, mono, NULL, NULL, false, begins, ends FROM marks
), counted AS (
    SELECT machine, boot, trace, row, mono, pid, id, enters,
        sum(begins) OVER recording AS begun,
        sum(ends) OVER recording AS ended
    FROM steps
    WINDOW recording AS (PARTITION BY machine, boot, trace ORDER BY mono, row ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), pairs AS (
    SELECT machine, id, enters, mono, ended,
        lead(mono) OVER thread AS until,
        lead(enters) OVER thread AS enters_next,
        lead(id) OVER thread AS id_next,
        lead(begun) OVER thread AS begun_by_then
    FROM counted
    WINDOW thread AS (PARTITION BY machine, boot, trace, pid ORDER BY mono, row)
), calls AS (
    -- Each loss that began before the end had ended before the begin.
    SELECT machine, id, CASE WHEN begun_by_then = ended THEN until - mono END AS ns
    FROM pairs
    WHERE enters AND NOT enters_next AND id_next = id
)
SELECT calls.machine, coalesce(max(names.name), CAST(calls.id AS VARCHAR)) AS call,
    count(ns) AS calls,
    sum(ns) AS total_ns,
    CAST(percentile_cont(0.5) WITHIN GROUP (ORDER BY ns) AS BIGINT) AS p50_ns,
    CAST(percentile_cont(0.99) WITHIN GROUP (ORDER BY ns) AS BIGINT) AS p99_ns,
    max(ns) AS max_ns,
    count(*) - count(ns) AS left_out
FROM calls LEFT JOIN system_calls AS names ON names.id = calls.id
GROUP BY calls.machine, calls.id
ORDER BY p99_ns DESC NULLS LAST, calls.machine, call
