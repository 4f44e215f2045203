"""The rules of docs/simulation.md in plain Python, written from the text.

And the ranks of rule 2.

Nothing is precomputed or kept sorted: at every turn the whole state is
searched for what the rules say happens next. Memory is not tracked while time
passes but computed afterwards, as a sum over half-open intervals.
"""

import dataclasses


@dataclasses.dataclass
class Step:
  step_time_us: float
  feasible: bool
  peak_memory_bytes: list
  busy_us: list
  bytes_moved: float
  op_start_us: list
  op_end_us: list
  transfers: dict  # (producer, output, destination) -> (start, arrival)
  receives: dict  # the same keys -> (start, end), where there is a receive


class _Message:
  """One output on its way to one device."""

  def __init__(self, producer, output, target, queued):
    self.order = (queued, producer, output, target)
    self.key = (producer, output, target)
    self.start = self.arrival = None
    self.receive_us = self.receive_start = self.receive_end = None


def rank_of(problem):
  """Op -> its turn, by position."""
  graph = problem.graph
  readers = {i: set() for i in range(graph.num_ops)}
  for src, dst in zip(graph.edge_src, graph.edge_dst, strict=True):
    readers[int(src)].add(int(dst))
  present = {d.kind for d in problem.cluster.devices}
  fastest = [
    min(
      float(us[i])
      for kind, us in graph.time_us.items()
      if kind in present and us[i] == us[i]
    )
    for i in readers
  ]

  def longest(i):
    return max((longest(r) for r in readers[i]), default=0.0) + fastest[i]

  def is_before_a_microbatch(i):
    return any(
      graph.microbatch[r] >= 0 or is_before_a_microbatch(r) for r in readers[i]
    )

  before = {i: set() for i in readers}
  for i in graph.topological_order:
    for r in readers[int(i)]:
      before[r] |= before[int(i)] | {int(i)}
  read, fed = dict.fromkeys(readers, 0.0), set()
  for src, output, dst in zip(
    graph.edge_src, graph.edge_output, graph.edge_dst, strict=True
  ):
    if output >= 0:
      size = graph.output_bytes[graph.output_offsets[src] + output]
      read[int(dst)] += size
      if size > 0 and graph.microbatch[src] < 0:
        fed.add(int(dst))

  def written(i):
    return graph.output_bytes[slice(*graph.output_offsets[i : i + 2])].sum()

  def computes(i):
    grows = graph.microbatch[i] >= 0 and 0 < read[i] < written(i)
    return graph.persistent_bytes[i] > 0 or (grows and graph.types[i] != "Cast")

  def depends_on_the_batch_alone(i):
    return graph.microbatch[i] >= 0 and not any(map(computes, {i} | before[i]))

  def is_of_the_batch(i):
    is_fed = not fed.isdisjoint({i} | before[i])
    return is_fed and depends_on_the_batch_alone(i)

  def prepares(i):
    later = (r for r in readers if i in before[r])
    return depends_on_the_batch_alone(i) and any(
      map(is_of_the_batch, [i, *later])
    )

  def turn(i):
    if graph.microbatch[i] >= 0:
      return -1 if prepares(i) else int(graph.microbatch[i])
    return -1 if is_before_a_microbatch(i) else max(graph.microbatch) + 1

  order = sorted(readers, key=lambda i: (turn(i), -longest(i), i))
  return {op: place for place, op in enumerate(order)}


def reference_step(problem, devices):
  """Simulates one placement; `devices[i]` is the device of op i."""
  return Reference(problem, [int(d) for d in devices]).run()


