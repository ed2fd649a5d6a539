// Prints tables.h: how a change of one byte of a virtual address changes the ICRC of its packet.
//
// The ICRC is a CRC-32, and a CRC is linear: CRC(a ^ b) = CRC(a) ^ L(b), where L is the same division without the
// initial value and the final inversion. L of a change depends only on the distance from the changed byte to the end of
// the covered bytes. In a READ the virtual address is always followed by 8 covered bytes: RDMA key and length.
// Therefore there are 8 tables, one for each byte of the address, in the order of the wire.

#include <stdint.h>
#include <stdio.h>

enum { ADDRESS_BYTES = 8, BEHIND_BYTES = 8 };

// Adds one byte to a CRC-32, least significant bit first, as in Ethernet.
static uint32_t divide(uint32_t crc, uint8_t byte)
{
	crc ^= byte;
	for (int bit = 0; bit < 8; bit++)
		crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	return crc;
}

int main(void)
{
	printf("// Made by tables.c.\n");
	printf("static const unsigned int icrc_tables[%d][256] = {\n", ADDRESS_BYTES);
	for (int place = 0; place < ADDRESS_BYTES; place++) {
		printf("{\n");
		for (int byte = 0; byte < 256; byte++) {
			uint32_t crc = divide(0, (uint8_t)byte);
			for (int zeros = ADDRESS_BYTES - 1 - place + BEHIND_BYTES; zeros > 0; zeros--)
				crc = divide(crc, 0);
			printf("0x%08x,%s", crc, byte % 8 == 7 ? "\n" : " ");
		}
		printf("},\n");
	}
	printf("};\n");
	return 0;
}
