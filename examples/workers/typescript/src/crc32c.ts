/** CRC32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of every payload. */

// Eight tables: entry [k][b] is byte b followed by k bytes of 0, so that a step of the loop takes 8 bytes at once.
const TABLES: readonly Int32Array[] = makeTables();

function makeTables(): Int32Array[] {
  const tables = Array.from({ length: 8 }, () => new Int32Array(256));
  for (let byte = 0; byte < 256; byte++) {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
    tables[0][byte] = crc;
  }
  for (let k = 1; k < 8; k++) {
    for (let byte = 0; byte < 256; byte++) {
      const before = tables[k - 1][byte];
      tables[k][byte] = (before >>> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

/** The CRC of `data`, an unsigned 32-bit number; `before` is that of the bytes in front of it. */
export function crc32c(data: Uint8Array, before = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES;
  let crc = ~before;
  let i = 0;
  for (const end = data.length - 7; i < end; i += 8) {
    const low = crc ^ (data[i] | (data[i + 1] << 8) | (data[i + 2] << 16) | (data[i + 3] << 24));
    crc =
      t7[low & 0xff] ^
      t6[(low >>> 8) & 0xff] ^
      t5[(low >>> 16) & 0xff] ^
      t4[low >>> 24] ^
      t3[data[i + 4]] ^
      t2[data[i + 5]] ^
      t1[data[i + 6]] ^
      t0[data[i + 7]];
  }
  for (; i < data.length; i++) crc = (crc >>> 8) ^ t0[(crc ^ data[i]) & 0xff];
  return ~crc >>> 0;
}
