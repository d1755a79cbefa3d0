/* A process that has unloaded the library forks: no handler of the library's is left. Argument: the library. */

#include "common.h"
#include <dlfcn.h>
#include <sys/wait.h>

static void count(void *ctx, int cpu, void *data, uint32_t size)
{
	(void)ctx, (void)cpu, (void)data, (void)size;
}

int main(int argc, char **argv)
{
	int events = bpf_map_create(BPF_MAP_TYPE_PERF_EVENT_ARRAY, "events", 4, 4, libbpf_num_possible_cpus(), NULL), status;
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	struct pw_buffer *(*make)(int, size_t, pw_sample_fn, pw_lost_fn, void *, const struct pw_opts *);
	void (*drop)(struct pw_buffer *);
	struct pw_buffer *buffer;
	pid_t child;

	if (events < 0 || !library)
		return fprintf(stderr, "%s\n", library ? "no map" : dlerror()), 1;
	*(void **)&make = dlsym(library, "pw_buffer__new");
	*(void **)&drop = dlsym(library, "pw_buffer__free");
	buffer = make && drop ? make(events, 0, count, NULL, NULL, NULL) : NULL;
	if (!buffer)
		return fprintf(stderr, "no buffer: %s\n", strerror(errno)), 1;
	drop(buffer);
	if (dlclose(library))
		return fprintf(stderr, "%s\n", dlerror()), 1;
	child = fork();
	if (!child)
		_exit(7);
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
		return fprintf(stderr, "a child ends with %x\n", status), 1;
	return 0;
}
