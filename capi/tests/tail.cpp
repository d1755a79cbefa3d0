// tail.c in C++: prints the events of a pinned perf event array in order. Argument: its path.

#include <cstdio>
#include <cstring>
#include <linux/bpf.h>
#include <perfweave.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	bpf_attr attr{};
	attr.pathname = reinterpret_cast<unsigned long>(argv[1]);
	const int map = static_cast<int>(syscall(SYS_bpf, BPF_OBJ_GET, &attr, sizeof attr));

	pw_opts opts{};
	opts.sz = sizeof opts;
	opts.notice_cb = pw_print_notice;
	const auto on_sample = [](void *, int cpu, void *, uint32_t size) { std::printf("CPU %d: %u bytes\n", cpu, size); };
	pw_buffer *buffer = pw_buffer__new(map, 0, on_sample, nullptr, nullptr, &opts);
	while (buffer && pw_buffer__poll(buffer, -1) >= 0)
		;
	std::fprintf(stderr, "%s\n", pw_last_error());
	pw_buffer__free(buffer);
	return 1;
}
