// Tests RDMA through a switch between rxe0 and rxe1 in the guest of tests/rdma (`run --switch`): READs are steered to
// the right addresses, the cards accept all of them, and no card accepts a damaged packet.
//
// usage: rdma_test logic           a sequence of operations, each with a check of its result
//        rdma_test packets         single packets that no card would send, checked behind the switch
//        rdma_test load N PERCENT  N rounds of two sessions; PERCENT or more of their steered READs must return
//                                  the object. All READs must succeed, also while the wire is disturbed.
//
// The memory node and its sessions are in this one process. They exchange a hello and a welcome as in
// crates/fabric/src/verbs/wire.rs, over TCP through the switch.

#include <arpa/inet.h>
#include <assert.h>
#include <infiniband/verbs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "roce.h"

enum {
	MTU_BYTES = 1024,
	ARENA_BYTES = 64 << 10,
	MOST_VERBS = 16, // the most verbs in a list
	POOL_BYTES = 1 << 20,
	INDEX = POOL_HEADER_BYTES, // the offset of the slots in the pool, in bytes
	OBJECTS = 64 << 10,
	TCP_PORT = 7500,
};

static const char *const NODE = "10.0.0.2", *const CLIENT = "10.0.0.1";

static void die(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("rdma_test: ", stdout);
	vprintf(format, arguments);
	puts("");
	va_end(arguments);
	exit(1);
}

#define TRY(call) ({ __auto_type tried = (call); if (!tried) die("%s: %m", #call); tried; })
#define ZERO(call) do { if ((call) != 0) die("%s: %m", #call); } while (0)

// --- devices and queue pairs ---

struct device {
	struct ibv_context *context;
	struct ibv_pd *domain;
	union ibv_gid gid;
};

static struct device card(const char *name)
{
	struct ibv_device **list = TRY(ibv_get_device_list(NULL));
	struct device device = { 0 };
	for (int i = 0; list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			device.context = TRY(ibv_open_device(list[i]));
	if (!device.context)
		die("no device %s", name);
	device.domain = TRY(ibv_alloc_pd(device.context));
	ZERO(ibv_query_gid(device.context, 1, 1, &device.gid));
	return device;
}

struct pair {
	struct ibv_qp *qp;
	struct ibv_cq *completions;
	uint32_t first_number;
};

static struct pair pair_on(const struct device *device)
{
	struct pair pair = { .first_number = (uint32_t)random() % NUMBERS };
	pair.completions = TRY(ibv_create_cq(device->context, 64, NULL, NULL, 0));
	struct ibv_qp_init_attr made = {
		.send_cq = pair.completions,
		.recv_cq = pair.completions,
		.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	pair.qp = TRY(ibv_create_qp(device->domain, &made));
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
	ZERO(ibv_modify_qp(pair.qp, &attributes,
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return pair;
}

static struct address address_of_pair(const struct pair *pair, const struct device *device)
{
	struct address address = {
		.queue_pair = pair->qp->qp_num,
		.first_number = pair->first_number,
		.mtu = IBV_MTU_1024,
		.depth = 16,
	};
	memcpy(address.gid, &device->gid, sizeof(address.gid));
	return address;
}

static void connect_pair(const struct pair *pair, const struct address *peer)
{
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->queue_pair,
		.rq_psn = peer->first_number,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } },
	};
	memcpy(&attributes.ah_attr.grh.dgid, peer->gid, sizeof(peer->gid));
	ZERO(ibv_modify_qp(pair->qp, &attributes,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attributes = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14, // 67 ms
		.retry_cnt = 7,
		.rnr_retry = 7,
		.sq_psn = pair->first_number,
		.max_rd_atomic = 16,
	};
	ZERO(ibv_modify_qp(pair->qp, &attributes,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC));
}

// --- a memory node, and sessions ---

struct node {
	struct device device;
	uint8_t *pool;
	uint32_t key, steered_key;
	int listener;
};

struct session {
	struct pair pair;
	struct node *node;
	uint8_t *arena;
	uint32_t arena_key;
	struct address at_node;
};

static uint32_t pool_key(const struct node *node)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_REMOTE_ATOMIC;
	return TRY(ibv_reg_mr(node->device.domain, node->pool + POOL_HEADER_BYTES, POOL_BYTES - POOL_HEADER_BYTES,
			      access))
		->rkey;
}

static struct sockaddr_in ip_address(const char *ip, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &address.sin_addr);
	return address;
}

