/* The library can be unloaded, and a process that has unloaded it can fork. Argument: the library. */

#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

static void *library;

static void count(void *ctx, int cpu, void *data, uint32_t size)
{
	(void)ctx, (void)cpu, (void)data, (void)size;
}

/* In a thread of its own: a library stays as long as a thread that was in it has something to tidy up. */
static void *make_and_free(void *ctx)
{
	int events = bpf_map_create(BPF_MAP_TYPE_PERF_EVENT_ARRAY, "events", 4, 4, libbpf_num_possible_cpus(), NULL);
	struct pw_buffer *(*make)(int, size_t, pw_sample_fn, pw_lost_fn, void *, const struct pw_opts *);
	void (*drop)(struct pw_buffer *);
	struct pw_buffer *buffer;

	*(void **)&make = dlsym(library, "pw_buffer__new");
	*(void **)&drop = dlsym(library, "pw_buffer__free");
	buffer = events >= 0 && make && drop ? make(events, 0, count, NULL, NULL, NULL) : NULL;
	if (buffer)
		drop(buffer);
	return buffer ? ctx : NULL;
}

/* Whether the library is mapped. */
static int is_mapped(void)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		found |= strstr(line, "libperfweave") != NULL;
	if (maps)
		fclose(maps);
	return found;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	void *made;
	pid_t child;
	int status;

	library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library || pthread_create(&thread, NULL, make_and_free, &status) || pthread_join(thread, &made) || !made)
		return fprintf(stderr, "no buffer: %s\n", library ? strerror(errno) : dlerror()), 1;
	if (!is_mapped() || dlclose(library) || is_mapped())
		return fprintf(stderr, "the library is not unloaded\n"), 1;
	child = fork();
	if (!child)
		_exit(7);
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
		return fprintf(stderr, "a child ends with %x\n", (unsigned)status), 1;
	return 0;
}
