// A switch for FUSEE's own store, as an XDP program. It forwards packets between two interfaces, and redirects a
// steered READ of a slot to the object that the slot leads to.
//
// It does the same as crates/switch/src/fusee.rs with `rounds: 0`, on RoCEv2 packets over IPv4.
// docs/decisions/0049-switches-that-nothing-rests-on.md says what a switch may change, and why no result depends on it;
// 0050-a-switch-on-the-wire.md says how packets are changed. A READ with the second RDMA key of a pool may be steered.
// The switch learns RDMA keys, bounds, MTU and the pairs of connected queue pairs from what sessions and memory nodes
// exchange over TCP before.
//
// XDP cannot hold packets back, so this switch does not order CASes.
//
// A packet that the switch cannot parse or knows nothing about is forwarded unchanged. Maps evict the entry that was
// unused for longest. Processors that handle packets at the same time may each read part of an entry that the other
// processor writes. Then the entry is wrong, which is allowed; but no READ leaves the pool, because the bounds are
// checked last.

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "icrc.h"
#include "packets.h"

// The most entries of each map.
#ifndef SLOTS
#define SLOTS 100000
#endif
enum {
	PORTS = 16,
	CONNECTIONS = 16384,
	WRITES = 65536, // 32 for each of 2,048 connections
	CASES = 16384,  // that are not answered yet
	READS = 65536,  // READs that asked to be steered, and may be repeated
};

// One end of a connection between queue pairs.
struct end {
	__be32 ip;
	__u32 queue_pair;
};

// A session's connection to a memory node, found by the node's end.
struct connection {
	struct end client;
	__u32 key;
	__u32 steered_key;
	// The bounds of the pool without its header, as the node's virtual addresses.
	__u64 first;
	__u64 last;
	__u64 mtu;
};

// The name of a TCP connection: the client's side first.
struct talk {
	__be32 ip[2];
	__be16 port[2];
};

struct slot {
	__be32 node;
	__u32 steered_key;
	__u64 address;
};

// An object on the node of its slot. If `bytes` is 0, the object is unknown.
struct object {
	__u64 address;
	__u64 bytes;
};

struct written {
	struct end node;
	__u64 identity;
};

struct request {
	struct end node;
	__u32 number;
	__u32 unused;
};

// A CAS that is not answered yet.
struct pending {
	struct slot slot;
	__u64 expected;
	// What the slot leads to if the CAS succeeds.
	struct object object;
};

// A READ that asked to be steered, and whose answer is one packet. The key of the entry includes the address, so a READ
// with a damaged number or address has an entry of its own, and does not change the entry of the READ with the same
// number.
struct asked {
	struct end node;
	__u32 number;
	__u32 key;
	__u64 address;
};

// The position of a READ in the pool relative to its position in the sequence of packets, as one number: its address
// less the bytes of all packets before its first one. This number is the same when the READ is continued from any later
// packet.
struct line {
	struct end node;
	__u64 start;
};

// The destination of packets: the index of an interface to that of the interface opposite.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct talk);
	__type(value, struct address);
} hellos SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct end);
	__type(value, struct connection);
} connections SEC(".maps");

// From the client's end of a connection to the node's.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct end);
	__type(value, struct end);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SLOTS);
	__type(key, struct slot);
	__type(value, struct object);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, WRITES);
	__type(key, struct written);
	__type(value, struct object);
} writes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CASES);
	__type(key, struct request);
	__type(value, struct pending);
} cases SEC(".maps");

// The addresses to which READs were sent.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READS);
	__type(key, struct asked);
	__type(value, __u64);
} decisions SEC(".maps");

// READs that asked to be steered and whose answers are several packets, by their position in the pool and in the
// sequence of packets: see `line`.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READS);
	__type(key, struct line);
	__type(value, __u32);
} lines SEC(".maps");