static struct node start_node(void)
{
	struct node node = { .device = card("rxe1") };
	node.pool = TRY(aligned_alloc(4096, POOL_BYTES));
	for (size_t at = 0; at < POOL_BYTES; at++)
		node.pool[at] = (uint8_t)random();
	memset(node.pool + INDEX, 0, OBJECTS - INDEX);
	node.key = pool_key(&node);
	node.steered_key = pool_key(&node);
	node.listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = ip_address(NODE, TCP_PORT);
	int at_once = 1; // the port can be reused at once, although the kernel remembers an earlier run's connections
	ZERO(setsockopt(node.listener, SOL_SOCKET, SO_REUSEADDR, &at_once, sizeof(at_once)));
	ZERO(bind(node.listener, (struct sockaddr *)&address, sizeof(address)));
	ZERO(listen(node.listener, 8));
	return node;
}

static void give(int socket, const void *bytes, size_t count)
{
	if (send(socket, bytes, count, 0) != (ssize_t)count)
		die("send: %m");
}

static void take(int socket, void *bytes, size_t count)
{
	if (recv(socket, bytes, count, MSG_WAITALL) != (ssize_t)count)
		die("recv: %m");
}

static struct session attach(struct node *node, const struct device *device)
{
	struct session session = { .pair = pair_on(device), .node = node };
	session.arena = TRY(aligned_alloc(4096, ARENA_BYTES));
	session.arena_key =
		TRY(ibv_reg_mr(device->domain, session.arena, ARENA_BYTES, IBV_ACCESS_LOCAL_WRITE))->lkey;
	// The session's part.
	int there = socket(AF_INET, SOCK_STREAM, 0), here;
	struct sockaddr_in from = ip_address(CLIENT, 0), to = ip_address(NODE, TCP_PORT);
	ZERO(bind(there, (struct sockaddr *)&from, sizeof(from)));
	ZERO(connect(there, (struct sockaddr *)&to, sizeof(to)));
	struct hello hello = { .address = address_of_pair(&session.pair, device) };
	memcpy(hello.magic, MAGIC, sizeof(hello.magic));
	give(there, &hello, sizeof(hello));
	// The node's part.
	here = accept(node->listener, NULL, NULL);
	take(here, &hello, sizeof(hello));
	struct pair at_node = pair_on(&node->device);
	connect_pair(&at_node, &hello.address);
	uint64_t base = (uintptr_t)node->pool;
	struct welcome welcome = {
		.pool_bytes = { POOL_BYTES },
		.key = node->key,
		.steered_key = node->steered_key,
		.base = { (uint32_t)base, base >> 32 },
		.address = address_of_pair(&at_node, &node->device),
	};
	memcpy(welcome.magic, MAGIC, sizeof(welcome.magic));
	give(here, &welcome, sizeof(welcome));
	// The session's part again.
	take(there, &welcome, sizeof(welcome));
	connect_pair(&session.pair, &welcome.address);
	session.at_node = welcome.address;
	return session;
}

// --- verbs ---

static uint64_t there(const struct session *session, uint64_t offset)
{
	return (uintptr_t)session->node->pool + offset;
}

static uint8_t *place_of(const struct session *session, int verb)
{
	return session->arena + (size_t)verb * (ARENA_BYTES / MOST_VERBS);
}

// Returns a hardware counter of a card.
static uint64_t counted(const char *device, const char *counter)
{
	char path[128];
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/%s", device, counter);
	FILE *file = TRY(fopen(path, "r"));
	unsigned long long count;
	assert(fscanf(file, "%llu", &count) == 1);
	fclose(file);
	return count;
}

static uint64_t received(void)
{
	return counted("rxe1", "rcvd_pkts");
}

