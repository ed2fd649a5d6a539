// The ICRC of a READ whose virtual address is changed.

#ifndef FUSEE_XDP_ICRC_H
#define FUSEE_XDP_ICRC_H

#include "tables.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words of the index are little-endian, and so is every machine that FUSEE runs on"
#endif

// Returns the value to XOR into the ICRC field of a packet when `difference` is XORed into the virtual address of its
// RETH. The ICRC is never computed from the packet: a packet that was damaged on its way would get a right ICRC, and
// the damage would not be detected. With the XOR the ICRC of a damaged packet stays equally wrong.
static inline __attribute__((always_inline)) unsigned int icrc_change(unsigned long long difference)
{
	return icrc_tables[0][difference >> 56 & 0xff] ^ icrc_tables[1][difference >> 48 & 0xff] ^
	       icrc_tables[2][difference >> 40 & 0xff] ^ icrc_tables[3][difference >> 32 & 0xff] ^
	       icrc_tables[4][difference >> 24 & 0xff] ^ icrc_tables[5][difference >> 16 & 0xff] ^
	       icrc_tables[6][difference >> 8 & 0xff] ^ icrc_tables[7][difference & 0xff];
}

#endif
