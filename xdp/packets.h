// What of packets is looked at, as it is on the wire. All of it is made of words of four bytes at most: behind
// an Ethernet header nothing is aligned to more than two, and these can be loaded all the same.

#ifndef FUSEE_XDP_PACKETS_H
#define FUSEE_XDP_PACKETS_H

#include <linux/types.h>

// --- RoCEv2: RC packets behind a UDP header. Numbers are big-endian but for the ICRC. ---

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
	__be32 queue_pair; // in 24 bits, as all that say so
	__be32 number;     // in 24 bits
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
	__u32 icrc; // little-endian, as the bytes of an object are
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
	__be32 aeth; // syndrome 8, number of the message 24
	__be32 found[2];
	__u32 icrc;
};

// --- What sessions and memory nodes say over TCP before: crates/fabric/src/verbs/wire.rs, little-endian. ---

#define MAGIC "FUSErd04"

struct address {
	__u32 queue_pair;
	__u32 first_number;
	__u16 lid;
	__u8 mtu; // 1: 256 bytes, to 5: 4096
	__u8 depth;
	__u32 gid[4];
};

struct hello {
	__u32 magic[2];
	__u32 identity[2];
	__u32 client;
	__u32 layout; // of pools, which does not matter here
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
	__u32 steered_key; // 0: there is none
	__u32 base[2];
	struct address address;
};

_Static_assert(sizeof(struct bth) == 12 && sizeof(struct reth) == 16, "InfiniBand says so");
_Static_assert(sizeof(struct cas) == 12 + 28 + 4 && sizeof(struct atomic_ack) == 12 + 4 + 8 + 4, "and so");
_Static_assert(sizeof(struct hello) == 52 && sizeof(struct welcome) == 80, "wire.rs says so");

// Of a pool its first bytes are the node's own, and have another key.
enum { POOL_HEADER_BYTES = 4096 };

#endif
