// The parts of packets that the switch reads, as on the wire. All fields have at most four bytes: behind an Ethernet
// header the alignment is only two bytes, and words of four can be loaded there nevertheless.

#ifndef FUSEE_XDP_PACKETS_H
#define FUSEE_XDP_PACKETS_H

#include <linux/types.h>

// --- RoCEv2: RC packets behind a UDP header. Numbers are big-endian except for the ICRC. ---

enum { ROCE_PORT = 4791 };

enum opcode {
	WRITE_FIRST = 0x06,
	WRITE_ONLY = 0x0a,
	WRITE_ONLY_IMMEDIATE = 0x0b,
	READ = 0x0c,
	ATOMIC_ACK = 0x12,
	CAS = 0x13,
	FAA = 0x14,
};

struct bth {
	__u8 opcode;
	__u8 flags;
	__be16 partition;
	__be32 queue_pair; // 24 bits, after 8 reserved ones
	__be32 number;     // 24 bits, after 8 others
};

enum { NUMBERS = 1 << 24 };

struct reth {
	__be32 address[2];
	__be32 key;
	__be32 bytes;
};

struct read {
	struct bth bth;
	struct reth reth;
	__u32 icrc; // little-endian, like the bytes of an object
};

// A WRITE that begins with the header of an object.
struct write {
	struct bth bth;
	struct reth reth;
	__u32 header[4];
	__u32 identity[2];
	__u32 room[2];
};

struct cas {
	struct bth bth;
	__be32 address[2];
	__be32 key;
	__be32 swap[2];
	__be32 expected[2];
	__u32 icrc;
};

struct atomic_ack {
	struct bth bth;
	__be32 aeth; // syndrome: 8 bits, message sequence number: 24 bits
	__be32 found[2];
	__u32 icrc;
};

// --- What sessions and memory nodes exchange over TCP before: crates/fabric/src/verbs/wire.rs, little-endian. ---

#define MAGIC "FUSErd04"

struct address {
	__u32 queue_pair;
	__u32 first_number;
	__u16 lid;
	__u8 mtu; // 1 to 5: 256 to 4096 bytes
	__u8 depth;
	__u32 gid[4];
};

struct hello {
	__u32 magic[2];
	__u32 identity[2];
	__u32 client;
	__u32 layout; // the version of the pools' layout, which does not matter here
	struct address address;
};

struct welcome {
	__u32 magic[2];
	__u32 identity[2];
	__u32 pool_bytes[2];
	__u32 status;
	__u32 layout;
	__u32 key;
	__u32 header_key;
	__u32 steered_key; // 0: none
	__u32 base[2];
	struct address address;
};

_Static_assert(sizeof(struct bth) == 12 && sizeof(struct reth) == 16, "InfiniBand says so");
_Static_assert(sizeof(struct cas) == 12 + 28 + 4 && sizeof(struct atomic_ack) == 12 + 4 + 8 + 4, "and so");
_Static_assert(sizeof(struct hello) == 52 && sizeof(struct welcome) == 80, "wire.rs says so");

// The first bytes of a pool belong to the node, and have another RDMA key.
enum { POOL_HEADER_BYTES = 4096 };

#endif
