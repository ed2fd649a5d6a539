// `icrc_change` agrees with an ICRC computed over the whole packet, and damaged packets stay damaged.
// Promise FAB-20

#include <assert.h>
#include <stdio.h>

#include "icrc.h"
#include "roce.h"

// xorshift64, so that each run has the same packets.
static uint64_t next(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static struct frame any(void)
{
	struct frame frame;
	for (size_t at = 0; at < sizeof(frame); at++)
		((uint8_t *)&frame)[at] = (uint8_t)(next() >> 32);
	frame.read.icrc = icrc_of(&frame);
	return frame;
}

static void steer(struct frame *frame, uint64_t to)
{
	uint64_t from = address_of(frame);
	set_address(frame, to);
	frame->read.icrc ^= icrc_change(from ^ to);
}

// Every value of every byte of the address: all entries of the tables.
static void every_entry(void)
{
	for (int place = 0; place < 64; place += 8)
		for (uint64_t byte = 0; byte < 256; byte++) {
			struct frame frame = any();
			steer(&frame, address_of(&frame) ^ byte << place);
			assert(damage(&frame) == 0);
		}
}

static void whole_packets_stay_whole(void)
{
	for (int i = 0; i < 20000; i++) {
		struct frame frame = any();
		steer(&frame, next());
		assert(damage(&frame) == 0);
	}
}

// Damage of any kind, before or behind the address, is the same afterwards.
static void damage_stays(void)
{
	for (int i = 0; i < 20000; i++) {
		struct frame frame = any();
		uint8_t *bytes = (uint8_t *)&frame.ip;
		for (int flips = 1 + (int)(next() % 40); flips > 0; flips--) {
			size_t bit = next() % ((sizeof(frame) - sizeof(frame.ethernet)) * 8);
			bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		uint32_t before = damage(&frame);
		steer(&frame, next());
		assert(damage(&frame) == before);
	}
}

int main(void)
{
	assert(crc32_of("123456789", 9) == 0xcbf43926); // the check value of CRC-32
	every_entry();
	whole_packets_stay_whole();
	damage_stays();
	puts("icrc_test: well");
	return 0;
}