// Dies with counters that tell which card fails: one repeats its request in vain, or the other one is silent.
static void does_not_complete(void)
{
	uint64_t sent = counted("rxe0", "sent_pkts"), asked = received(), answered = counted("rxe1", "sent_pkts");
	uint64_t again = counted("rxe1", "duplicate_request");
	sleep(2);
	die("a verb does not complete: in 2 s the session's card sends %llu packets, the node's takes %llu of them, "
	    "%llu as repeated ones, and sends %llu",
	    (long long)(counted("rxe0", "sent_pkts") - sent), (long long)(received() - asked),
	    (long long)(counted("rxe1", "duplicate_request") - again),
	    (long long)(counted("rxe1", "sent_pkts") - answered));
}

// Posts verbs as one list, and waits until the last one completes. Each verb has a part of the arena.
static void post_all(struct session *session, struct ibv_send_wr *work, const uint32_t *bytes, int count)
{
	struct ibv_sge pieces[MOST_VERBS];
	struct ibv_send_wr *bad;
	for (int i = 0; i < count; i++) {
		pieces[i] = (struct ibv_sge){ (uintptr_t)place_of(session, i), bytes[i], session->arena_key };
		work[i].sg_list = &pieces[i];
		work[i].num_sge = 1;
		work[i].send_flags = i + 1 == count ? IBV_SEND_SIGNALED : 0;
		work[i].next = i + 1 == count ? NULL : &work[i + 1];
	}
	ZERO(ibv_post_send(session->pair.qp, work, &bad));
	struct ibv_wc done;
	time_t end = time(NULL) + 30;
	int found;
	while ((found = ibv_poll_cq(session->pair.completions, 1, &done)) == 0)
		if (time(NULL) > end)
			does_not_complete();
	if (found < 0 || done.status != IBV_WC_SUCCESS)
		die("a verb failed: %s", ibv_wc_status_str(done.status));
}

static void post(struct session *session, struct ibv_send_wr *work, uint32_t bytes)
{
	post_all(session, work, &bytes, 1);
}

static struct ibv_send_wr read_of(const struct session *session, uint32_t key, uint64_t offset)
{
	struct ibv_send_wr work = { .opcode = IBV_WR_RDMA_READ };
	work.wr.rdma.remote_addr = there(session, offset);
	work.wr.rdma.rkey = key;
	return work;
}

static const uint8_t *rdma_read(struct session *session, uint32_t key, uint64_t offset, uint32_t bytes)
{
	struct ibv_send_wr work = read_of(session, key, offset);
	memset(session->arena, 0xee, bytes);
	post(session, &work, bytes);
	return session->arena;
}

static const uint8_t *rdma_steered(struct session *session, uint64_t slot, uint32_t bytes)
{
	return rdma_read(session, session->node->steered_key, slot, bytes);
}

static uint64_t rdma_cas(struct session *session, uint64_t slot, uint64_t expected, uint64_t swap)
{
	struct ibv_send_wr work = { .opcode = IBV_WR_ATOMIC_CMP_AND_SWP };
	work.wr.atomic.remote_addr = there(session, slot);
	work.wr.atomic.rkey = session->node->key;
	work.wr.atomic.compare_add = expected;
	work.wr.atomic.swap = swap;
	post(session, &work, 8);
	uint64_t found;
	memcpy(&found, session->arena, 8);
	return found;
}

struct written {
	uint64_t word;
	uint64_t offset;
	uint32_t bytes;
};

static uint64_t identity_of(uint64_t number)
{
	return number << 9 | number % 512;
}

// A slot word of a fingerprint, a size class and an identity: crates/core/src/layout/slot.rs.
static uint64_t word_of(uint64_t number)
{
	return 0xabull << 56 | 5ull << 48 | identity_of(number) << 1;
}

// Writes an object at an offset in the pool.
static struct written rdma_write(struct session *session, uint64_t number, uint64_t offset, uint32_t bytes)
{
	uint64_t identity = identity_of(number);
	for (uint32_t at = 0; at < bytes; at++)
		session->arena[at] = (uint8_t)(number * 31 + at);
	memcpy(session->arena + 16, &identity, 8);
	struct ibv_send_wr work = { .opcode = IBV_WR_RDMA_WRITE };
	work.wr.rdma.remote_addr = there(session, offset);
	work.wr.rdma.rkey = session->node->key;
	post(session, &work, bytes);
	return (struct written){ word_of(number), offset, bytes };
}

