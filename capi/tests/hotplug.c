/* A CPU that goes and comes back: what it writes before its ring is opened again is missing, and is told. As root. Argument: numbers.bpf.o. */

#include "common.h"
#include <fcntl.h>
#include <sys/file.h>

#define CPUS "/sys/devices/system/cpu/"
#define MANY 100

static int records, flushed, untraced[8192];

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	(void)ctx, (void)cpu, (void)data, (void)size;
	records++;
}

static void on_notice(void *ctx, const struct pw_event *event)
{
	(void)ctx;
	pw_print_notice(NULL, event);
	flushed += event->kind == PW_FLUSHED;
	if (event->kind == PW_UNTRACED)
		untraced[event->cpu]++;
}

static void finish(struct pw_buffer *buffer)
{
	int before = flushed;

	CHECK(!pw_buffer__flush(buffer));
	while (flushed == before)
		CHECK(pw_buffer__poll(buffer, -1) >= 0);
}

/* As tests/support/src/cpus.rs: no other test needs the CPUs to stay, or takes them away. Until the process ends. */
static void alone(void)
{
	const char *lists[] = { CPUS "possible", CPUS "online" };

	for (int i = 0; i < 2; i++) {
		int list = open(lists[i], O_RDONLY | O_CLOEXEC);

		CHECK(list >= 0 && !flock(list, LOCK_EX));
	}
}

/* Whether the kernel does it. */
static int set_online(int cpu, const char *online)
{
	char path[64];
	int file, wrote;

	snprintf(path, sizeof(path), CPUS "cpu%d/online", cpu);
	file = open(path, O_WRONLY | O_CLOEXEC);
	wrote = file >= 0 && write(file, online, 1) == 1;
	if (file >= 0)
		close(file);
	return wrote;
}

/* Writes from one CPU. */
static void emit_on(int cpu)
{
	move(cpu);
	for (int i = 0; i < MANY; i++)
		syscall(SYS_getppid);
	move(0);
}

/* A CPU that was chosen and is offline has an index, and no ring until it is there. */
static void chosen(int cpu)
{
	int both[] = { cpu, 0 };

	for (int unordered = 0; unordered < 2; unordered++) {
		PW_OPTS(opts, .hold = unordered ? PW_HOLD_UNORDERED : PW_HOLD_FENCE, .cpus = both, .cpu_cnt = 2, .notice_cb = on_notice);
		struct pw_buffer *buffer = pw_buffer__new(map("events"), 0, on_sample, NULL, NULL, &opts);
		void *base;
		size_t size;

		CHECK(buffer && pw_buffer__buffer_cnt(buffer) == 2 && pw_buffer__buffer_fd(buffer, 1) >= 0);
		CHECK(pw_buffer__buffer_fd(buffer, 0) == -ENOENT && pw_buffer__buffer(buffer, 0, &base, &size) == -ENOENT);
		CHECK(!unordered || pw_buffer__consume_buffer(buffer, 0) == -ENOENT);
		if (!unordered) {
			CHECK(set_online(cpu, "1"));
			finish(buffer);
			CHECK(pw_buffer__buffer_fd(buffer, 0) >= 0 && pw_buffer__buffer_cnt(buffer) == 2 && set_online(cpu, "0"));
		}
		pw_buffer__free(buffer);
	}
}

int main(int argc, char **argv)
{
	PW_OPTS(opts, .notice_cb = on_notice);
	static struct pw_account accounts[8193];
	struct pw_buffer *buffer;
	int last, got;

	CHECK(argc == 2);
	alone();
	last = cpus() - 1;
	load(argv[1]);
	if (last > 0 && set_online(last, "0")) {
		chosen(last);
		CHECK(set_online(last, "1"));
		untraced[last] = 0;
	}
	buffer = pw_buffer__new(map("events"), 64 * 4096, on_sample, NULL, NULL, &opts);
	CHECK(buffer);
	begin(PERF);
	emit_on(last);
	finish(buffer);
	CHECK(records == MANY && !untraced[last]);
	if (last == 0 || !set_online(last, "0")) {
		puts("hotplug: SKIPPED, no CPU can be taken offline");
		return 0;
	}
	CHECK(set_online(last, "1"));
	/* Nobody has polled: the event of that CPU is dead. */
	emit_on(last);
	finish(buffer);
	CHECK(records < 2 * MANY && untraced[last]);
	got = pw_buffer__ledger(buffer, accounts, sizeof(accounts[0]), 8193);
	CHECK(got == last + 2 && accounts[last + 1].cpu == last && accounts[last + 1].untraced_ns > 0);
	records = untraced[last] = 0;
	emit_on(last);
	finish(buffer);
	CHECK(records == MANY && !untraced[last]);
	pw_buffer__free(buffer);
	puts("hotplug: what is missing is told");
	return 0;
}
