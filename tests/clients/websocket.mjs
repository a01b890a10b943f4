// A WebSocket by LIBRARY: `node` is Node's own, `undici` and `undici-h2` (RFC 8441) the package; URL. Text and bytes
// there and back, and the close.
const [library, url] = process.argv.slice(2);

async function open() {
  if (library === 'node') return new WebSocket(url);
  const undici = await import('undici');
  const allowH2 = library === 'undici-h2';
  const dispatcher = new undici.EnvHttpProxyAgent({ allowH2, requestTls: { allowH2 } });
  return new undici.WebSocket(url, { dispatcher });
}

const socket = await open();
socket.binaryType = 'arraybuffer';
const heard = [];
socket.onopen = () => {
  socket.send('hello');
  socket.send(new Uint8Array([0, 255]));
  socket.send('x'.repeat(200_000));
};
socket.onmessage = ({ data }) => {
  heard.push(typeof data === 'string' ? data.length : [...new Uint8Array(data)].join());
  if (heard.length < 3) return;
  socket.close(1000, 'done');
  // Over HTTP/2 undici (7.30, where this is experimental) does not tell of the close that it is answered.
  if (library === 'undici-h2') socket.onclose({ code: 1000, reason: 'done' });
};
// Nor that it is refused: it waits for ever.
const PATIENCE = 10_000;
if (library === 'undici-h2') setTimeout(() => socket.onclose({ code: 0, reason: 'silence' }), PATIENCE);
socket.onerror = event => {
  for (let cause = event.error ?? event; cause; cause = cause.cause) console.log('failed', cause.code ?? '', cause.message);
};
socket.onclose = ({ code, reason }) => {
  console.log(heard.join(' ') === '5 0,255 200000' ? 'reached' : 'closed', code, reason);
  process.exit(heard.length === 3 ? 0 : 1);
};
