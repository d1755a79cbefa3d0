#!/usr/bin/env python3
"""Events of a pinned BPF_MAP_TYPE_PERF_EVENT_ARRAY in order: order.py MAP [OFFSET of a 64-bit counter of each CPU]. Ends on Ctrl-C.
Needs the package cffi, which reads the installed header, and no compiler."""
import os, re, signal, subprocess, sys
from cffi import FFI

c = FFI()
folder = subprocess.check_output(["pkg-config", "--variable=includedir", "perfweave"], text=True).strip()
# Declarations alone: no lines of the preprocessor, and nothing for C++.
c.cdef(re.sub(r'(?m)^#ifdef __cplusplus$[\s\S]*?^#endif.*$|^#.*$', "", open(folder + "/perfweave.h").read()) + "int bpf_obj_get(const char *path);")
pw, bpf = c.dlopen("libperfweave.so.0.1"), c.dlopen("libbpf.so.1")
opts = {"sz": c.sizeof("struct pw_opts"), **({"has_numbers": 1, "numbers_offset": int(sys.argv[2])} if len(sys.argv) > 2 else {})}
buffer = pw.pw_buffer__new(bpf.bpf_obj_get(os.fsencode(sys.argv[1])), 262144, c.NULL, c.NULL, c.NULL, c.new("struct pw_opts *", opts))
if not buffer:
    sys.exit(c.string(pw.pw_last_error()).decode())
signal.signal(signal.SIGINT, lambda *_: pw.pw_buffer__flush(buffer))  # Everything written so far, then PW_FLUSHED.
print("reading", flush=True)
event = c.new("struct pw_event *")
while event.kind != pw.PW_FLUSHED:
    got = pw.pw_buffer__next(buffer, -1, event, c.sizeof(event[0]))
    if got == 1 and event.kind == pw.PW_RECORD:
        print("record", event.cpu, event.key, b"".join(bytes(c.buffer(s.data, s.size)) for s in event.data).hex(), flush=True)
    elif got == 1 and event.kind != pw.PW_FLUSHED:
        pw.pw_print_notice(c.NULL, event)  # A loss, a gap, damage: at its place, and reading goes on.
    elif got < 0 and got != -4:  # EINTR
        sys.exit(c.string(pw.pw_last_error()).decode())
pw.pw_buffer__free(buffer)