static void put(struct session *session, uint64_t slot, uint64_t expected, uint64_t word)
{
	uint64_t found = rdma_cas(session, slot, expected, word);
	if (found != expected)
		die("the slot has %llx, not %llx", (long long)found, (long long)expected);
}

// --- assertions ---

static int steps;

static void step(const char *what)
{
	steps++;
	printf("ok: %s\n", what);
}

static void brings(struct session *session, const uint8_t *got, uint64_t offset, uint32_t bytes, const char *what)
{
	if (memcmp(got, session->node->pool + offset, bytes) != 0)
		die("FAILED: %s", what);
	step(what);
}

static void logic(struct session *a, struct session *b)
{
	uint64_t slot = INDEX + 64, other = INDEX + 512;
	uint64_t place = OBJECTS;
	brings(a, rdma_steered(a, slot, 64), slot, 64, "an unknown slot: bytes of the index");

	struct written one = rdma_write(a, 1, place, 256);
	put(a, slot, 0, one.word);
	brings(a, rdma_steered(a, slot, 256), one.offset, 256, "the writer is steered to its object");
	brings(b, rdma_steered(b, slot, 256), one.offset, 256, "and so is another session");
	brings(a, rdma_steered(a, slot, 64), one.offset, 64, "to the start of it");
	brings(a, rdma_steered(a, slot, 257), slot, 257, "not beyond what was written");
	brings(a, rdma_read(a, a->node->key, slot, 64), slot, 64, "a READ that does not ask is not steered");

	struct written two = rdma_write(b, 2, place += 4096, 128);
	put(b, slot, one.word, two.word);
	brings(a, rdma_steered(a, slot, 128), two.offset, 128, "the object of another session's update");

	struct written three = rdma_write(a, 3, place += 4096, 128);
	if (rdma_cas(a, slot, one.word, three.word) != two.word)
		die("that CAS should have failed");
	brings(a, rdma_steered(a, slot, 128), slot, 128, "a CAS that lost: what is there is not known any more");
	put(a, slot, two.word, three.word);
	brings(b, rdma_steered(b, slot, 128), three.offset, 128, "until one wins");

	struct written four = rdma_write(b, 4, place += 4096, 128);
	put(a, slot, three.word, four.word);
	brings(b, rdma_steered(b, slot, 128), slot, 128, "a word of another connection's object is not known");

	struct written five = rdma_write(a, 5, place += 4096, 128);
	put(a, slot, four.word, five.word);
	brings(b, rdma_steered(b, slot, 128), five.offset, 128, "one of the same connection's is");
	uint64_t freed = five.word & ((1ull << 48) - 1);
	put(a, slot, five.word, freed);
	brings(b, rdma_steered(b, slot, 128), slot, 128, "a free slot leads nowhere");

	struct written six = rdma_write(a, 6, place += 4096, MTU_BYTES + 900);
	put(a, slot, freed, six.word);
	brings(a, rdma_steered(a, slot, MTU_BYTES), six.offset, MTU_BYTES, "an object of two packets: its first");
	brings(a, rdma_steered(a, slot, MTU_BYTES + 900), slot, MTU_BYTES + 900, "a READ of two packets is not steered");

	struct written seven = rdma_write(a, 7, place += 4096, 128);
	put(a, other, 0, seven.word);
	brings(a, rdma_steered(a, other, 128), other, 128, "a slot that nobody asked for was not looked at");
	brings(a, rdma_steered(a, slot, 128), six.offset, 128, "and took nothing from another one");
}

// --- single packets ---

struct wire {
	int in, out;
	struct frame frame; // the headers that all frames begin with
	uint16_t count;
};

