// The key of an actor, in the format of `mycojobs key new`, which signs logins. It is kept only as a CryptoKey that cannot
// be exported, so scripts can sign with it but cannot read it.

const HEAD = 'mycojobs-ed25519-secret:';
const PKCS8 = '302e020100300506032b657004220420';  // PKCS #8 header before the 32 bytes of an Ed25519 key (RFC 8410)

const from_hex = (text) => Uint8Array.from(text.match(/../g) ?? [], (each) => parseInt(each, 16));
const to_hex = (bytes) => [...new Uint8Array(bytes)].map((each) => each.toString(16).padStart(2, '0')).join('');

export const looks_like_key = (text) => text.trim().startsWith(HEAD);

// Parses a key. Returns {signer: public key as hex, sign(bytes): signature as hex}. Throws for an invalid key.
export async function read_key(text) {
  const seed = text.trim().slice(HEAD.length);
  if (!looks_like_key(text) || !/^[0-9a-f]{64}$/.test(seed)) throw new Error('this is not a key of `mycojobs key new`');
  if (!globalThis.crypto?.subtle) throw new Error('a browser signs only on https and on localhost: open the page there, or use a token');
  const bytes = from_hex(PKCS8 + seed);
  const open = await crypto.subtle.importKey('pkcs8', bytes, 'Ed25519', true, ['sign']);
  const {x} = await crypto.subtle.exportKey('jwk', open);
  const key = await crypto.subtle.importKey('pkcs8', bytes, 'Ed25519', false, ['sign']);
  bytes.fill(0);
  const signer = to_hex(Uint8Array.from(atob(x.replace(/-/g, '+').replace(/_/g, '/')), (each) => each.charCodeAt(0)));
  return {signer, sign: async (what) => to_hex(await crypto.subtle.sign('Ed25519', key, what))};
}

// Returns the bytes to sign for a login: a line that names the purpose, then the deterministic CBOR encoding of an object
// of texts (RFC 8949, 4.2.1).
export function login_bytes(said) {
  const text = (each) => {
    const bytes = new TextEncoder().encode(each), n = bytes.length;
    return [...(n < 24 ? [0x60 + n] : n < 256 ? [0x78, n] : [0x79, n >> 8, n & 255]), ...bytes];
  };
  const rows = Object.entries(said).map(([name, value]) => [text(name), text(value)]);
  const before = (a, b) => { const at = a.findIndex((each, i) => each !== b[i]); return a[at] - b[at]; };
  rows.sort((a, b) => before(a[0], b[0]));
  return Uint8Array.from([...new TextEncoder().encode('mycojobs login 1\n'), 0xa0 + rows.length, ...rows.flat(2)]);
}
