// One request by LIBRARY (fetch, undici, undici-h2, https): METHOD URL [BODY]; prints the status and the body, or the
// error with its causes. `fetch` and `https` are Node's own, and find the proxy by NODE_USE_ENV_PROXY.
import https from 'node:https';
import { text } from 'node:stream/consumers';

const [library, method, url, body] = process.argv.slice(2);

async function undici(allowH2) {
  const { EnvHttpProxyAgent, request } = await import('undici');
  const answer = await request(url, { method, body, dispatcher: new EnvHttpProxyAgent({ allowH2, requestTls: { allowH2 } }) });
  return [answer.statusCode, await answer.body.text()];
}

const clients = {
  async fetch() {
    const answer = await fetch(url, { method, body });
    return [answer.status, await answer.text()];
  },
  undici: () => undici(false),
  'undici-h2': () => undici(true),
  https: () =>
    new Promise((resolve, reject) => {
      const request = https.request(url, { method }, async answer => resolve([answer.statusCode, await text(answer)]));
      request.on('error', reject);
      request.end(body);
    }),
};

try {
  console.log(...(await clients[library]()));
} catch (error) {
  for (let cause = error; cause; cause = cause.cause) console.log('failed', cause.code ?? '', cause.message);
  process.exitCode = 1;
}
// A pooled connection would hold the process for its keep-alive.
process.exit();
