/* A whole program without libbpf: prints the events of a pinned perf event array in order. Argument: its path. */

#define _GNU_SOURCE
#include <linux/bpf.h>
#include <perfweave.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void on_sample(void *ctx, int cpu, void *data, uint32_t size)
{
	(void)ctx, (void)data;
	printf("CPU %d: %u bytes\n", cpu, size);
}

int main(int argc, char **argv)
{
	union bpf_attr attr;
	PW_OPTS(opts, .notice_cb = pw_print_notice);
	struct pw_buffer *buffer;

	if (argc != 2)
		return 2;
	memset(&attr, 0, sizeof(attr));
	attr.pathname = (unsigned long)argv[1];
	buffer = pw_buffer__new((int)syscall(SYS_bpf, BPF_OBJ_GET, &attr, sizeof(attr)), 0, on_sample, NULL, NULL, &opts);
	if (!buffer) {
		fprintf(stderr, "%s\n", pw_last_error());
		return 1;
	}
	while (pw_buffer__poll(buffer, -1) >= 0)
		;
	fprintf(stderr, "%s\n", pw_last_error());
	pw_buffer__free(buffer);
	return 1;
}
