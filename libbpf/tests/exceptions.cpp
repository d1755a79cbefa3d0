// An exception that a callback throws comes to the caller, and the rest of the events with the next call. (libbpf gives the same record again.)
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "steps.h"

#define CHECK(that) \
	do { \
		if (!(that)) { \
			std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #that); \
			std::exit(1); \
		} \
	} while (0)

static int events;

static void on_sample(void *, int, void *, __u32)
{
	if (++events % 2 == 1)
		throw std::runtime_error("odd");
}

static int on_ring(void *, void *, size_t)
{
	if (++events % 2 == 1)
		throw std::runtime_error("odd");
	return 0;
}

/* Reads until so many are there, through all exceptions. */
template <typename Read> static void all(int most, Read read)
{
	int thrown = 0;

	events = 0;
	while (events < most) {
		try {
			CHECK(read() >= 0);
		} catch (const std::runtime_error &) {
			thrown++;
		}
	}
	CHECK(events == most && thrown == most / 2);
}

int main(int words, char **word)
{
	bpf_object *object = bpf_object__open_file(words > 1 ? word[1] : "", nullptr);
	control how = {};
	unsigned int zero = 0;

	CHECK(dup2(memfd_create("steps", 0), FD) == FD);
	CHECK(object && !bpf_object__load(object));
	CHECK(bpf_program__attach(bpf_object__find_program_by_name(object, "on_enter")));
	auto map = [&](const char *name) { return bpf_object__find_map_fd_by_name(object, name); };
	how.pid = (unsigned int)getpid();
	how.mode = PERF | RING;
	how.which = 1;
	CHECK(!bpf_map_update_elem(map("control"), &zero, &how, BPF_ANY));
	perf_buffer *buffer = perf_buffer__new(map("events"), 8, on_sample, nullptr, nullptr, nullptr);
	ring_buffer *rings = ring_buffer__new(map("ring1"), on_ring, nullptr, nullptr);
	CHECK(buffer && rings);
	for (int i = 0; i < 10; i++)
		lseek(FD, i, SEEK_SET);
	all(10, [&] { return perf_buffer__poll(buffer, 20000); });
	all(10, [&] { return ring_buffer__poll(rings, 20000); });
	perf_buffer__free(buffer);
	ring_buffer__free(rings);
	return 0;
}
