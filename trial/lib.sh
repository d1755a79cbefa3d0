# What the commands in `tools/` are made of. Each runs in a shell of its own, with these variables:
#
#   WORK   the command that makes the steps and writes its history
#   OUT    the file that must have what the tool prints; ERR has its standard error
#   DIR    an empty folder; BPF is one in it, for pinned maps; BIN has what this package built
#   STEPS  a program for bpftrace that prints each step
#   SLOW   not empty: BPF programs draw tickets and are slow

# The work uses no more.
cpus=$(($(nproc) < 64 ? $(nproc) : 64))

# Whether OUT has the marks from $1 on, of each CPU.
marked() {
    local mark found=()
    while read -r mark; do
        [[ $mark != 3ade* ]] || mark=$((16#$mark))
        [ "$mark" -lt "$1" ] || [ "$mark" -ge $(($1 + 128)) ] || found[mark]=1
    done < <(tail -n 2000 "$OUT" | grep -aoE '98765[0-9]{4}|3ade6[0-9a-f]{3}' | sort -u)
    [ ${#found[@]} -ge "${MARKS:-$cpus}" ]
}

# Makes marks on all CPUs until the tool, process $2, has printed those of each. Fails if it has ended.
mark() {
    local try
    for ((try = 0; try < 100; try++)); do
        $LOAD "$BIN/n$1"
        sleep 0.1
        ! marked "$1" || return 0
        kill -0 "$2" 2>/dev/null || return 1
    done
    echo "it does not print marks" >&2
}

# Runs the work beside a tool that is started before and stopped after it: beside READY COMMAND ... The tool is ready when it prints what matches
# READY, or, if that is empty, when it prints marks. It is stopped when it has printed marks that were made after the work.
beside() {
    local ready=$1 tool try
    shift
    env --default-signal=INT "$@" >"$OUT" 2>>"$ERR" &
    tool=$!
    if [ -z "$ready" ]; then mark 987654144 "$tool" || return 1; fi
    until [ -z "$ready" ] || grep -qE -- "$ready" "$OUT" "$ERR"; do
        kill -0 "$tool" 2>/dev/null || return 1
        sleep 0.05
    done
    $LOAD_WORK $WORK
    mark 987654272 "$tool"
    kill "-${STOP:-INT}" "$tool" 2>/dev/null
    for ((try = 0; try < 60; try++)); do kill -0 "$tool" 2>/dev/null || break; sleep 0.05; done
    kill -KILL "$tool" 2>/dev/null
    wait "$tool" 2>/dev/null
    return 0
}

# The same with a reader of the map that the BPF program of readers/step.bpf.c writes into: reads COMMAND ...
reads() {
    mkdir -p "$BPF"
    "$BIN/loader" load "$BIN/step.bpf.o" "$BPF" || return 1
    LOAD="$BIN/loader run $BPF" LOAD_WORK="$BIN/loader run $BPF"
    [ -z "$SLOW" ] || LOAD_WORK="$LOAD_WORK --slow $DIR/tickets"
    beside "${READY-^ready}" "$@"
    umount "$BPF"
}

# An instance of ftrace, read while it runs: ftrace KIB EVENT FILTER. 0 KiB is the kernel's default.
ftrace() {
    local into=/sys/kernel/tracing/instances/trial
    mkdir "$into" || return 1
    [ "$1" = 0 ] || echo "$1" >"$into/buffer_size_kb"
    echo "$3" >"$into/events/$2/filter"
    echo 1 >"$into/events/$2/enable"
    STOP=TERM beside '' cat "$into/trace_pipe"
    echo 0 >"$into/events/$2/enable"
    rmdir "$into"
}

# Tracepoints in the work itself, and what babeltrace2 prints of them; with LIVE while it runs. Arguments are those of the channel.
lttng_ust() {
    local session=trial-$$ lttng="timeout 20 lttng --no-sessiond" print="babeltrace2 --clock-seconds" live
    pgrep -x lttng-sessiond >/dev/null || lttng-sessiond --daemonize --no-kernel </dev/null >>"$ERR" 2>&1 || return 1
    if [ -n "${LIVE:-}" ]; then
        pgrep -x lttng-relayd >/dev/null || lttng-relayd --daemonize -o "$DIR" </dev/null >>"$ERR" 2>&1 || return 1
        $lttng create "$session" --live --set-url=net://127.0.0.1
    else
        $lttng create "$session" --output="$DIR/trace"
    fi && $lttng enable-channel -u "$@" channel && $lttng enable-event -u -c channel 'trial:*' && $lttng add-context -u -c channel -t vtid &&
        $lttng start || return 1
    if [ -n "${LIVE:-}" ]; then
        local url=net://127.0.0.1/host/$(hostname)/$session
        $print -i lttng-live "$url" >"$OUT" 2>>"$ERR" &
        live=$!
        until babeltrace2 -i lttng-live net://127.0.0.1 2>/dev/null | grep "/$session " | grep -q ' 1 client'; do
            kill -0 "$live" 2>/dev/null || return 1
            sleep 0.1
        done
    fi
    LD_PRELOAD=liblttng-ust-fork.so ${WORK/\/work /\/work-ust }
    $lttng stop
    $lttng destroy "$session"
    if [ -n "${LIVE:-}" ]; then wait "$live"; else $print "$DIR/trace" >"$OUT"; fi
}
