// A switch for FUSEE's own store, as an XDP program: it carries packets between two interfaces, and has
// steered READs go to where the object lies that their slot leads to.
//
// It does what crates/switch/src/fusee.rs does with `rounds: 0`, on RoCEv2 packets over IPv4. What may be
// changed, and why nothing rests on it, is in docs/decisions/0049-switches-that-nothing-rests-on.md, and how
// that is done to packets in 0050-a-switch-on-the-wire.md. A READ under the second key of a pool is one that
// may be steered. Keys, bounds and MTU, and which two queue pairs belong together, are told by what sessions
// and memory nodes say to each other over TCP before.
//
// What it does not do: it holds no packet, since XDP cannot; so it puts no CASes in order.
//
// Whatever it cannot read, or does not know, it carries on as it is. Maps forget what was not used for
// longest. Processors that handle packets at once may each see a part of what the other writes: then what is
// known is wrong, which is allowed, but never outside of the pool, which is looked at last.

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

// How much it knows at most.
#ifndef SLOTS
#define SLOTS 100000
#endif
enum {
	PORTS = 16,
	CONNECTIONS = 16384,
	WRITES = 65536, // 32 times 2,048 connections
	CASES = 16384,  // without an answer
	READS = 65536,  // READs that asked, and may be repeated
};

// The end of a connection between queue pairs.
struct end {
	__be32 ip;
	__u32 queue_pair;
};

// A session's way to a memory node, found by the node's end.
struct connection {
	struct end client;
	__u32 key;
	__u32 steered_key;
	// Of the pool, without its header, as the node counts.
	__u64 first;
	__u64 last;
	__u64 mtu;
};

// Of a TCP connection, the client's side first.
struct talk {
	__be32 ip[2];
	__be16 port[2];
};

struct slot {
	__be32 node;
	__u32 steered_key;
	__u64 address;
};

// An object on the node of its slot; no bytes: it is not known.
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

// A CAS that was not answered.
struct pending {
	struct slot slot;
	__u64 expected;
	// What the slot leads to if it finds that.
	struct object object;
};

// A READ that asked, and has one packet for an answer. Its address is a part of its name: one whose number or
// address was damaged is another one, and takes nothing from that of which it has the number.
struct asked {
	struct end node;
	__u32 number;
	__u32 key;
	__u64 address;
};

// Where a READ is in the pool and in the order of packets, in one number: its address, less the bytes of all
// packets before its first one. The rest of a READ, from any of its packets on, has the same.
struct line {
	struct end node;
	__u64 start;
};

// Which port leads where: an interface's number to that of the one opposite.
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

// From the client's end to the node's.
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

// Where READs went.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READS);
	__type(key, struct asked);
	__type(value, __u64);
} decisions SEC(".maps");

// READs that asked and have several packets for an answer, by where they are in the pool and in the order of
// packets: see `line`.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, READS);
	__type(key, struct line);
	__type(value, __u32);
} lines SEC(".maps");

// What `attach` prints, in this order.
enum counter {
	COUNT_SEEN,      // requests
	COUNT_ASKED,     // READs that asked to be steered
	COUNT_STEERED,   // and were
	COUNT_PAIRED,    // connections it was told of
	COUNT_LEARNED,   // CASes after which it knew what the slot leads to
	COUNT_UNLEARNED, // and those after which it did not
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

// --- words of the index: crates/core/src/layout/slot.rs ---

static __always_inline bool is_free(__u64 word)
{
	return (word >> 48 & 0x7f) == 0;
}

// As the header of the object shows it.
static __always_inline __u64 identity(__u64 word)
{
	return word << 16 >> 17;
}

// --- what is said over TCP ---

// The IPv4 address that a GID is made of.
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
	// Who speaks of itself: strangers say nothing of others.
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

// Whether it may be the rest of a longer READ. Numbers may have started again from 0 in between.
static __always_inline bool is_rest(const struct request *request, __u64 mtu, __u64 address)
{
	struct line line = { request->node, address - request->number * mtu };
	struct line wrapped = { request->node, line.start - NUMBERS * mtu };
	return bpf_map_lookup_elem(&lines, &line) || bpf_map_lookup_elem(&lines, &wrapped);
}

// Whether the node lends these bytes. It would refuse others, and end the connection.
static __always_inline bool is_lent(const struct connection *connection, __u64 address, __u32 bytes)
{
	return address >= connection->first && address <= connection->last && bytes <= connection->last - address;
}

// Where the slot leads to, if that is known. The first time that this is asked, the slot becomes one that is
// looked at.
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

// Where a READ goes that asks for what the slot leads to.
//
// A client repeats what is not answered, and a memory node takes a READ that it has had before only if it is
// about the same bytes, or a part of them. So one that is repeated goes where it went. If it was answered in
// part, the client asks for the rest, with a number and an address of its own: so what has more than one packet
// for an answer is never steered, nor is the rest of it, which looks like a READ of another slot.
//
// One may be damaged when it is repeated: the node drops it, and it must not change where the READ goes. Whatever
// length it has then, it is the same READ: its number and its address say so.
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

// What a CAS changes is known when it is answered. Only slots that READs asked for are looked at: the others
// are on backups, or of keys that nobody doubts.
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
	// If it is still there.
	if (bpf_map_update_elem(&slots, &pending.slot, &pending.object, BPF_EXIST) == 0)
		count(pending.object.bytes ? COUNT_LEARNED : COUNT_UNLEARNED);
}

// A packet of an RC queue pair of `bytes`, with its ICRC.
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
	// Answers go to the other end, which no connection is found by.
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
	default: // the middle of a WRITE, or nothing that FUSEE sends
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
	// Options and fragments are not expected, and nothing is found where they are.
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
	// RoCEv2 has no UDP checksum, since its ICRC covers more. One that is there would be wrong afterwards.
	if (udp->check || bytes < sizeof(*udp) || bytes + sizeof(*ip) != bpf_ntohs(ip->tot_len))
		return;
	see(ip, udp + 1, bytes - sizeof(*udp), end);
}

SEC("xdp")
int fusee_steer(struct xdp_md *ctx)
{
	look((void *)(long)ctx->data, (const void *)(long)ctx->data_end);
	// What came in by no port of ours is the kernel's.
	return bpf_redirect_map(&ports, ctx->ingress_ifindex, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