// The counters that `attach` prints, in this order.
enum counter {
	COUNT_SEEN,      // requests
	COUNT_ASKED,     // READs that asked to be steered
	COUNT_STEERED,   // READs that were steered
	COUNT_PAIRED,    // connections whose hello and welcome were seen
	COUNT_LEARNED,   // CASes after which the switch knew what the slot leads to
	COUNT_UNLEARNED, // CASes after which it did not know
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);
	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline __u64 big(const __be32 word[2])
{
	return (__u64)bpf_ntohl(word[0]) << 32 | bpf_ntohl(word[1]);
}

static __always_inline __u64 little(const __u32 word[2])
{
	return (__u64)word[1] << 32 | word[0];
}

static __always_inline __u32 low24(__be32 word)
{
	return bpf_ntohl(word) % NUMBERS;
}

// --- slot words: crates/core/src/layout/slot.rs ---

static __always_inline bool is_free(__u64 word)
{
	return (word >> 48 & 0x7f) == 0;
}

// The identity as in the header of the object.
static __always_inline __u64 identity(__u64 word)
{
	return word << 16 >> 17;
}

// --- messages over TCP ---

// Whether a GID is made of an IPv4 address.
static __always_inline bool has_ip(const struct address *address)
{
	return address->gid[0] == 0 && address->gid[1] == 0 && address->gid[2] == bpf_htonl(0xffff) &&
	       address->mtu >= 1 && address->mtu <= 5;
}

static __always_inline bool is_magic(const __u32 magic[2])
{
	return little(magic) == *(const __u64 *)MAGIC;
}

static __always_inline void hear_hello(const struct iphdr *ip, const struct tcphdr *tcp, const struct hello *hello)
{
	struct talk talk = { .ip = { ip->saddr, ip->daddr }, .port = { tcp->source, tcp->dest } };
	struct address address = hello->address;
	// Accepted only for the sender's own address, so that strangers cannot register other hosts.
	if (is_magic(hello->magic) && has_ip(&address) && address.gid[3] == ip->saddr)
		bpf_map_update_elem(&hellos, &talk, &address, BPF_ANY);
}

static __always_inline void hear_welcome(const struct iphdr *ip, const struct tcphdr *tcp,
					 const struct welcome *welcome)
{
	struct talk talk = { .ip = { ip->daddr, ip->saddr }, .port = { tcp->dest, tcp->source } };
	struct address node = welcome->address;
	if (!is_magic(welcome->magic) || welcome->status || !welcome->steered_key || !has_ip(&node) ||
	    node.gid[3] != ip->saddr)
		return;
	struct address *client = bpf_map_lookup_elem(&hellos, &talk);
	if (!client)
		return;
	__u8 mtu = client->mtu < node.mtu ? client->mtu : node.mtu;
	struct end at = { .ip = node.gid[3], .queue_pair = node.queue_pair };
	struct connection connection = {
		.client = { .ip = client->gid[3], .queue_pair = client->queue_pair },
		.key = welcome->key,
		.steered_key = welcome->steered_key,
		.first = little(welcome->base) + POOL_HEADER_BYTES,
		.last = little(welcome->base) + little(welcome->pool_bytes),
		.mtu = 128u << (mtu & 7),
	};
	bpf_map_delete_elem(&hellos, &talk);
	bpf_map_update_elem(&connections, &at, &connection, BPF_ANY);
	bpf_map_update_elem(&clients, &connection.client, &at, BPF_ANY);
	count(COUNT_PAIRED);
}

static __always_inline void hear(const struct iphdr *ip, const void *end)
{
	const struct tcphdr *tcp = (const void *)(ip + 1);
	if ((const void *)(tcp + 1) > end)
		return;
	__u32 header = tcp->doff * 4;
	__u32 bytes = bpf_ntohs(ip->tot_len) - sizeof(*ip) - header;
	const void *start = (const void *)tcp + header;
	if (bytes == sizeof(struct hello)) {
		if (start + sizeof(struct hello) <= end)
			hear_hello(ip, tcp, start);
	} else if (bytes == sizeof(struct welcome)) {
		if (start + sizeof(struct welcome) <= end)
			hear_welcome(ip, tcp, start);
	}
}

// --- requests ---

