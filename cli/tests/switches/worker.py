# A worker of io_uring opens a FIFO, which another process opens 50 ms later.
import ctypes, mmap, os, struct, sys, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
parameters = bytearray(120)
# io_uring_setup(2)
ring = libc.syscall(425, 1, (ctypes.c_char * 120).from_buffer(parameters))
if ring < 0: sys.exit(7)
field = lambda at: struct.unpack_from('I', parameters, at)[0]
# struct io_sqring_offsets is at 40: head, tail, ring_mask, ring_entries, flags, dropped, array.
tail, array = field(44), field(64)
queue = mmap.mmap(ring, array + 4, flags=mmap.MAP_SHARED, offset=0)
entries = mmap.mmap(ring, 64, flags=mmap.MAP_SHARED, offset=0x10000000)
folder = tempfile.mkdtemp()
fifo = folder + '/fifo'
os.mkfifo(fifo)
path = ctypes.create_string_buffer(fifo.encode())
# IORING_OP_OPENAT to read, by a worker (IOSQE_ASYNC), which waits for who writes.
struct.pack_into('BBHiQQII', entries, 0, 18, 16, 0, -100, 0, ctypes.addressof(path), 0, 0)
struct.pack_into('I', queue, array, 0)
struct.pack_into('I', queue, tail, 1)
if os.fork() == 0:
    time.sleep(0.05)
    os.open(fifo, os.O_WRONLY)
    os._exit(0)
# io_uring_enter(2): one is submitted, and one waited for.
done = libc.syscall(426, ring, 1, 1, 1, None, 0)
os.wait()
os.remove(fifo)
os.rmdir(folder)
sys.exit(0 if done == 1 else 8)
