/** CRC32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of every payload. */

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc;
});

/** An unsigned 32-bit number. For models of gigabytes take a package with native code, such as @node-rs/crc32. */
export function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (let i = 0; i < data.length; i++) crc = (crc >>> 8) ^ TABLE[(crc ^ data[i]) & 0xff];
  return ~crc >>> 0;
}
