#!/usr/bin/env python3
"""Events of a pinned BPF_MAP_TYPE_PERF_EVENT_ARRAY in order: order.py MAP [OFFSET of a 32-bit counter of each CPU]. Ends on Ctrl-C."""
import ctypes as c, os, sys

class Slice(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size", c.c_size_t)]
class Event(c.Structure):
    _fields_ = [(name, c.c_uint32) for name in ("kind", "certainty")] + [("key", c.c_uint64), ("has_key", c.c_uint32), ("cpu", c.c_int),
        ("map", c.c_uint32), ("reserved", c.c_uint32), ("data", Slice * 2)] + [(name, c.c_uint64) for name in ("count", "first", "last", "late_by")]
class Opts(c.Structure):
    _fields_ = [("sz", c.c_size_t), ("hold", c.c_uint32), ("key", c.c_uint32), ("key_offset", c.c_size_t), ("lag_ns", c.c_uint64),
        ("epochs_fd", c.c_int), ("count_failures", c.c_uint32), ("failures_fd", c.c_int), ("numbers_bits", c.c_uint32), ("numbers_offset", c.c_size_t)]
RECORD, LOST, FLUSHED = 0, 1, 7

pw, bpf = c.CDLL("libperfweave.so.0.1"), c.CDLL("libbpf.so.1")
pw.pw_buffer__new.restype = buffer_type = c.c_void_p
pw.pw_last_error.restype = c.c_char_p
opts = Opts(sz=c.sizeof(Opts), numbers_bits=32 * (len(sys.argv) > 2), numbers_offset=int((sys.argv + ["0"])[2]) if len(sys.argv) > 2 else 0)
buffer = buffer_type(pw.pw_buffer__new(bpf.bpf_obj_get(os.fsencode(sys.argv[1])), c.c_size_t(262144), None, None, None, c.byref(opts)))
if not buffer:
    sys.exit(pw.pw_last_error().decode())
print("reading", flush=True)
event = Event()
while True:
    try:
        got = pw.pw_buffer__next(buffer, -1, c.byref(event), c.c_size_t(c.sizeof(event)))
        if got == 1 and event.kind == FLUSHED:
            break
        if got == 1 and event.kind == RECORD:
            print("record", event.cpu, event.key, b"".join(c.string_at(s.data, s.size) for s in event.data).hex(), flush=True)
        elif got == 1:
            pw.pw_print_notice(None, c.byref(event))  # A loss, a gap, damage: at its place, and reading goes on.
        elif got < 0 and got != -4:  # EINTR
            sys.exit(pw.pw_last_error().decode())
    except KeyboardInterrupt:
        pw.pw_buffer__flush(buffer)  # Everything written so far, then PW_FLUSHED.
pw.pw_buffer__free(buffer)
