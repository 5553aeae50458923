"""The bus: the messages of the tiers, over NATS.

NATS owns nothing. Every fact has one owner that can publish all of it again at any moment, and every reader knows how
old its copy is; so a NATS that was killed, restarted, wiped or rolled back is an ordinary event, and reading never
waits for it. A process has one `Bus`, the connection, and builds on it what it needs:

- `FactPublisher` and `Replica`: endpoints, pool, objectives, rewrites, models and configuration, in the KV bucket
  `endpoints`. The watcher's leader publishes the desired facts (`update`) and writes only differences; readers get
  `Reset(all)`, `Upsert(one)` and `Delete(one)`. A reset is ordinary: start, reconnect, gap, new owner. Completeness is
  decided by `synced`, which names count and digest of the set; only a copy that agrees becomes the view. Epoch and
  sequence of each write put messages in order, whichever way they came; the key `epoch` fences off former leaders.
- `FramePublisher` and `FrameReader`: attributes of endpoints, in the KV bucket `attributes`, as frames of columns. Each
  value has its age; the reader adds the time that a message was queued on its way (`QueueingDelays`).
- `Lease`: which watcher leads, in the KV bucket `leases`; `Candidacy`: which of them would lead best, by what they tell
  each other on a core subject.
- `Membership`: which collectors are alive, by heartbeats on a core subject. Ids are the processes' own business; two
  with one id notice it (`DuplicateId`).
- `Load` is the message that pickers send each other, on a core subject: what each has in flight.

Messages are msgspec structs in MessagePack (`encode`, `decode`). One that can't be decoded is `Malformed`. Readers
count it, log it once a minute per sender (`MalformedLog`) and skip it. `Subjects` names subjects, buckets and keys. Its
prefix separates installations. The parts that decide (`ReplicaState`, `BucketReconciler`, `QueueingDelays`,
`LeaseClock`, `Members`) keep plain state and get the time as an argument; the classes around them only move bytes.
"""

import shared.bus.nats_py  # noqa: F401, I001  # before every import of nats
from nats.aio.msg import Msg

__all__ = ["Msg"]