static int packets_of(const char *interface)
{
	int raw = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_IP));
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_IP),
		.sll_ifindex = (int)if_nametoindex(interface),
	};
	struct timeval patience = { 5, 0 };
	if (raw < 0 || bind(raw, (struct sockaddr *)&address, sizeof(address)) != 0)
		die("packets of %s: %m", interface);
	ZERO(setsockopt(raw, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
	return raw;
}

static void hardware_address(const char *interface, uint8_t *to)
{
	char path[64];
	snprintf(path, sizeof(path), "/sys/class/net/%s/address", interface);
	FILE *file = TRY(fopen(path, "r"));
	if (fscanf(file, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", to, to + 1, to + 2, to + 3, to + 4, to + 5) != 6)
		die("%s is not understood", path);
	fclose(file);
}

static struct wire open_wire(const struct session *session)
{
	struct wire wire = { .out = packets_of("wire0"), .in = packets_of("wire1") };
	struct frame *frame = &wire.frame;
	hardware_address("wire1", frame->ethernet.h_dest);
	hardware_address("wire0", frame->ethernet.h_source);
	frame->ethernet.h_proto = htons(ETH_P_IP);
	frame->ip = (struct iphdr){ .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP };
	frame->ip.tot_len = htons(sizeof(*frame) - sizeof(frame->ethernet));
	frame->ip.saddr = inet_addr(CLIENT);
	frame->ip.daddr = inet_addr(NODE);
	frame->udp.source = htons(50000);
	frame->udp.dest = htons(ROCE_PORT);
	frame->udp.len = htons(sizeof(frame->udp) + sizeof(frame->read));
	frame->read.bth.opcode = READ;
	frame->read.bth.partition = 0xffff;
	frame->read.bth.queue_pair = htonl(session->at_node.queue_pair);
	return wire;
}

// An undamaged steered READ with an identification of its own in the IP header.
static struct frame request(struct wire *wire, const struct session *session, uint32_t number, uint64_t offset,
			    uint32_t bytes)
{
	struct frame frame = wire->frame;
	frame.ip.id = htons(++wire->count);
	frame.read.bth.number = htonl(number % NUMBERS);
	frame.read.reth.key = htonl(session->node->steered_key);
	frame.read.reth.bytes = htonl(bytes);
	set_address(&frame, there(session, offset));
	frame.read.icrc = icrc_of(&frame);
	return frame;
}

// Sends bytes that begin like a frame by wire0, and waits until they come out at wire1.
static void pass(struct wire *wire, void *bytes, size_t count)
{
	struct frame *frame = bytes, *found;
	uint8_t *header = (uint8_t *)&frame->ip;
	static uint8_t buffer[2048];
	uint32_t sum = 0;
	frame->ip.check = 0;
	for (size_t at = 0; at < sizeof(frame->ip); at += 2)
		sum += (uint32_t)header[at] << 8 | header[at + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	frame->ip.check = htons((uint16_t)~(sum + (sum >> 16)));
	give(wire->out, bytes, count);
	for (;;) {
		struct sockaddr_ll from;
		socklen_t length = sizeof(from);
		ssize_t got = recvfrom(wire->in, buffer, sizeof(buffer), 0, (struct sockaddr *)&from, &length);
		if (got < 0)
			die("a packet does not come out of the switch");
		found = (struct frame *)buffer;
		if (from.sll_pkttype != PACKET_OUTGOING && got == (ssize_t)count && found->ip.id == frame->ip.id &&
		    found->ip.saddr == frame->ip.saddr)
			break;
	}
	memcpy(bytes, buffer, count);
}

// Returns a frame as it comes out of the switch.
static struct frame passed(struct wire *wire, struct frame frame)
{
	pass(wire, &frame, sizeof(frame));
	return frame;
}

// Sends a WRITE with the identity of an object to any address. Its ICRC is wrong, and its number is that of the
// connection's first request, so that neither the card nor the switch treats it as a new request.
static void write_damaged(struct wire *wire, const struct session *session, uint64_t number, uint64_t address)
{
	struct {
		struct ethhdr ethernet;
		struct iphdr ip;
		struct udphdr udp;
		struct write write;
		uint32_t icrc;
	} __attribute__((packed)) frame = { .icrc = 0 };
	uint64_t identity = identity_of(number);
	memcpy(&frame, &wire->frame, sizeof(wire->frame) - sizeof(wire->frame.read));
	frame.ip.id = htons(++wire->count);
	frame.ip.tot_len = htons(sizeof(frame) - sizeof(frame.ethernet));
	frame.udp.len = htons(sizeof(frame.udp) + sizeof(frame.write) + sizeof(frame.icrc));
	frame.write.bth.opcode = WRITE_ONLY;
	frame.write.bth.partition = 0xffff;
	frame.write.bth.queue_pair = htonl(session->at_node.queue_pair);
	frame.write.bth.number = htonl(session->pair.first_number);
	frame.write.reth.address[0] = htonl(address >> 32);
	frame.write.reth.address[1] = htonl((uint32_t)address);
	frame.write.reth.key = htonl(session->node->key);
	frame.write.reth.bytes = htonl(256);
	memcpy(frame.write.identity, &identity, sizeof(identity));
	pass(wire, &frame, sizeof(frame));
}

static void goes(const struct session *session, const struct frame *frame, uint64_t offset, const char *what)
{
	if (address_of(frame) != there(session, offset))
		die("FAILED: %s: it goes to %lld", what,
		    (long long)(address_of(frame) - (uintptr_t)session->node->pool));
	if (damage(frame) != 0)
		die("FAILED: %s: the ICRC is wrong by %08x", what, damage(frame));
	step(what);
}

// Returns the number of packets that the card has accepted, after time for the last ones.
static uint64_t settled(void)
{
	usleep(50000);
	return received();
}

// Repeats a READ that has passed, with each of its bits changed in turn. The node's card accepts none of these.
static void damaged(struct wire *wire, const struct session *session, uint32_t number, uint64_t slot)
{
	size_t first = offsetof(struct frame, read) * 8;
	size_t reserved = offsetof(struct frame, read.bth.queue_pair) * 8;
	int steered = 0, bits = 0;
	uint64_t before = settled();
	for (size_t bit = first; bit < sizeof(struct frame) * 8; bit++) {
		// The ICRC does not cover these eight bits, because switches mark congestion there.
		if (bit >= reserved && bit < reserved + 8)
			continue;
		struct frame frame = request(wire, session, number, slot, 64);
		((uint8_t *)&frame)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		uint32_t wrong = damage(&frame);
		struct frame got = passed(wire, frame);
		if (wrong == 0 || damage(&got) != wrong)
			die("FAILED: bit %zu: wrong by %08x, then by %08x", bit - first, wrong, damage(&got));
		steered += address_of(&got) != address_of(&frame);
		bits++;
	}
	uint64_t taken = settled() - before;
	printf("%d damaged READs, %d of them steered; the card took %llu\n", bits, steered, (long long)taken);
	if (taken != 0)
		die("FAILED: the card took damaged packets");
	if (steered < 32)
		die("FAILED: those with a wrong ICRC are to be steered as well");
	step("damage of each bit stays what it is, and the card drops it");
}

// What the switch learns from a damaged WRITE steers no READ out of the pool: the node would refuse such a READ, and
// end the connection.
static void lies(struct wire *wire, struct session *session)
{
	uint64_t slot = INDEX + 192, last = 0;
	const int64_t nowhere[] = { POOL_BYTES, POOL_BYTES - 63, 2 * POOL_BYTES, -64, 0, POOL_HEADER_BYTES - 1 };
	rdma_steered(session, slot, 64);
	for (uint64_t i = 0; i < sizeof(nowhere) / sizeof(*nowhere); i++) {
		write_damaged(wire, session, 100 + i, there(session, (uint64_t)nowhere[i]));
		put(session, slot, last, word_of(100 + i));
		last = word_of(100 + i);
		if (memcmp(rdma_steered(session, slot, 64), session->node->pool + slot, 64) != 0)
			die("FAILED: it was steered to %lld", (long long)nowhere[i]);
	}
	write_damaged(wire, session, 200, there(session, OBJECTS + 64));
	put(session, slot, last, word_of(200));
	brings(session, rdma_steered(session, slot, 64), OBJECTS + 64, 64, "lies of the switch stay in the pool");
}

static void packets(struct session *a, struct session *raw)
{
	struct wire wire = open_wire(raw);
	uint64_t slot = INDEX + 64, unknown = INDEX + 128, last = INDEX + 256, behind = slot + MTU_BYTES;
	uint32_t number = raw->pair.first_number;
	uint64_t before = settled();
	struct frame got;

	lies(&wire, a);
	rdma_steered(a, slot, 64);
	rdma_steered(a, behind, 64);
	rdma_steered(a, last, 64);
	struct written one = rdma_write(a, 1, OBJECTS, 256), two = rdma_write(a, 2, OBJECTS + 4096, 256);
	struct written three = rdma_write(a, 3, OBJECTS + 8192, 256), four = rdma_write(a, 4, OBJECTS + 12288, MTU_BYTES);
	put(a, slot, 0, one.word);
	put(a, behind, 0, four.word);
	struct written end = rdma_write(a, 5, POOL_BYTES - 64, 64);
	put(a, last, 0, end.word);
	got = passed(&wire, request(&wire, raw, number, slot, 64));
	goes(raw, &got, one.offset, "a READ is steered, and its ICRC is right");
	put(a, slot, one.word, two.word);
	got = passed(&wire, request(&wire, raw, number, slot, 64));
	goes(raw, &got, one.offset, "the same one again goes where it went");
	got = passed(&wire, request(&wire, raw, ++number, slot, 64));
	goes(raw, &got, two.offset, "the next one to where the slot leads now");
	struct frame odd = request(&wire, raw, number, slot, 64);
	odd.read.reth.bytes ^= htonl(2 * MTU_BYTES);
	got = passed(&wire, odd);
	if (address_of(&got) != there(raw, slot))
		die("FAILED: one that has become two packets long is steered");
	got = passed(&wire, request(&wire, raw, number, slot, 64));
	goes(raw, &got, two.offset, "one goes where it went, although its length was damaged when it was repeated");
	odd = request(&wire, raw, number, slot, 64);
	set_address(&odd, there(raw, slot) ^ 1 << 12);
	passed(&wire, odd);
	put(a, slot, two.word, one.word);
	got = passed(&wire, request(&wire, raw, number, slot, 64));
	goes(raw, &got, two.offset, "and although its address was");
	put(a, slot, one.word, two.word);
	got = passed(&wire, request(&wire, raw, ++number, last, 64));
	goes(raw, &got, end.offset, "one to the last bytes of the pool");
	got = passed(&wire, request(&wire, raw, number, last, 128));
	goes(raw, &got, last, "and if it is longer when it is repeated, not beyond them");

	got = passed(&wire, request(&wire, raw, ++number, unknown, 64));
	goes(raw, &got, unknown, "one of an unknown slot goes there");
	put(a, unknown, 0, three.word);
	got = passed(&wire, request(&wire, raw, number, unknown, 64));
	goes(raw, &got, unknown, "and there again when the slot is known");
	got = passed(&wire, request(&wire, raw, ++number, unknown, 64));
	goes(raw, &got, three.offset, "the next one is steered");

	got = passed(&wire, request(&wire, raw, ++number, slot, 2 * MTU_BYTES));
	goes(raw, &got, slot, "a READ of two packets is not steered");
	got = passed(&wire, request(&wire, raw, ++number, behind, MTU_BYTES));
	goes(raw, &got, behind, "nor is the rest of it");
	got = passed(&wire, request(&wire, raw, ++number, behind, 64));
	goes(raw, &got, four.offset, "a READ of the slot that lies there is");
	got = passed(&wire, request(&wire, raw, NUMBERS - 1, slot, 2 * MTU_BYTES));
	got = passed(&wire, request(&wire, raw, 0, behind, MTU_BYTES));
	goes(raw, &got, behind, "the rest of one is not steered either, where numbers start again");

	odd = request(&wire, raw, ++number, slot, 64);
	odd.udp.check = htons(1);
	got = passed(&wire, odd);
	goes(raw, &got, slot, "a packet with an UDP checksum is not touched");
	odd = request(&wire, raw, number, slot, 64);
	odd.read.reth.key = htonl(raw->node->key);
	odd.read.icrc = icrc_of(&odd);
	got = passed(&wire, odd);
	goes(raw, &got, slot, "one that does not ask is not steered");

	uint64_t taken = settled() - before;
	printf("the card took %llu packets\n", (long long)taken);

	odd = request(&wire, raw, ++number, slot, 64);
	odd.read.icrc ^= htonl(1);
	got = passed(&wire, odd);
	if (address_of(&got) != there(raw, two.offset) || damage(&got) != htonl(1))
		die("FAILED: a READ with a wrong ICRC: wrong by %08x", damage(&got));
	step("a READ with a wrong ICRC is steered, and its ICRC is wrong as it was");
	if (settled() - before != taken)
		die("FAILED: the card took it");
	step("the card does not take it");
	got = passed(&wire, request(&wire, raw, number, slot, 64));
	goes(raw, &got, two.offset, "the same one, whole, is steered");
	if (settled() - before != taken + 1)
		die("FAILED: the card does not take it");
	step("and the card takes it");

	damaged(&wire, raw, number, slot);
	before = settled();
	got = passed(&wire, request(&wire, raw, ++number, slot, 64));
	goes(raw, &got, two.offset, "a whole READ after them is steered");
	if (settled() != before + 1)
		die("FAILED: the card does not take it");
	step("and the card takes it");
}

// --- load ---

// Does what sessions do, for several keys at once: a READ of a slot, followed by a READ that may be steered to the
// object that the slot leads to. The object is used only if it has the identity of the word.
static int look_up(struct session *session, const uint64_t *offsets, const uint64_t *slots, int keys, uint32_t size)
{
	struct ibv_send_wr work[MOST_VERBS];
	uint32_t bytes[MOST_VERBS];
	int brought = 0;
	for (int i = 0; i < keys; i++) {
		uint64_t slot = INDEX + slots[i] * 64;
		work[2 * i] = read_of(session, session->node->key, slot);
		work[2 * i + 1] = read_of(session, session->node->steered_key, slot);
		bytes[2 * i] = 8;
		bytes[2 * i + 1] = size;
	}
	memset(session->arena, 0xee, ARENA_BYTES);
	post_all(session, work, bytes, 2 * keys);
	for (int i = 0; i < keys; i++) {
		const uint8_t *slot = session->node->pool + INDEX + slots[i] * 64, *got = place_of(session, 2 * i + 1);
		uint64_t word, identity;
		memcpy(&word, place_of(session, 2 * i), 8);
		memcpy(&identity, got + 16, 8);
		if (memcmp(&word, slot, 8) != 0)
			die("FAILED: a READ of a slot brought %llx", (long long)word);
		if (word && identity == word << 16 >> 17) {
			if (memcmp(got, session->node->pool + offsets[slots[i]], size) != 0)
				die("FAILED: an object that is none");
			brought++;
		} else if (memcmp(got, slot, size) != 0 && identity >= identity_of(1 << 20)) {
			die("FAILED: neither an object, older perhaps, nor the slot");
		}
	}
	return brought;
}

static void load(struct session *sessions, int rounds, int percent)
{
	enum { SLOTS = 8, PLACES = 64, BYTES = 320, KEYS = 4 };
	uint64_t words[SLOTS] = { 0 }, offsets[SLOTS] = { 0 };
	int brought = 0;
	for (int round = 0; round < rounds; round++) {
		struct session *writer = &sessions[random() % 2], *reader = &sessions[random() % 2];
		int at = (int)(random() % SLOTS);
		// An object is written only once: the object that was at this address was replaced long ago.
		uint64_t place = OBJECTS + (uint64_t)(round % PLACES) * 1024, slots[KEYS];
		struct written object = rdma_write(writer, (uint64_t)round + 1, place, BYTES);
		put(writer, INDEX + (uint64_t)at * 64, words[at], object.word);
		words[at] = object.word;
		offsets[at] = object.offset;
		for (int i = 0; i < KEYS; i++)
			slots[i] = (uint64_t)(random() % SLOTS);
		brought += look_up(reader, offsets, slots, KEYS, BYTES);
	}
	printf("load: %d rounds, %d steered READs, %d brought the object\n", rounds, rounds * KEYS, brought);
	if (brought * 100 < rounds * KEYS * percent)
		die("FAILED: less than %d %% brought it", percent);
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";
	setvbuf(stdout, NULL, _IOLBF, 0);
	srandom(7);
	struct node node = start_node();
	struct device device = card("rxe0");
	struct session sessions[2] = { attach(&node, &device), attach(&node, &device) };
	if (strcmp(what, "logic") == 0)
		logic(&sessions[0], &sessions[1]);
	else if (strcmp(what, "packets") == 0)
		packets(&sessions[0], &sessions[1]);
	else if (strcmp(what, "load") == 0 && count == 4)
		load(sessions, atoi(arguments[2]), atoi(arguments[3]));
	else
		die("see the head of rdma_test.c");
	printf("rdma_test %s: well\n", what);
	return 0;
}
