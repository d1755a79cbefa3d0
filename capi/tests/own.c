/* Events that the program has opened itself, the map as a file, and a call that leaves nothing. As root. Argument: numbers.bpf.o. */

#include "common.h"
#include <linux/perf_event.h>
#include <sys/mount.h>
#include <time.h>

#define MANY 500

struct seen {
	int records, lost;
	__u64 next;
};

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	struct seen *seen = ctx;
	struct number number;

	CHECK(size >= sizeof(number));
	memcpy(&number, data, sizeof(number));
	CHECK(number.cpu == (__u32)cpu && number.number == seen->next++);
	seen->records++;
}

static void on_lost(void *ctx, int cpu, __u64 count)
{
	CHECK(cpu == cpus() - 1);
	((struct seen *)ctx)->lost += (int)count;
}

static struct perf_event_attr attribute(void)
{
	return (struct perf_event_attr){
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_BPF_OUTPUT,
		.size = sizeof(struct perf_event_attr),
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_RAW | PERF_SAMPLE_TIME,
		.read_format = 1 << 4, /* PERF_FORMAT_LOST */
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
		.wakeup_events = 1,
	};
}

/* Opens an event for each CPU, and puts it into its slot. */
static void open_all(struct perf_event_attr *attr, int *events, int *of)
{
	for (int cpu = 0; cpu < cpus(); cpu++) {
		of[cpu] = cpu;
		events[cpu] = (int)syscall(SYS_perf_event_open, attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
		CHECK(events[cpu] >= 0 && !bpf_map_update_elem(map("events"), &cpu, &events[cpu], BPF_ANY));
	}
}

static void own_events(void)
{
	int events[1024], of[1024];
	struct perf_event_attr attr = attribute();
	struct seen seen = {};
	PW_OPTS(opts, .cpus = of, .cpu_cnt = (size_t)cpus());
	struct pw_buffer *buffer;

	open_all(&attr, events, of);
	buffer = pw_buffer__adopt(events, 16 * 4096, &attr, on_sample, on_lost, &seen, &opts);
	CHECK(buffer && pw_buffer__buffer_cnt(buffer) == cpus());
	for (int cpu = 0; cpu < cpus(); cpu++)
		close(events[cpu]);
	begin(PERF);
	for (int round = 1; round <= 5; round++) {
		emit(MANY);
		CHECK(pw_buffer__consume(buffer) == MANY && seen.records == round * MANY);
		CHECK(pw_buffer__readable(buffer) == 0 && pw_buffer__poll(buffer, 0) == 0);
	}
	/* More than a ring holds, and nothing after it: only the kernel's count of the event has the loss. */
	begin(PERF);
	seen = (struct seen){};
	move(cpus() - 1);
	for (int i = 0; i < 5000; i++)
		syscall(SYS_getppid);
	CHECK(pw_buffer__consume(buffer) == seen.records && seen.lost > 0 && seen.records + seen.lost == 5000);
	pw_buffer__free(buffer);
}

static void refused(void)
{
	int events[1024], of[1024], zero = 0;
	struct perf_event_attr attr = attribute(), wrong;
	struct seen seen = {};
	PW_OPTS(opts, .cpus = of, .cpu_cnt = (size_t)cpus());
	PW_OPTS(none, .latency_ns = 0);

	open_all(&attr, events, of);
	wrong = attr, wrong.size = 0;
	CHECK(!pw_buffer__adopt(events, 4096, &wrong, on_sample, NULL, &seen, &opts) && errno == EINVAL && strstr(pw_last_error(), "size"));
	wrong = attr, wrong.sample_type = PERF_SAMPLE_RAW;
	CHECK(!pw_buffer__adopt(events, 4096, &wrong, on_sample, NULL, &seen, &opts) && errno == EINVAL && strstr(pw_last_error(), "time"));
	wrong = attr, wrong.clockid = 99;
	CHECK(!pw_buffer__adopt(events, 4096, &wrong, on_sample, NULL, &seen, &opts) && errno == EINVAL && strstr(pw_last_error(), "99"));
	wrong = attr, wrong.write_backward = 1;
	CHECK(!pw_buffer__adopt(events, 4096, &wrong, on_sample, NULL, &seen, &opts) && errno == EINVAL && strstr(pw_last_error(), "write_backward"));
	CHECK(!pw_buffer__adopt(events, 4097, &attr, on_sample, NULL, &seen, &opts) && errno == EINVAL);
	CHECK(!pw_buffer__adopt(events, 4096, &attr, on_sample, NULL, &seen, &none) && errno == EINVAL);
	CHECK(!pw_buffer__adopt(NULL, 4096, &attr, on_sample, NULL, &seen, &opts) && errno == EINVAL);
	CHECK(!pw_buffer__adopt(events, 4096, NULL, on_sample, NULL, &seen, &opts) && errno == EINVAL);
	opts.sample_type = PERF_SAMPLE_CPU;
	CHECK(!pw_buffer__adopt(events, 4096, &attr, on_sample, NULL, &seen, &opts) && errno == EINVAL && strstr(pw_last_error(), "attr"));
	opts.sample_type = 0, opts.hold = PW_HOLD_UNORDERED;
	CHECK(!pw_buffer__adopt(events, 4096, &attr, on_sample, NULL, &seen, &opts) && errno == EINVAL);
	opts.hold = PW_HOLD_FENCE, opts.map_keys = &zero;
	CHECK(!pw_buffer__adopt(events, 4096, &attr, on_sample, NULL, &seen, &opts) && errno == EINVAL);
	opts.map_keys = NULL;
	for (int cpu = 0; cpu < cpus(); cpu++)
		close(events[cpu]);
	CHECK(!pw_buffer__adopt(events, 4096, &attr, on_sample, NULL, &seen, &opts) && errno == EBADF);
}

static __u32 id_of(int fd)
{
	struct bpf_map_info info = {};
	__u32 size = sizeof(info);

	CHECK(fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &size));
	return info.id;
}