// Whether a READ is possibly the rest of a longer one. Packet numbers may have wrapped around to 0 in between.
static __always_inline bool is_rest(const struct request *request, __u64 mtu, __u64 address)
{
	struct line line = { request->node, address - request->number * mtu };
	struct line wrapped = { request->node, line.start - NUMBERS * mtu };
	return bpf_map_lookup_elem(&lines, &line) || bpf_map_lookup_elem(&lines, &wrapped);
}

// Whether the node lends these bytes. The node would refuse a READ of other bytes, and end the connection.
static __always_inline bool is_lent(const struct connection *connection, __u64 address, __u32 bytes)
{
	return address >= connection->first && address <= connection->last && bytes <= connection->last - address;
}

// The address that the slot leads to, if it is known. At the first such READ of a slot, the switch begins to track the
// slot.
static __always_inline __u64 leads_to(const struct request *request, const struct connection *connection,
				      __u64 address, __u32 bytes)
{
	struct slot slot = { request->node.ip, connection->steered_key, address };
	struct object *known = bpf_map_lookup_elem(&slots, &slot);
	if (!known) {
		struct object unknown = { 0, 0 };
		bpf_map_update_elem(&slots, &slot, &unknown, BPF_NOEXIST);
		return address;
	}
	struct object object = *known;
	if (bytes && bytes <= object.bytes && is_lent(connection, object.address, bytes))
		return object.address;
	return address;
}

// The address to which a READ of a slot is sent that asked to be steered.
//
// A client repeats a READ that is not answered, and a memory node accepts the repeated READ only if it is for the same
// bytes as the first one, or a part of them. Therefore a repeated READ is sent where the first one was sent. If the
// answer arrived in part, the client asks for the rest, with another number and address. Such a rest looks like a READ
// of another slot; so a READ whose answer is more than one packet is never steered, nor is its rest.
//
// A repeated READ may be damaged. The node drops it, and it must not change where the READ is sent. Whatever its length
// is then, its number and its address tell that it is the same READ.
static __always_inline __u64 steer(const struct request *request, const struct connection *connection,
				   __u64 address, __u32 bytes)
{
	if (bytes > connection->mtu) {
		struct line line = { request->node, address - request->number * connection->mtu };
		bpf_map_update_elem(&lines, &line, &bytes, BPF_ANY);
		return address;
	}
	struct asked asked = { request->node, request->number, connection->steered_key, address };
	__u64 *earlier = bpf_map_lookup_elem(&decisions, &asked);
	if (earlier)
		return is_lent(connection, *earlier, bytes) ? *earlier : address;
	__u64 went = address;
	if (!is_rest(request, connection->mtu, address))
		went = leads_to(request, connection, address, bytes);
	bpf_map_update_elem(&decisions, &asked, &went, BPF_ANY);
	return went;
}

static __always_inline void see_read(const struct request *request, const struct connection *connection,
				     struct read *read)
{
	if (bpf_ntohl(read->reth.key) != connection->steered_key)
		return;
	count(COUNT_ASKED);
	__u64 address = big(read->reth.address);
	__u64 to = steer(request, connection, address, bpf_ntohl(read->reth.bytes));
	if (to == address)
		return;
	read->reth.address[0] = bpf_htonl(to >> 32);
	read->reth.address[1] = bpf_htonl((__u32)to);
	read->icrc ^= icrc_change(address ^ to);
	count(COUNT_STEERED);
}

static __always_inline void see_write(const struct request *request, const struct connection *connection,
				      const struct write *write)
{
	if (bpf_ntohl(write->reth.key) != connection->key)
		return;
	struct written written = { request->node, little(write->identity) };
	struct object object = { big(write->reth.address), bpf_ntohl(write->reth.bytes) };
	bpf_map_update_elem(&writes, &written, &object, BPF_ANY);
}

// The effect of a CAS is known when the CAS is answered. Only slots that READs asked for are tracked: the others are on
// backups, or their keys are never doubted.
static __always_inline void see_cas(const struct request *request, const struct connection *connection,
				    const struct cas *cas)
{
	struct pending pending = {
		.slot = { request->node.ip, connection->steered_key, big(cas->address) },
		.expected = big(cas->expected),
	};
	if (bpf_ntohl(cas->key) != connection->key || !bpf_map_lookup_elem(&slots, &pending.slot))
		return;
	__u64 word = big(cas->swap);
	struct written written = { request->node, identity(word) };
	struct object *object = is_free(word) ? NULL : bpf_map_lookup_elem(&writes, &written);
	if (object)
		pending.object = *object;
	bpf_map_update_elem(&cases, request, &pending, BPF_ANY);
}

