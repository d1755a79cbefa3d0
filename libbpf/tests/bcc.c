// libbcc's readers, as bpftrace and bcc use them.    bcc OBJECT
#include "common.h"
#include <bcc/libbpf.h>
#include <bcc/perf_reader.h>

static long events, best = -1, inversions;
static unsigned long long lost;

static void on_raw(void *cookie, void *data, int size)
{
	struct step *step = data;

	CHECK(cookie == &events && size >= (int)sizeof(*step));
	inversions += (long)step->number < best;
	if ((long)step->number > best)
		best = (long)step->number;
	events++;
}

static void on_lost(void *cookie, uint64_t count)
{
	CHECK(cookie == &events);
	lost += count;
}

static struct perf_reader *readers[1024];

static void open_all(int how, int pages)
{
	for (int cpu = 0; cpu < cpus(); cpu++) {
		struct bcc_perf_buffer_opts opts = { .pid = -1, .cpu = cpu, .wakeup_events = 1 };
		int fd;

		readers[cpu] = how ? bpf_open_perf_buffer_opts(on_raw, on_lost, &events, pages, &opts) :
				     bpf_open_perf_buffer(on_raw, on_lost, &events, -1, cpu, pages);
		CHECK(readers[cpu]);
		fd = perf_reader_fd(readers[cpu]);
		CHECK(fd >= 0 && !bpf_map_update_elem(map("events"), &cpu, &fd, BPF_ANY));
	}
}

static void free_all(void)
{
	for (int cpu = 0; cpu < cpus(); cpu++) {
		bpf_map_delete_elem(map("events"), &cpu);
		perf_reader_free(readers[cpu]);
	}
}

/* As bpftrace waits: until it hears of nothing. */
static void by_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN }, ready[8];
	int own = epoll_create1(0), got;

	for (int cpu = 0; cpu < cpus(); cpu++) {
		event.data.ptr = readers[cpu];
		CHECK(!epoll_ctl(own, EPOLL_CTL_ADD, perf_reader_fd(readers[cpu]), &event));
	}
	handover(5000);
	do {
		bool over = is_handed();

		got = epoll_wait(own, ready, 8, 100);
		for (int i = 0; i < got; i++)
			perf_reader_event_read(ready[i].data.ptr);
		if (got == 0 && over)
			break;
	} while (got >= 0);
	CHECK(got == 0);
	handed_over();
	close(own);
}

static void by_poll(void)
{
	handover(5000);
	while (!is_handed())
		CHECK(!perf_reader_poll(cpus(), readers, 100));
	handed_over();
	perf_reader_consume(cpus(), readers);
}

int main(int words, char **word)
{
	struct perf_reader *theirs;

	CHECK(words == 2);
	load(word[1]);
	begin(PERF, 0, 0);
	for (int how = 0; how < 2; how++) {
		events = inversions = lost = 0;
		best = -1;
		open_all(how, 64);
		if (how)
			by_epoll();
		else
			by_poll();
		CHECK(events == 5000 && !lost && !inversions);
		free_all();
	}
	/* The last loss is told to a tool that reads no more than what is ready. */
	events = 0;
	open_all(1, 1);
	move(0);
	for (int i = 0; i < 100000; i++)
		step(i);
	anywhere();
	for (int i = 0; i < 3; i++)
		CHECK(!perf_reader_poll(cpus(), readers, 100));
	CHECK(events + (long)lost == 100000 && lost);
	free_all();
	/* A reader of libbcc's own goes there. */
	theirs = perf_reader_new(on_raw, on_lost, &events, 8);
	CHECK(theirs && perf_reader_fd(theirs) == -1);
	perf_reader_set_fd(theirs, dup(0));
	CHECK(perf_reader_fd(theirs) >= 0 && perf_reader_mmap(theirs) < 0);
	perf_reader_free(theirs);
	perf_reader_free(NULL);
	return 0;
}