/* In a mount namespace of its own. */
static void pinned(void)
{
	char folder[] = "/tmp/perfweave-pin-XXXXXX", path[64], elsewhere[64];
	struct seen seen = {};
	struct pw_buffer *perf = pw_buffer__new(map("events"), 0, on_sample, NULL, &seen, NULL);
	struct pw_ring_buffer *rings = pw_ring_buffer__new(map("ring"), NULL, NULL, NULL);
	int fd;

	CHECK(perf && rings && mkdtemp(folder));
	snprintf(elsewhere, sizeof(elsewhere), "%s/no", folder);
	CHECK(pw_buffer__pin(perf, elsewhere) < 0 && strstr(pw_last_error(), "mount -t bpf"));
	CHECK(!unshare(CLONE_NEWNS) && !mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) && !mount("bpf", folder, "bpf", 0, NULL));
	snprintf(path, sizeof(path), "%s/map", folder);
	CHECK(!pw_buffer__pin(perf, path) && pw_buffer__pin(perf, path) == -EEXIST && strstr(pw_last_error(), "unlink"));
	fd = bpf_obj_get(path);
	CHECK(id_of(fd) == id_of(map("events")));
	close(fd);
	CHECK(!unlink(path) && !pw_buffer__pin(pw_ring_buffer__buffer(rings), path));
	fd = bpf_obj_get(path);
	CHECK(id_of(fd) == id_of(map("ring")));
	close(fd);
	CHECK(!unlink(path) && !pw_ring_buffer__add(rings, map("other"), NULL, NULL));
	CHECK(pw_buffer__pin(pw_ring_buffer__buffer(rings), path) == -EINVAL && pw_buffer__pin(perf, NULL) == -EINVAL && pw_buffer__pin(NULL, path) == -EINVAL);
	pw_buffer__free(perf);
	pw_ring_buffer__free(rings);
	CHECK(!umount(folder) && !rmdir(folder));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	load(argv[1]);
	own_events();
	refused();
	pinned();
	puts("own: all is well");
	return 0;
}
