// For tests: READ requests as frames, and their ICRC by its definition, over the whole packet.

#ifndef FUSEE_XDP_ROCE_H
#define FUSEE_XDP_ROCE_H

#include <arpa/inet.h>
#include <endian.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "packets.h"

struct frame {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	struct read read;
} __attribute__((packed));

static uint32_t crc32_of(const void *bytes, size_t count)
{
	uint32_t crc = ~0u;
	for (const uint8_t *at = bytes; count > 0; at++, count--) {
		crc ^= *at;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

// The right ICRC: it covers eight bytes of ones, in place of an InfiniBand header that RoCE lacks, and then everything
// from the IP header on, with ones in place of fields that may change on the way.
static uint32_t icrc_of(const struct frame *frame)
{
	uint8_t covered[8 + sizeof(struct frame)];
	struct frame masked = *frame;
	size_t count = sizeof(masked) - sizeof(masked.ethernet) - sizeof(masked.read.icrc);
	masked.ip.tos = 0xff;
	masked.ip.ttl = 0xff;
	masked.ip.check = 0xffff;
	masked.udp.check = 0xffff;
	masked.read.bth.queue_pair |= htonl(0xff000000);
	memset(covered, 0xff, 8);
	memcpy(covered + 8, &masked.ip, count);
	return crc32_of(covered, 8 + count);
}

static uint64_t address_of(const struct frame *frame)
{
	uint32_t word[2];
	memcpy(word, frame->read.reth.address, sizeof(word));
	return (uint64_t)ntohl(word[0]) << 32 | ntohl(word[1]);
}

static void set_address(struct frame *frame, uint64_t address)
{
	uint32_t word[2] = { htonl(address >> 32), htonl((uint32_t)address) };
	memcpy(frame->read.reth.address, word, sizeof(word));
}

// The difference between the right ICRC and the packet's: zero for an undamaged packet.
static uint32_t damage(const struct frame *frame)
{
	return icrc_of(frame) ^ frame->read.icrc;
}

#endif