static __always_inline void see_atomic_ack(const struct iphdr *ip, const struct atomic_ack *ack)
{
	struct end client = { ip->daddr, low24(ack->bth.queue_pair) };
	struct end *node = bpf_map_lookup_elem(&clients, &client);
	if (!node)
		return;
	struct request request = { *node, low24(ack->bth.number), 0 };
	struct pending *found = bpf_map_lookup_elem(&cases, &request);
	if (!found)
		return;
	struct pending pending = *found;
	bpf_map_delete_elem(&cases, &request);
	if (pending.expected != big(ack->found))
		pending.object = (struct object){ 0, 0 };
	// Only if the slot is still tracked.
	if (bpf_map_update_elem(&slots, &pending.slot, &pending.object, BPF_EXIST) == 0)
		count(pending.object.bytes ? COUNT_LEARNED : COUNT_UNLEARNED);
}

// A packet of an RC queue pair, `bytes` long including its ICRC.
static __always_inline void see(const struct iphdr *ip, void *start, __u32 bytes, const void *end)
{
	struct bth *bth = start;
	if (bytes < sizeof(*bth) || (void *)(bth + 1) > end)
		return;
	if (bth->opcode == ATOMIC_ACK) {
		if (bytes == sizeof(struct atomic_ack) && start + sizeof(struct atomic_ack) <= end)
			see_atomic_ack(ip, start);
		return;
	}
	// Answers go to the client's end, by which no connection is found.
	struct request request = {
		.node = { ip->daddr, low24(bth->queue_pair) },
		.number = low24(bth->number),
	};
	struct connection *connection = bpf_map_lookup_elem(&connections, &request.node);
	if (!connection)
		return;
	switch (bth->opcode) {
	case READ:
		if (bytes == sizeof(struct read) && start + sizeof(struct read) <= end)
			see_read(&request, connection, start);
		break;
	case WRITE_FIRST:
	case WRITE_ONLY:
		if (bytes >= sizeof(struct write) + sizeof(__u32) && start + sizeof(struct write) <= end)
			see_write(&request, connection, start);
		break;
	case CAS:
		if (bytes == sizeof(struct cas) && start + sizeof(struct cas) <= end)
			see_cas(&request, connection, start);
		break;
	case WRITE_ONLY_IMMEDIATE:
	case FAA:
		break;
	default: // the middle of a WRITE, or an operation that FUSEE does not use
		return;
	}
	count(COUNT_SEEN);
}

static __always_inline void look(void *start, const void *end)
{
	struct ethhdr *ethernet = start;
	struct iphdr *ip = (void *)(ethernet + 1);
	if ((void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return;
	// Options and fragments are not expected: such packets are forwarded unread.
	if (ip->version != 4 || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
		return;
	if (ip->protocol == IPPROTO_TCP) {
		hear(ip, end);
		return;
	}
	struct udphdr *udp = (void *)(ip + 1);
	if (ip->protocol != IPPROTO_UDP || (void *)(udp + 1) > end || udp->dest != bpf_htons(ROCE_PORT))
		return;
	__u32 bytes = bpf_ntohs(udp->len);
	// RoCEv2 sends no UDP checksum, since its ICRC covers more. An existing checksum would be wrong after a change.
	if (udp->check || bytes < sizeof(*udp) || bytes + sizeof(*ip) != bpf_ntohs(ip->tot_len))
		return;
	see(ip, udp + 1, bytes - sizeof(*udp), end);
}

SEC("xdp")
int fusee_steer(struct xdp_md *ctx)
{
	look((void *)(long)ctx->data, (const void *)(long)ctx->data_end);
	// Packets from any other interface go to the kernel.
	return bpf_redirect_map(&ports, ctx->ingress_ifindex, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
