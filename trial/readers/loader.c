// Loads the programs of step.bpf.c, and attaches them while the work runs. Their map is pinned, and whoever is on trial reads it.
//
//	loader load OBJECT FOLDER			the folder becomes a BPF file system with the maps and programs
//	loader run FOLDER [--slow COUNT] COMMAND ...	with interrupts and slow programs; writes the first ticket and the one after the last into the file COUNT

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "loader: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int load(const char *path, const char *folder)
{
	struct bpf_object *object;

	check(mount("trial", folder, "bpf", 0, NULL) == 0, "mount");
	object = bpf_object__open_file(path, NULL);
	check(object && bpf_object__load(object) == 0, path);
	check(bpf_object__pin_maps(object, folder) == 0 && bpf_object__pin_programs(object, folder) == 0, folder);
	return 0;
}

static int pinned(const char *folder, const char *name)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = bpf_obj_get(path);
	check(fd >= 0, path);
	return fd;
}

static int attached(const char *folder, const char *program, const char *tracepoint)
{
	int fd = bpf_raw_tracepoint_open(tracepoint, pinned(folder, program));

	check(fd >= 0, tracepoint);
	return fd;
}

// A link that is closed may have a program that still runs on another CPU. After a grace period it has drawn its ticket.
static void drained(void)
{
	check(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0, "membarrier");
}

static int run(const char *folder, const char *count, char **command)
{
	struct { uint64_t tickets, slow; } shared;
	uint64_t first;
	int counts = pinned(folder, "counts"), step, tick = -1, status;
	uint32_t zero = 0;
	pid_t child;
	FILE *file;

	check(bpf_map_lookup_elem(counts, &zero, &shared) == 0, "counts");
	first = shared.tickets;
	shared.slow = count != NULL;
	check(bpf_map_update_elem(counts, &zero, &shared, 0) == 0, "counts");
	step = attached(folder, "step", "sys_enter");
	if (count)
		tick = attached(folder, "tick", "hrtimer_expire_entry");
	child = fork();
	check(child >= 0, "fork");
	if (child == 0) {
		execvp(command[0], command);
		check(0, command[0]);
	}
	check(waitpid(child, &status, 0) == child && WIFEXITED(status), command[0]);
	close(step);
	if (count) {
		close(tick);
		drained();
		check(bpf_map_lookup_elem(counts, &zero, &shared) == 0, "counts");
		file = fopen(count, "w");
		check(file && fprintf(file, "%llu %llu\n", (unsigned long long)first, (unsigned long long)shared.tickets) > 0, count);
		check(fclose(file) == 0, count);
	}
	return WEXITSTATUS(status);
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "load"))
		return load(words[2], words[3]);
	if (count > 5 && !strcmp(words[1], "run") && !strcmp(words[3], "--slow"))
		return run(words[2], words[4], words + 5);
	if (count > 3 && !strcmp(words[1], "run"))
		return run(words[2], NULL, words + 3);
	fprintf(stderr, "loader load OBJECT FOLDER | loader run FOLDER [--slow COUNT] COMMAND ...\n");
	return 2;
}