class Reference:
  def __init__(self, problem, devices):
    graph, cluster = problem.graph, problem.cluster
    self.graph, self.cluster, self.devices = graph, cluster, devices
    self.edges = list(
      zip(
        graph.edge_src.tolist(),
        graph.edge_output.tolist(),
        graph.edge_dst.tolist(),
        strict=True,
      )
    )
    names = [d.name for d in cluster.devices]
    self.links = {
      (names.index(link.src), names.index(link.dst)): link
      for link in cluster.links
    }
    ops = range(graph.num_ops)
    kind = [cluster.devices[d].kind for d in devices]
    self.time = [float(graph.time_us[kind[i]][i]) for i in ops]
    self.inputs_left = {
      i: {(s, o) for s, o, d in self.edges if d == i} for i in ops
    }
    self.ready = {i: 0.0 for i in ops if not self.inputs_left[i]}
    self.start, self.end, self.done = {}, {}, set()  # `start` in order
    self.last_end = [0.0] * len(names)
    self.rank = rank_of(problem) if problem.order == "rank" else None
    self.device_free = [0.0] * len(names)
    self.channel_free = {self.channel(pair): 0.0 for pair in self.links}
    self.waiting, self.flying, self.arrived = [], [], []
    self.to_receive, self.receiving, self.received = [], [], []
    self.now = 0.0

  def channel(self, pair):
    link = self.links[pair]
    return ("own", pair) if link.channel is None else ("named", link.channel)

  def size(self, producer, output):
    if output < 0:
      return 0.0
    first = self.graph.output_offsets[producer]
    return float(self.graph.output_bytes[first + output])

  def run(self):
    while True:
      if self.complete() or self.arrive():
        continue
      if self.start_transfer() or self.start_op():
        continue
      later = [self.end[i] for i in self.end if i not in self.done]
      later += [m.arrival for m in self.flying]
      later += [m.receive_end for m in self.receiving]
      later += [t for t in self.device_free if t > self.now]
      later += [t for t in self.channel_free.values() if t > self.now]
      if not later:
        return self.result()
      self.now = min(later)

  def complete(self):
    for i in self.end:
      if i not in self.done and self.end[i] == self.now:
        self.done.add(i)
        self.publish(i)
        return True
    for message in self.receiving:
      if message.receive_end == self.now:
        self.receiving.remove(message)
        self.received.append(message)
        self.hand_over(message)
        return True
    return False

  def publish(self, i):
    for src, output, dst in self.edges:
      if src == i and self.devices[dst] == self.devices[i]:
        self.deliver(dst, src, output)
    for output, target in self.sent(i):
      self.waiting.append(_Message(i, output, target, self.now))

  def sent(self, i):
    """The transfers of op i, by (output index, destination's position)."""
    return sorted(
      {
        (output, self.devices[dst])
        for src, output, dst in self.edges
        if src == i and self.devices[dst] != self.devices[i]
      }
    )

  def sending(self, i):
    """The sum, over its transfers, that op i stays on its device."""
    total = 0.0
    for output, target in self.sent(i):
      link = self.links[self.devices[i], target]
      total += link.send_us + self.size(i, output) * link.send_us_per_byte
    return total

  def deliver(self, op, producer, output):
    self.inputs_left[op].discard((producer, output))
    if not self.inputs_left[op] and op not in self.ready:
      self.ready[op] = self.now

  def arrive(self):
    for message in self.flying:
      if message.arrival == self.now:
        self.flying.remove(message)
        self.arrived.append(message)
        producer, output, target = message.key
        link = self.links[self.devices[producer], target]
        size = self.size(producer, output)
        message.receive_us = link.recv_us + size * link.recv_us_per_byte
        if message.receive_us > 0:
          self.to_receive.append(message)
        else:
          self.hand_over(message)
        return True
    return False

  def hand_over(self, message):
    producer, output, target = message.key
    for src, out, dst in self.edges:
      if (src, out) == (producer, output) and self.devices[dst] == target:
        self.deliver(dst, producer, output)

  def start_transfer(self):
    for message in sorted(self.waiting, key=lambda m: m.order):
      producer, output, target = message.key
      pair = self.devices[producer], target
      channel, link = self.channel(pair), self.links[pair]
      if self.channel_free[channel] <= self.now:
        self.waiting.remove(message)
        wire = self.size(producer, output) / link.bandwidth_bytes_per_us
        message.start = self.now
        message.arrival = self.now + wire + link.latency_us
        self.channel_free[channel] = self.now + wire + link.gap_us
        self.flying.append(message)
        return True
    return False

  def start_op(self):
    for d, device in enumerate(self.cluster.devices):
      if self.device_free[d] > self.now:
        continue
      # (ready time, receives before ops, position and output index)
      queue = [
        ((t, 1, i, 0), i)
        for i, t in self.ready.items()
        if self.devices[i] == d and i not in self.start
      ]
      queue += [
        ((m.arrival, 0, *m.key[:2]), m)
        for m in self.to_receive
        if m.key[2] == d
      ]
      if queue:
        _, first = min(queue, key=lambda entry: entry[0])
        if self.rank is not None:
          first = self.next_by_rank(d, [entry[1] for entry in queue])
        if isinstance(first, _Message):
          self.run_receive(d, first)
        else:
          self.run_op(d, first, device.op_overhead_us)
        return True
    return False

  def next_by_rank(self, d, waiting):
    receives = [m for m in waiting if isinstance(m, _Message)]
    receives.sort(key=lambda m: (m.arrival, m.key[:2]))
    ops = sorted((i for i in waiting if i not in receives), key=self.rank.get)
    if not ops:
      return receives[0]
    # A control edge from the op that ran before would do the same.
    since = max(self.ready[ops[0]], self.last_end[d])
    if receives and receives[0].arrival <= since:
      return receives[0]
    return ops[0]

  def run_op(self, d, i, overhead):
    self.start[i] = self.now
    self.end[i] = self.now + self.time[i] + self.sending(i)
    self.device_free[d] = self.last_end[d] = self.end[i]
    if self.time[i] > 0:
      self.device_free[d] = self.end[i] + overhead

  def run_receive(self, d, message):
    self.to_receive.remove(message)
    self.receiving.append(message)
    message.receive_start = self.now
    message.receive_end = self.now + message.receive_us
    self.device_free[d] = message.receive_end

  def result(self):
    graph, cluster = self.graph, self.cluster
    ops = range(graph.num_ops)
    peaks = [self.peak(d) for d in range(len(cluster.devices))]
    sent = self.arrived
    return Step(
      step_time_us=max(self.end.values(), default=0.0),
      feasible=all(
        peak <= d.memory_bytes
        for peak, d in zip(peaks, cluster.devices, strict=True)
      ),
      peak_memory_bytes=peaks,
      busy_us=[
        sum(self.time[i] for i in ops if self.devices[i] == d)
        for d in range(len(cluster.devices))
      ],
      bytes_moved=sum(self.size(m.key[0], m.key[1]) for m in sent),
      op_start_us=[self.start[i] for i in ops],
      op_end_us=[self.end[i] for i in ops],
      transfers={m.key: (m.start, m.arrival) for m in sent},
      receives={m.key: (m.receive_start, m.receive_end) for m in self.received},
    )

  def intervals(self, d):
    """(start, end, bytes) of all that is held on device d for a while."""
    for i in range(self.graph.num_ops):
      first, last = self.graph.output_offsets[i : i + 2]
      if self.devices[i] == d:
        yield self.start[i], self.end[i], float(self.graph.temp_bytes[i])
      for output in range(last - first):
        begin = until = None
        ends = [
          self.end[dst]
          for src, o, dst in self.edges
          if (src, o) == (i, output) and self.devices[dst] == d
        ]
        messages = [m for m in self.arrived if m.key[:2] == (i, output)]
        if self.devices[i] == d:
          begin = self.start[i]
          until = max([self.end[i], *ends, *(m.arrival for m in messages)])
        elif ends:
          (message,) = (m for m in messages if m.key[2] == d)
          begin = message.start
          until = max([*ends, message.receive_end or message.arrival])
        if begin is not None:
          yield begin, until, self.size(i, output)

  def peak(self, d):
    held = list(self.intervals(d))
    always = sum(
      float(self.graph.persistent_bytes[i])
      for i in range(self.graph.num_ops)
      if self.devices[i] == d
    )
    return max(
      [always]
      + [
        always + sum(size for a, b, size in held if a <= t < b)
        for t, _, _ in held
      ]
    )
