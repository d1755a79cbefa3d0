// A reader on libbpf as its documentation has it, of a map that is pinned. With PERFWEAVE the same on perfweave's C library.
//
//	reader MAP [--pages N] [--sort MS] [--by-ticket]
//
// --sort keeps each record for so long, in milliseconds, and then prints the smallest first, as tracee does with 100 ms.

#include <bpf/bpf.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef PERFWEAVE
#include <perfweave.h>
#define buffer pw_buffer
#define buffer__new(fd, pages, sample, lost) pw_buffer__new(fd, (pages) * 4096, sample, lost, NULL, &options)
#define buffer__poll pw_buffer__poll
#define buffer__free pw_buffer__free
#else
#include <bpf/libbpf.h>
#define buffer perf_buffer
#define buffer__new(fd, pages, sample, lost) perf_buffer__new(fd, pages, sample, lost, NULL, NULL)
#define buffer__poll perf_buffer__poll
#define buffer__free perf_buffer__free
#endif

struct event {
	uint64_t ticket, ns, number;
	uint32_t cpu, unused;
};

static volatile sig_atomic_t over;
static double keep_ms = -1;
static int by_ticket;
static struct event *kept;
static size_t kept_count, kept_room;

static void print(const struct event *event)
{
	printf("ticket %llu ns %llu number %llu cpu %u\n", (unsigned long long)event->ticket, (unsigned long long)event->ns,
	       (unsigned long long)event->number, event->cpu);
}

static void on_sample(void *context, int cpu, void *data, uint32_t size)
{
	(void)context, (void)cpu;
	if (size < sizeof(struct event))
		return;
	if (keep_ms < 0) {
		print(data);
		return;
	}
	if (kept_count == kept_room) {
		kept_room = kept_room ? 2 * kept_room : 4096;
		kept = realloc(kept, kept_room * sizeof(*kept));
		if (!kept)
			exit(1);
	}
	memcpy(&kept[kept_count++], data, sizeof(*kept));
}

static void on_lost(void *context, int cpu, unsigned long long count)
{
	(void)context;
	printf("lost %llu on CPU %d\n", count, cpu);
}

static int earlier(const void *left, const void *right)
{
	const struct event *a = left, *b = right;
	uint64_t x = by_ticket ? a->ticket : a->ns, y = by_ticket ? b->ticket : b->ns;

	return (x > y) - (x < y);
}

// Prints what is older than the limit, smallest first.
static void release(uint64_t limit)
{
	size_t out = 0, left = 0;

	qsort(kept, kept_count, sizeof(*kept), earlier);
	for (; out < kept_count; out++)
		if (kept[out].ns <= limit)
			print(&kept[out]);
		else
			kept[left++] = kept[out];
	kept_count = left;
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void on_signal(int signal)
{
	(void)signal;
	over = 1;
}

int main(int count, char **words)
{
	// What libbpf's tools take.
	size_t pages = 64;
	struct buffer *events;
	int fd, got;

#ifdef PERFWEAVE
	PW_OPTS(options, .notice_cb = pw_print_notice);
	// A key in the payload, where the work is judged by tickets.
	for (int i = 2; i < count; i++)
		if (!strcmp(words[i], "--by-ticket"))
			options.key = PW_KEY_PAYLOAD, options.key_offset = 0;
#endif
	for (int i = 2; i < count; i++) {
		by_ticket |= !strcmp(words[i], "--by-ticket");
		if (!strcmp(words[i], "--pages") && i + 1 < count)
			pages = (size_t)atoi(words[i + 1]);
		if (!strcmp(words[i], "--sort") && i + 1 < count)
			keep_ms = atof(words[i + 1]);
	}
	signal(SIGINT, on_signal);
	fd = count > 1 ? bpf_obj_get(words[1]) : -1;
	events = fd < 0 ? NULL : buffer__new(fd, pages, on_sample, on_lost);
	if (!events) {
		fprintf(stderr, "reader: %s: %s\n", count > 1 ? words[1] : "no map", strerror(errno));
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	while (!over) {
		uint64_t begin = now();

		got = buffer__poll(events, keep_ms < 0 ? 100 : 10);
		if (got < 0 && got != -EINTR)
			return 1;
		if (keep_ms >= 0)
			release(begin - (uint64_t)(keep_ms * 1e6));
		fflush(stdout);
	}
	buffer__free(events);
	return 0;
}
