// Requests to the API, and its streams of events. Addresses are relative: a proxy may serve the console below a path.

const TOKEN = "pointsman-token";
// What a header can carry. fetch throws for other texts before it asks, so that nobody would be asked for the token again.
const SENDABLE = /^[\x20-\x7e\xa0-\xff]+$/;
let askForToken = async () => null;
let asking = null;

/** `ask` returns the token that somebody has typed in. */
export const onTokenNeeded = ask => { askForToken = ask };

/** The API has refused a request; `status` and the text say why. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const headers = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token && SENDABLE.test(token) ? { authorization: `Bearer ${token}` } : {};
};

// A fetch that asks for the token as often as the console wants one.
const request = async (path, options = {}) => {
  for (;;) {
    const response = await fetch(path, { ...options, headers: { ...options.headers, ...headers() } });
    if (response.status !== 401) return response;
    asking ??= askForToken().finally(() => { asking = null });
    sessionStorage.setItem(TOKEN, await asking ?? "");
  }
};

const read = async response => {
  const text = await response.text();
  let document = null;
  try { document = JSON.parse(text) } catch { /* an answer of a proxy */ }
  if (!response.ok) throw new Refused(response.status, document?.error ?? `${response.status} ${text.slice(0, 200)}`);
  return document;
};

export const get = async (path, signal) => read(await request(path, { signal }));

export const post = async (path, content, signal) => read(await request(path, {
  method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(content),
}));

const LONGEST_WAIT = 5000;
const SILENCE = 30000;

// The events of a response, one by one.
async function* events(response, alive) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) yield [name, JSON.parse(data)];
    }
  }
}

/**
 * Follows a stream until the returned function is called: `handlers` by the event's name, `onState` with
 * "connecting", "live" or a reason why there is nothing. A stream that ends is opened again.
 */
export const follow = (path, handlers, onState) => {
  const ended = new AbortController();
  (async () => {
    let wait = 0;
    while (!ended.signal.aborted) {
      const attempt = new AbortController();
      const abort = () => attempt.abort();
      ended.signal.addEventListener("abort", abort);
      let silence;
      const alive = () => {
        clearTimeout(silence);
        silence = setTimeout(abort, SILENCE);
      };
      try {
        const response = await request(path, { signal: attempt.signal });
        if (!response.ok) await read(response);
        alive();
        for await (const [name, content] of events(response, alive)) {
          wait = 100;
          onState("live");
          handlers[name]?.(content);
        }
      } catch (error) {
        if (ended.signal.aborted) break;
        onState(error instanceof Refused ? error.message : "the console doesn't answer");
        wait = Math.min(Math.max(wait * 2, 250), LONGEST_WAIT);
      } finally {
        clearTimeout(silence);
        ended.signal.removeEventListener("abort", abort);
      }
      await new Promise(resolve => { setTimeout(resolve, wait) });
    }
  })();
  return () => ended.abort();
};
