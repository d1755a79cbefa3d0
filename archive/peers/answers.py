"""DuckDB and chDB read the files of an archive, and give the answers that perfweave-archive gives."""

import csv
import io
import re
import subprocess
import sys
import time
from pathlib import Path

import chdb
import duckdb

TABLES = re.compile(r"\b(sched|raw_syscalls|net|sock)\.(sched_switch|sched_waking|sys_enter|sys_exit|message_send|message_receive|inet_sock_set_state)\b")
# A function that only perfweave-archive has.
OWN = "happened_before"


def files(archive, table):
    other = table in ("notices", "clocks", "traces")
    directory = table if other else f"events/{table.replace('.', '/')}"
    return f"{archive}/{directory}/*/*/*/*.parquet"


def rows(text):
    """Rows of a CSV, with numbers as numbers, so that each engine may write them its way."""

    def value(cell):
        for number in (int, float):
            try:
                return number(cell)
            except ValueError:
                pass
        return {"\\N": "", "NULL": ""}.get(cell, cell)

    return [[value(cell) for cell in row] for row in csv.reader(io.StringIO(text))]


def ours(program, archive, sql):
    answer = subprocess.run([program, "query", "--format", "csv", sql, archive], check=True, capture_output=True, text=True)
    return rows(answer.stdout)


def with_files(sql, reader):
    sql = TABLES.sub(lambda match: reader(match.group(0)), sql)
    return re.sub(r"\bFROM notices\b", lambda _: "FROM " + reader("notices"), sql)


def by_duckdb(archive, sql):
    sql = with_files(sql, lambda table: f"read_parquet('{files(archive, table)}', hive_partitioning = true)")
    sql = re.sub(r"percentile_cont\(([\d.]+)\) WITHIN GROUP \(ORDER BY ([^)]*)\) AS BIGINT", r"trunc(quantile_cont(\2, \1)) AS BIGINT", sql)
    sql = re.sub(r"CAST\((\w+\.tai) AS BIGINT\)", r"epoch_ns(\1)", sql)
    answer = duckdb.sql(sql)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(answer.columns)
    writer.writerows(answer.fetchall())
    return rows(text.getvalue())


def by_chdb(archive, sql):
    sql = with_files(sql, lambda table: f"file('{files(archive, table)}', Parquet)")
    sql = re.sub(r"percentile_cont\(([\d.]+)\) WITHIN GROUP \(ORDER BY ([^)]*)\) AS BIGINT", r"trunc(quantileExactInclusive(\1)(\2)) AS Int64", sql)
    sql = re.sub(r"CAST\((\w+\.tai) AS BIGINT\)", r"toUnixTimestamp64Nano(\1)", sql)
    # Its operators on bits are functions.
    sql = re.sub(r"\(state & (\d+)\)", r"bitAnd(state, \1)", sql)
    # Its lead and lag give 0 where there is no row, unless the column may be null.
    sql = re.sub(r"\b(lead|lag)\((\w+)(, 2)?\)", r"\1(toNullable(\2)\3)", sql)
    settings = " SETTINGS use_hive_partitioning = 1, join_use_nulls = 1, session_timezone = 'UTC'"
    return rows(str(chdb.query(sql + settings, "CSVWithNames")))


def portable(sql):
    """The query without comments, without TAI, for Python's clocks have no nanoseconds, and without the names of system calls."""
    lines = [line for line in sql.splitlines() if not line.startswith("--")]
    sql = "\n".join(lines).replace(", tai, ", ", ").replace(" LEFT JOIN system_calls AS names ON names.id = calls.id", "")
    return sql.replace("coalesce(max(names.name), CAST(calls.id AS VARCHAR))", "CAST(calls.id AS VARCHAR)")


def queries():
    directory = Path(__file__).parent.parent / "src/query/named"
    for path in sorted(directory.glob("*.sql")):
        sql = portable(path.read_text())
        if OWN not in sql:
            yield path.stem, sql
    counts = [f"SELECT '{table.replace('.', ' ')}' AS name, machine, count(*) AS rows, sum(mono) AS monos, max(row) AS last FROM {table} GROUP BY machine" for table in (
        "sched.sched_switch",
        "sched.sched_waking",
        "raw_syscalls.sys_enter",
        "raw_syscalls.sys_exit",
        "net.message_send",
        "net.message_receive",
    )]
    yield "rows of each table", f"SELECT * FROM ({' UNION ALL '.join(counts)}) AS counts ORDER BY name, machine"
    yield "hops", (
        "SELECT sent.machine AS a, received.machine AS b, count(*) AS hops, sum(received.mono - sent.mono) AS ns FROM net.message_send AS sent "
        "JOIN net.message_receive AS received ON received.message = sent.message GROUP BY sent.machine, received.machine ORDER BY 1, 2"
    )


def same(name, one, other):
    """Percentiles lie between two rows: engines round them differently, by 1 ns."""
    if isinstance(one, int | float) and isinstance(other, int | float) and name.startswith("p"):
        return abs(one - other) <= 1
    return one == other


def differences(mine, theirs):
    """Rows that differ. The first row has the names of columns, which engines write in their ways."""
    names = mine[0]
    if len(mine) != len(theirs):
        return [(len(mine), len(theirs))]
    return [pair for pair in zip(mine[1:], theirs[1:]) if not all(map(same, names, *pair))]


def main():
    program, archive = sys.argv[1:]
    failed = False
    for name, sql in queries():
        times = []
        answers = []
        for ask in (lambda: ours(program, archive, sql), lambda: by_duckdb(archive, sql), lambda: by_chdb(archive, sql)):
            start = time.monotonic()
            answers.append(ask())
            times.append(f"{time.monotonic() - start:.2f}")
        mine = answers[0]
        for engine, answer in zip(("DuckDB", "chDB"), answers[1:]):
            if pairs := differences(mine, answer):
                failed = True
                print(f"{name}: {engine} differs:", *pairs[:3], sep="\n  ")
        print(f"{name}: {len(mine) - 1} rows; perfweave-archive, DuckDB, chDB: {', '.join(times)} s")
        failed |= len(mine) == 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
