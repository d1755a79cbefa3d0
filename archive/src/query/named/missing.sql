-- what is missing from which CPU and when, longest first
SELECT machine, trace, kind, cpu_id AS cpu, count, from_mono, to_mono, to_mono - from_mono AS ns, tai, text
FROM notices
ORDER BY ns DESC NULLS LAST, machine, mono, row
