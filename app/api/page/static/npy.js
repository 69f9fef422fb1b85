// The header of an .npy file, which describes the array. The server reads the numbers.

const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];

/**
 * Read the header, as numpy.save writes it.
 * @param {Blob} file
 * @returns {Promise<{dtype: string, shape: number[]} | null>} null: it has none
 */
export async function headerOf(file) {
  const octets = new Uint8Array(await file.slice(0, 4096).arrayBuffer());
  if (octets.length < 12 || MAGIC.some((octet, index) => octets[index] !== octet)) return null;
  const view = new DataView(octets.buffer);
  const isFirst = octets[6] === 1;
  const begin = isFirst ? 10 : 12;
  const length = isFirst ? view.getUint16(8, true) : view.getUint32(8, true);
  const text = new TextDecoder("latin1").decode(octets.slice(begin, begin + length));
  const dtype = /'descr':\s*'([^']*)'/.exec(text)?.[1];
  const sizes = /'shape':\s*\(([^)]*)\)/.exec(text)?.[1];
  if (dtype === undefined || sizes === undefined) return null;
  const shape = sizes
    .split(",")
    .filter((each) => each.trim())
    .map(Number);
  return { dtype, shape };
}
