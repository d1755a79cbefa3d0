# A thread reads a page that another provides 50 ms later.
import ctypes, fcntl, mmap, os, platform, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
# userfaultfd(2), UFFD_USER_MODE_ONLY
uffd = libc.syscall({'x86_64': 323, 'aarch64': 282}[platform.machine()], 1 | os.O_CLOEXEC)
if uffd < 0: sys.exit(7)
# UFFDIO_API
fcntl.ioctl(uffd, 0xc018aa3f, bytearray(struct.pack('QQQ', 0xaa, 0, 0)))
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
# UFFDIO_REGISTER
fcntl.ioctl(uffd, 0xc020aa00, bytearray(struct.pack('QQQQ', address, 4096, 1, 0)))
def server():
    os.read(uffd, 32)
    time.sleep(0.05)
    # UFFDIO_ZEROPAGE
    fcntl.ioctl(uffd, 0xc020aa04, bytearray(struct.pack('QQQQ', address, 4096, 0, 0)))
thread = threading.Thread(target=server)
thread.start()
libc.strlen(ctypes.c_void_p(address))
thread.join()
