"""The programs of docs/WHY.md: each is slow or hangs for a known cause, until it is killed. As root: python3 stories.py NAME"""
import ctypes, fcntl, http.client, http.server, os, signal, sys, threading, time

FILE = "/var/tmp/perfweave-story"
now = time.monotonic


def process(name, run, *args):
    """A process of this name. It ends with the first one: see the end of this file."""
    if os.fork() == 0:
        named(name)
        run(*args)
        os._exit(0)


def named(name):
    open("/proc/self/comm", "w").write(name)


def compute(seconds):
    end = now() + seconds
    while now() < end:
        sum(range(1000))


def pinned(cpu, policy=os.SCHED_OTHER, priority=0):
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, policy, os.sched_param(priority))


def served(work):
    """A client that asks at once again when it is answered, and this process, which answers."""
    asked, ask = os.pipe()
    answered, answer = os.pipe()

    def client():
        while True:
            os.write(ask, b"?")
            os.read(answered, 1)

    process("client", client)
    named("server")
    while True:
        os.read(asked, 1)
        work()
        os.write(answer, b"!")


def lock():
    """A server takes a lock for each request. A backup has it now and then while it writes to the disk."""

    def backup():
        while True:
            time.sleep(0.4)
            with open(FILE, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                for _ in range(3):
                    file.write("x" * 4_000_000)
                    file.flush()
                    os.fsync(file.fileno())

    def work():
        with open(FILE) as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    open(FILE, "w").close()
    process("backup", backup)
    served(work)


def inversion():
    """An important process waits for a lock that an unimportant one has, which gets no CPU because of a third."""
    cpu = max(os.sched_getaffinity(0))

    def low():
        pinned(cpu)
        while True:
            with open(FILE) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                compute(0.003)

    def middle():
        pinned(cpu, os.SCHED_FIFO, 1)
        while True:
            time.sleep(0.1)
            compute(0.04)

    open(FILE, "w").close()
    process("low", low)
    process("middle", middle)
    named("high")
    pinned(cpu, os.SCHED_FIFO, 2)
    while True:
        time.sleep(0.005)
        with open(FILE) as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def hog():
    """A server shares its CPU with a job that computes."""
    cpu = max(os.sched_getaffinity(0))

    def job():
        pinned(cpu)
        os.nice(-15)
        while True:
            compute(0.05)
            time.sleep(0.1)

    process("job", job)
    pinned(cpu)
    served(lambda: None)


def lost():
    """A thread waits for news that came just before it began to wait. After half a second it looks again."""
    news, ready = threading.Condition(), threading.Event()

    def tell():
        while True:
            ready.wait()
            ready.clear()
            with news:
                news.notify()

    threading.Thread(target=tell).start()
    named("server")
    while True:
        ready.set()
        # The mistake: what was told meanwhile is not looked at.
        time.sleep(0.001)
        with news:
            news.wait(0.5)


def quota():
    """A server in a control group that may use a fifth of a CPU."""
    first = os.path.isdir("/sys/fs/cgroup/cpu")
    group = "/sys/fs/cgroup/" + ("cpu/story" if first else "story")
    os.makedirs(group, exist_ok=True)
    if first:
        open(group + "/cpu.cfs_quota_us", "w").write("20000")
    else:
        open(group + "/cpu.max", "w").write("20000 100000")
    open(group + "/cgroup.procs", "w").write(str(os.getpid()))
    served(lambda: compute(0.002))


def web():
    """A front end asks an application, which asks a database, where somebody has a lock."""

    def service(port, work):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = work()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()

    def asks(port):
        def work():
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/")
            return connection.getresponse().read()

        return work

    def query():
        with open(FILE) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        compute(0.001)
        return b"42\n"

    def vacuum():
        while True:
            with open(FILE) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                compute(0.06)
            time.sleep(0.002)

    open(FILE, "w").close()
    process("database", service, 8003, query)
    process("vacuum", vacuum)
    process("app", service, 8002, asks(8003))
    named("front")
    service(8001, asks(8002))


def deadlock():
    """Two threads take two mutexes of the C library in different orders."""
    library = ctypes.CDLL(None)
    mutexes = [ctypes.create_string_buffer(64) for _ in range(2)]
    both = threading.Barrier(2)

    def takes(name, first, second):
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
            comm.write(name)
        library.pthread_mutex_lock(mutexes[first])
        both.wait()
        library.pthread_mutex_lock(mutexes[second])

    named("deadlock")
    threads = [threading.Thread(target=takes, args=of) for of in (("one", 0, 1), ("two", 1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    os.setpgid(0, 0)
    globals()[sys.argv[1]]()
