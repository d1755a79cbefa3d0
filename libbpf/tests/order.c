// A tool on libbpf which knows nothing of any order, and a program of two threads that hand a number to and fro: says how many numbers came
// after a larger one, what was lost and what the tool took of the CPU.
//	order OBJECT new|raw|epoll|ring STEPS PAGES [hand|flood]
#include "common.h"
#include <sys/resource.h>

static long inversions, events, best = -1, all;
static unsigned long long lost;

static void take(const struct step *step)
{
	events++;
	inversions += (long)step->number < best;
	if ((long)step->number > best)
		best = (long)step->number;
	all += (long)step->number;
}

static void on_sample(void *context, int cpu, void *data, __u32 size)
{
	(void)context, (void)size;
	CHECK(((struct step *)data)->cpu == (unsigned int)cpu);
	take(data);
}

static void on_lost(void *context, int cpu, __u64 count)
{
	(void)context, (void)cpu;
	lost += count;
}

static enum bpf_perf_event_ret on_event(void *context, int cpu, struct perf_event_header *header)
{
	struct { struct perf_event_header header; __u64 id, lost; } *loss = (void *)header;
	struct { struct perf_event_header header; __u32 pid, tid, cpu, reserved, size; char data[]; } __attribute__((packed)) *sample = (void *)header;
	struct step step;

	if (header->type == PERF_RECORD_LOST) {
		on_lost(context, cpu, loss->lost);
		return LIBBPF_PERF_EVENT_CONT;
	}
	CHECK(header->type == PERF_RECORD_SAMPLE && header->size == 8 + 16 + 4 + sample->size);
	memcpy(&step, sample->data, sizeof(step));
	CHECK(sample->cpu == step.cpu && step.cpu == (unsigned int)cpu && sample->pid == step.pid);
	take(&step);
	return LIBBPF_PERF_EVENT_CONT;
}

static int on_ring(void *context, void *data, size_t size)
{
	(void)context, (void)size;
	take(data);
	return 0;
}

static void *flood(void *which)
{
	move((int)(long)which % cpus());
	for (long number = (long)which; number < handing; number += 2)
		step(number);
	return NULL;
}

/* The traced program: waits for a byte, works, and ends. */
static int work(long steps, bool floods)
{
	int way[2];
	char byte;
	pid_t child;

	CHECK(!pipe(way));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		close(way[1]);
		CHECK(read(way[0], &byte, 1) == 1);
		if (floods) {
			handing = steps;
			for (long which = 0; which < 2; which++)
				CHECK(!pthread_create(&hands[which], NULL, flood, (void *)which));
		} else {
			handover(steps);
		}
		handed_over();
		exit(0);
	}
	close(way[0]);
	struct control how = { .pid = (unsigned int)child };
	unsigned int zero = 0;

	how.mode = PERF;
	CHECK(!bpf_map_update_elem(map("control"), &zero, &how, BPF_ANY));
	return way[1];
}

static double cpu_time(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e9 + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e3;
}

int main(int words, char **word)
{
	const char *way = word[2];
	long steps = atol(word[3]);
	size_t pages = (size_t)atol(word[4]);
	bool floods = words > 5 && !strcmp(word[5], "flood"), over = false;
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .config = PERF_COUNT_SW_BPF_OUTPUT,
		.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_CPU | PERF_SAMPLE_RAW, .sample_period = 1, .wakeup_events = 1 };
	struct epoll_event event = { .events = EPOLLIN }, ready[64];
	struct perf_buffer *buffer = NULL;
	struct ring_buffer *rings = NULL;
	int own = epoll_create1(0), got, start, status;
	struct timespec began, ended;
	double used;

	load(word[1]);
	start = work(steps, floods);
	if (!strcmp(way, "ring")) {
		struct control how;
		unsigned int zero = 0;

		CHECK(!bpf_map_lookup_elem(map("control"), &zero, &how));
		how.mode = RING;
		CHECK(!bpf_map_update_elem(map("control"), &zero, &how, BPF_ANY));
		rings = ring_buffer__new(map("ring1"), on_ring, NULL, NULL);
		CHECK(rings && !ring_buffer__add(rings, map("ring2"), on_ring, NULL));
	} else if (!strcmp(way, "raw")) {
		buffer = perf_buffer__new_raw(map("events"), pages, &attr, on_event, NULL, NULL);
	} else {
		buffer = perf_buffer__new(map("events"), pages, on_sample, on_lost, NULL, NULL);
	}
	CHECK(rings || buffer);
	for (size_t i = 0; buffer && !strcmp(way, "epoll") && i < perf_buffer__buffer_cnt(buffer); i++) {
		event.data.u64 = i;
		CHECK(!epoll_ctl(own, EPOLL_CTL_ADD, perf_buffer__buffer_fd(buffer, i), &event));
	}
	used = cpu_time();
	clock_gettime(CLOCK_MONOTONIC, &began);
	CHECK(write(start, "", 1) == 1);
	/* It ends when the work is over and nothing comes any more. */
	do {
		if (!over && waitpid(-1, &status, WNOHANG) > 0) {
			over = true;
			clock_gettime(CLOCK_MONOTONIC, &ended);
		}
		if (rings) {
			got = ring_buffer__poll(rings, 100);
		} else if (!strcmp(way, "epoll")) {
			got = epoll_wait(own, ready, 64, 100);
			for (int i = 0; i < got; i++)
				CHECK(!perf_buffer__consume_buffer(buffer, ready[i].data.u64));
		} else {
			got = perf_buffer__poll(buffer, 100);
		}
		CHECK(got >= 0 || errno == EINTR);
	} while (!over || got);
	used = cpu_time() - used;
	printf("%s: %ld inversions, %ld events, %llu lost, %ld ns/event, work %.2f s\n", way, inversions, events, lost, (long)(used / (double)(events ? events : 1)),
	       (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9);
	perf_buffer__free(buffer);
	ring_buffer__free(rings);
	/* Everything is there or was told. */
	return events + (long)lost != steps || (!lost && all != steps * (steps - 1) / 2) ? 2 : inversions && !floods;
}
