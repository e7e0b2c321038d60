// Signs logins with the key of an actor (`mycojobs key new`). The page stores only a CryptoKey that cannot be exported, so
// scripts can sign with the key but cannot read it.

const KEY_PREFIX = 'mycojobs-ed25519-secret:';
const PKCS8_PREFIX = '302e020100300506032b657004220420';  // PKCS #8 header of an Ed25519 key (RFC 8410); 32 bytes follow.

const parse_hex = (text) => Uint8Array.from(text.match(/../g) ?? [], (byte) => parseInt(byte, 16));
const to_hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, '0')).join('');

export const is_key_text = (text) => text.trim().startsWith(KEY_PREFIX);

// Parses a key. Returns {signer: public key as hex, sign(bytes): signature as hex}. Throws for an invalid key.
export async function parse_key(text) {
  const seed = text.trim().slice(KEY_PREFIX.length);
  if (!is_key_text(text) || !/^[0-9a-f]{64}$/.test(seed)) throw new Error('this is not a key of `mycojobs key new`');
  if (!globalThis.crypto?.subtle) throw new Error('a browser signs only on https and on localhost: open the page there, or use a token');
  const bytes = parse_hex(PKCS8_PREFIX + seed);
  const extractable_key = await crypto.subtle.importKey('pkcs8', bytes, 'Ed25519', true, ['sign']);
  const {x} = await crypto.subtle.exportKey('jwk', extractable_key);
  const key = await crypto.subtle.importKey('pkcs8', bytes, 'Ed25519', false, ['sign']);
  bytes.fill(0);
  const signer = to_hex(Uint8Array.from(atob(x.replace(/-/g, '+').replace(/_/g, '/')), (byte) => byte.charCodeAt(0)));
  return {signer, sign: async (message) => to_hex(await crypto.subtle.sign('Ed25519', key, message))};
}

// Returns the bytes to sign for a login: a line that names the purpose, then the deterministic CBOR encoding of an object
// of texts (RFC 8949, 4.2.1).
export function encode_login(fields) {
  const encode_text = (value) => {
    const bytes = new TextEncoder().encode(value), length = bytes.length;
    return [...(length < 24 ? [0x60 + length] : length < 256 ? [0x78, length] : [0x79, length >> 8, length & 255]), ...bytes];
  };
  const entries = Object.entries(fields).map(([name, value]) => [encode_text(name), encode_text(value)]);
  const compare = (a, b) => { const index = a.findIndex((value, i) => value !== b[i]); return a[index] - b[index]; };
  entries.sort((a, b) => compare(a[0], b[0]));
  return Uint8Array.from([...new TextEncoder().encode('mycojobs login 1\n'), 0xa0 + entries.length, ...entries.flat(2)]);
}
