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

TABLES = re.compile(r"\b(sched|raw_syscalls|net)\.(sched_switch|sched_waking|sys_enter|sys_exit|message_send|message_receive)\b")
# What only perfweave-archive has: a table of system calls' names, and the function happened_before.
OWN = ("system_calls", "happened_before")


def files(archive, table):
    other = table in ("notices", "clocks", "traces")
    directory = table if other else f"events/{table.replace('.', '/')}"
    return f"{archive}/{directory}/*/*/*/*.parquet"


def rows(text):
    """Rows of a CSV without its header, with numbers as numbers, so that each engine may write them its way."""

    def value(cell):
        try:
            return round(float(cell), 3)
        except ValueError:
            return {"\\N": "", "NULL": ""}.get(cell, cell)

    return [[value(cell) for cell in row] for row in list(csv.reader(io.StringIO(text)))[1:]]


def ours(program, archive, sql):
    answer = subprocess.run([program, "query", "--format", "csv", sql, archive], check=True, capture_output=True, text=True)
    return rows(answer.stdout)


def with_files(sql, reader):
    sql = TABLES.sub(lambda match: reader(match.group(0)), sql)
    return re.sub(r"\bFROM notices\b", lambda _: "FROM " + reader("notices"), sql)


def by_duckdb(archive, sql):
    sql = with_files(sql, lambda table: f"read_parquet('{files(archive, table)}', hive_partitioning = true)")
    sql = re.sub(r"percentile_cont\(([\d.]+)\) WITHIN GROUP \(ORDER BY ([^)]*)\) AS BIGINT", r"trunc(quantile_cont(\2, \1)) AS BIGINT", sql)
    answer = duckdb.sql(sql)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(answer.columns)
    writer.writerows(answer.fetchall())
    return rows(text.getvalue())


def by_chdb(archive, sql):
    sql = with_files(sql, lambda table: f"file('{files(archive, table)}', Parquet)")
    sql = re.sub(r"percentile_cont\(([\d.]+)\) WITHIN GROUP \(ORDER BY ([^)]*)\) AS BIGINT", r"trunc(quantileExactInclusive(\1)(\2)) AS Int64", sql)
    settings = " SETTINGS use_hive_partitioning = 1, join_use_nulls = 1, session_timezone = 'UTC'"
    return rows(str(chdb.query(sql + settings, "CSVWithNames")))


def portable(sql):
    """The query in words that all three engines have."""
    return sql


def queries():
    directory = Path(__file__).parent.parent / "src/query/named"
    for path in sorted(directory.glob("*.sql")):
        sql = path.read_text()
        if not any(own in sql for own in OWN):
            yield path.stem, portable(sql)
    counts = [f"SELECT '{table}' AS name, machine, count(*) AS rows, sum(mono) AS monos, max(row) AS last FROM {table} GROUP BY machine" for table in (
        "sched.sched_switch",
        "sched.sched_waking",
        "raw_syscalls.sys_enter",
        "raw_syscalls.sys_exit",
        "net.message_send",
        "net.message_receive",
    )]
    yield "rows of each table", " UNION ALL ".join(counts) + " ORDER BY name, machine"
    yield "hops", (
        "SELECT sent.machine AS a, received.machine AS b, count(*) AS hops, sum(received.mono - sent.mono) AS ns FROM net.message_send AS sent "
        "JOIN net.message_receive AS received ON received.message = sent.message GROUP BY sent.machine, received.machine ORDER BY 1, 2"
    )


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
            if answer != mine:
                failed = True
                pairs = [pair for pair in zip(mine, answer) if pair[0] != pair[1]][:3]
                print(f"{name}: {engine} differs, {len(mine)} and {len(answer)} rows:", *pairs, sep="\n  ")
        print(f"{name}: {len(mine)} rows; perfweave-archive, DuckDB, chDB: {', '.join(times)} s")
        failed |= not mine
    sys.exit(failed)


main()
