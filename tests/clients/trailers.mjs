// Sends trailers by VERSION (h1, h2) to URL, a /trailers, through the proxy of https_proxy; prints what came back.
import http from 'node:http';
import http2 from 'node:http2';
import https from 'node:https';
import tls from 'node:tls';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';

const [version, target] = process.argv.slice(2);
const url = new URL(target);

async function tunnel(protocols) {
  const proxy = new URL(process.env.https_proxy);
  const path = `${url.hostname}:${url.port || 443}`;
  const request = http.request({ host: proxy.hostname, port: proxy.port, method: 'CONNECT', path, agent: false });
  request.end();
  const [answer, socket] = await once(request, 'connect');
  if (answer.statusCode !== 200) throw new Error(`refused ${answer.statusCode}`);
  const secure = tls.connect({ socket, servername: url.hostname, ALPNProtocols: protocols });
  await once(secure, 'secureConnect');
  return secure;
}

async function h1() {
  const socket = await tunnel(['http/1.1']);
  // Who wants trailers says so (RFC 9110 §10.1.4).
  const headers = { host: url.host, trailer: 'x-sent', te: 'trailers', connection: 'TE' };
  const request = https.request(url, { method: 'POST', createConnection: () => socket, headers });
  request.addTrailers({ 'x-sent': 'h1' });
  request.end('hello');
  const [answer] = await once(request, 'response');
  return [await text(answer), answer.trailers];
}

async function h2() {
  const socket = await tunnel(['h2']);
  const session = http2.connect(url.origin, { createConnection: () => socket });
  const stream = session.request({ ':method': 'POST', ':path': url.pathname }, { waitForTrailers: true });
  stream.on('wantTrailers', () => stream.sendTrailers({ 'x-sent': 'h2' }));
  stream.end('hello');
  const came = once(stream, 'trailers');
  return [await text(stream), (await came)[0]];
}

const [body, trailers] = await { h1, h2 }[version]();
console.log(body, trailers['x-length'], trailers['x-received']);
process.exit();
