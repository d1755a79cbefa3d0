/* Packets that programs of tc and of XDP output whole, on a veth pair in a network namespace of the test's own. As root, with ip(8).
 * Argument: packets.bpf.o. */

#include "common.h"
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/socket.h>

#include "packets.h"

#define MANY 200
#define KIND 0x88b5 /* for experiments (IEEE 802) */

/* What the callback has found. */
struct found {
	int by[3], last[3];
};

/* A packet of any size from an Ethernet header on, whose bytes say which it is. */
static size_t packet(unsigned char *bytes, int number)
{
	size_t size = ETH_ZLEN + (size_t)number * 7 % 1400;

	memset(bytes, 0xff, ETH_ALEN);
	memset(bytes + ETH_ALEN, 2, ETH_ALEN);
	bytes[12] = KIND >> 8, bytes[13] = KIND & 0xff;
	for (size_t at = ETH_HLEN; at < size; at++)
		bytes[at] = (unsigned char)(at + (size_t)number);
	return size;
}

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	struct found *found = ctx;
	struct seen_packet seen;
	unsigned char expected[2048];
	int number;

	CHECK(cpu >= 0 && size >= sizeof(seen));
	memcpy(&seen, data, sizeof(seen));
	CHECK((seen.by == TC || seen.by == XDP) && size >= sizeof(seen) + seen.size);
	if (memcmp((unsigned char *)data + sizeof(seen) + 12, (unsigned char[]){ KIND >> 8, KIND & 0xff }, 2))
		return; /* the kernel's own, as for IPv6 */
	number = found->by[seen.by];
	CHECK(seen.size == packet(expected, number) && !memcmp((unsigned char *)data + sizeof(seen), expected, seen.size));
	/* XDP sees a packet before tc does. */
	CHECK(seen.by == XDP || found->by[XDP] > number);
	found->by[seen.by]++;
}

static void attach(int link)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = link, .attach_point = BPF_TC_INGRESS);
	LIBBPF_OPTS(bpf_tc_opts, tc, .prog_fd = bpf_program__fd(bpf_object__find_program_by_name(object, "on_tc")));

	CHECK(tc.prog_fd >= 0 && !bpf_tc_hook_create(&hook) && !bpf_tc_attach(&hook, &tc));
	/* In the generic way: the whole packet is in one piece. */
	CHECK(!bpf_xdp_attach(link, bpf_program__fd(bpf_object__find_program_by_name(object, "on_xdp")), 2 /* XDP_FLAGS_SKB_MODE */, NULL));
}

int main(int argc, char **argv)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = htons(KIND), .sll_halen = ETH_ALEN };
	struct found found = {};
	struct pw_buffer *buffer;
	int from;

	CHECK(argc == 2);
	CHECK(!unshare(CLONE_NEWNET));
	CHECK(!system("ip link add pw0 type veth peer name pw1 && ip link set pw0 up && ip link set pw1 up"));
	object = bpf_object__open_file(argv[1], NULL);
	CHECK(object && !bpf_object__load(object));
	buffer = pw_buffer__new(map("packets"), 1 << 20, on_sample, NULL, &found, NULL);
	CHECK(buffer);
	attach((int)if_nametoindex("pw1"));
	to.sll_ifindex = (int)if_nametoindex("pw0");
	from = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(KIND));
	CHECK(from >= 0);
	for (int sent = 0; sent < MANY; sent++) {
		unsigned char bytes[2048];
		size_t size = packet(bytes, sent);

		move(sent % cpus());
		CHECK(sendto(from, bytes, size, 0, (struct sockaddr *)&to, sizeof(to)) == (ssize_t)size);
		/* The other end takes it later (NAPI), and a packet of another CPU may overtake it. */
		for (int tries = 0; found.by[TC] <= sent; tries++)
			CHECK(tries < 1000 && pw_buffer__consume(buffer) >= 0);
	}
	CHECK(found.by[XDP] == MANY && found.by[TC] == MANY);
	pw_buffer__free(buffer);
	puts("packets: all is well");
	return 0;
}
