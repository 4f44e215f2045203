"""Rules 1 to 7 of the formats in plain Python, written from the text alone.

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


class _Message:
  """One output on its way to one device."""

  def __init__(self, producer, output, target, queued):
    self.order = (queued, producer, output, target)
    self.key = (producer, output, target)
    self.start = self.arrival = None


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
    self.start, self.end, self.done = {}, {}, set()
    self.device_free = [0.0] * len(names)
    self.channel_free = {self.channel(pair): 0.0 for pair in self.links}
    self.waiting, self.flying, self.arrived = [], [], []
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
    return False

  def publish(self, i):
    here = self.devices[i]
    targets = set()
    for src, output, dst in self.edges:
      if src == i and self.devices[dst] == here:
        self.deliver(dst, src, output)
      elif src == i:
        targets.add((output, self.devices[dst]))
    for output, target in targets:
      self.waiting.append(_Message(i, output, target, self.now))

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
        for src, out, dst in self.edges:
          if (src, out) == (producer, output) and self.devices[dst] == target:
            self.deliver(dst, producer, output)
        return True
    return False

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
      queue = [
        (t, i)
        for i, t in self.ready.items()
        if self.devices[i] == d and i not in self.start
      ]
      if queue and self.device_free[d] <= self.now:
        i = min(queue)[1]
        self.start[i] = self.now
        self.end[i] = self.now + self.time[i]
        self.device_free[d] = self.end[i]
        if self.time[i] > 0:
          self.device_free[d] = self.end[i] + device.op_overhead_us
        return True
    return False

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
          (begin,) = (m.start for m in messages if m.key[2] == d)
          until = max(ends)
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
