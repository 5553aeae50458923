// The pool as the stream tells of it: endpoints with their facts and numbers, and the last ten minutes of each.

/** Seconds between two samples of the history. */
export const STEP = 5;
export const SAMPLES = 120;
export const METRICS = ["queue", "running", "kv_cache", "in_flight"];

const NUMBERS = ["queue", "running", "kv_cache", "in_flight", "in_flight_tokens", "reachable"];

export class Pool {
  /** By slot: a number that the stream gives to each endpoint. */
  endpoints = new Map();
  about = { name: "", namespace: "", synced: false, age: null, stale_after: 2, problem: "" };
  members = [];
  /** What is wrong with the members together. */
  problems = [];
  /** The position of the present sample in every history. */
  at = 0;
  /** Counts changes of which endpoints there are, and of their facts. */
  version = 0;

  /** Everything, which replaces what is known. Histories stay. */
  whole(content) {
    const before = new Map([...this.endpoints.values()].map(endpoint => [endpoint.id, endpoint]));
    this.endpoints.clear();
    for (const facts of content.endpoints) this.#put(facts, before.get(facts.id));
    this.#rest(content);
    this.version++;
  }

  /** What has changed. */
  changes(content) {
    if (content.removed || content.endpoints) this.version++;
    for (const slot of content.removed ?? []) this.endpoints.delete(slot);
    for (const facts of content.endpoints ?? []) this.#put(facts, this.endpoints.get(facts.slot));
    this.#rest(content);
  }

  #put(facts, before) {
    const endpoint = before ?? {
      queue: null, running: null, kv_cache: null, in_flight: null, in_flight_tokens: null, reachable: null,
      age: null, seen: 0, history: null, known: false,
    };
    Object.assign(endpoint, facts);
    const labels = Object.entries(facts.labels).map(([name, value]) => `${name}=${value}`);
    endpoint.text = [facts.id, facts.address, facts.role, facts.engine, facts.node, facts.collector, ...labels, ...facts.adapters]
      .join(" ").toLowerCase();
    this.endpoints.set(facts.slot, endpoint);
  }

  #rest({ values, about, members, problems }) {
    if (about) this.about = about;
    if (members) this.members = members;
    if (problems) this.problems = problems;
    if (!values) return;
    const now = performance.now();
    const { slots, age } = values;
    for (let at = 0; at < slots.length; at++) {
      const endpoint = this.endpoints.get(slots[at]);
      if (!endpoint) continue;
      for (const name of NUMBERS) endpoint[name] = values[name][at];
      endpoint.age = age[at];
      endpoint.seen = now;
    }
  }

  /** Seconds since the endpoint's metrics were seen; null if that never was. */
  age(endpoint, now) {
    return endpoint.age === null ? null : endpoint.age + (now - endpoint.seen) / 1000;
  }

  /** `draining`, `down`, `stale`, `unknown` or `up`. */
  state(endpoint, now) {
    if (endpoint.draining) return "draining";
    if (endpoint.reachable === 0) return "down";
    const age = this.age(endpoint, now);
    return age === null ? "unknown" : age > this.about.stale_after ? "stale" : "up";
  }

  /** Goes on to the next sample of every history. */
  sample() {
    this.at = (this.at + 1) % SAMPLES;
    for (const endpoint of this.endpoints.values()) this.#write(endpoint, this.at, name => endpoint[name]);
  }

  #write(endpoint, at, value) {
    endpoint.history ??= new Float32Array(METRICS.length * SAMPLES).fill(NaN);
    METRICS.forEach((name, metric) => { endpoint.history[metric * SAMPLES + at] = value(name) ?? NaN });
  }

  /** What the console has kept of an endpoint's history, the newest last; what the page itself has seen stays. */
  remember(endpoint, kept) {
    const length = kept.queue.length;
    for (let back = 1; back < Math.min(length, SAMPLES); back++) {
      const at = (this.at - back + SAMPLES) % SAMPLES;
      if (endpoint.history && METRICS.some((_, metric) => !Number.isNaN(endpoint.history[metric * SAMPLES + at]))) continue;
      this.#write(endpoint, at, name => kept[name][length - 1 - back]);
    }
  }

  /** A metric's samples, the oldest first. */
  series(endpoint, metric) {
    const start = METRICS.indexOf(metric) * SAMPLES;
    return Array.from({ length: SAMPLES }, (_, at) => endpoint.history?.[start + (this.at + 1 + at) % SAMPLES] ?? NaN);
  }
}
